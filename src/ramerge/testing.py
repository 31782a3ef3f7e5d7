"""Checks that every method must pass; a plug-in's author runs them in one line:

    def test_my_method() -> None:
        ramerge.testing.check_method("my_method")

They merge small generated models, and raise AssertionError with what is wrong. They need only ramerge.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.api import plan
from ramerge.core.engine.execute import execute
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.engine.sinks import MergedTensor
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.methods.base import Method
from ramerge.core.methods.registry import METHODS
from ramerge.core.planning.build import make_plan
from ramerge.core.planning.inputs import open_recipe
from ramerge.core.recipe.points import make_points
from ramerge.core.tensors.header import encode_header

Values = NDArray[Any]
Reference = Callable[..., Values]
"""`reference(base, taus, **parameters)`: computes the merged tensor from float32 arrays of one tensor, by the book."""

DTYPES = ("BF16", "F16", "F32", "F64")
_WORDS: Mapping[str, Any] = {
    "BF16": np.dtype(np.uint16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}
_SHAPES = {
    "model.embed_tokens.weight": (40, 16),
    "model.layers.0.mlp.up_proj.weight": (33, 7),
    "model.norm.weight": (5,),
}
_AGENTS = {"code": 0.05, "tool": 0.4, "memory": 0.9}
# Sizes of blocks and numbers of threads between which a result must not differ.
_LAYOUTS = ((1, 7, 1), (3, 1000, 4))


def check_method(
    name: str,
    *,
    reference: Reference | None = None,
    parameters: Sequence[Mapping[str, object]] = ({},),
    exact: bool = True,
) -> None:
    """Run all checks on a registered method.

    Args:
        name: the method's name.
        reference: computes the same result by the book, for each of `parameters`; by default, nothing is compared.
        parameters: the parameters to try.
        exact: whether the bytes must equal the reference's; otherwise, numbers must agree to 1e-5.

    Raises:
        AssertionError: a check fails.

    Example:
        >>> import ramerge.testing
        >>> ramerge.testing.check_method("task_arithmetic", parameters=[{}, {"scale": 0.5}])
    """
    for values in parameters:
        for dtype in DTYPES:
            check_layout(name, dtype, values)
        check_order(name, values)
        if reference is not None:
            check_reference(name, reference, values, exact=exact)
    check_bounds(name)


def check_layout(name: str, dtype: str = "BF16", parameters: Mapping[str, object] | None = None) -> None:
    """Check that shards, block sizes and numbers of threads do not change a byte."""
    results = []
    for shards, block, workers in _LAYOUTS:
        with models(name, dtype, shards=shards) as recipe:
            results.append(merged({**recipe, "parameters": dict(parameters or {})}, block=block, workers=workers))
    one, other = results
    assert one.keys() == other.keys(), f"{name}: tensors differ between layouts"
    for tensor in one:
        same = one[tensor].tobytes() == other[tensor].tobytes()
        assert same, (
            f"{name}, {dtype}: {tensor} depends on shards, blocks or threads: "
            f"{_difference(one[tensor], other[tensor], 'in small blocks', 'in large ones')}"
        )


def check_order(name: str, parameters: Mapping[str, object] | None = None) -> None:
    """Check that the order of agents changes only rounding, if the method declares so (`Method.symmetric`)."""
    if not METHODS[name].symmetric:
        return
    with models(name, "F32") as recipe:
        recipe_with_values = {**recipe, "parameters": dict(parameters or {})}
        one, other = (
            merged(recipe_with_values),
            merged({**recipe_with_values, "agents": dict(reversed(recipe["agents"].items()))}),
        )
    for tensor in one:
        close = np.allclose(one[tensor], other[tensor], rtol=1e-5, atol=1e-7)
        assert close, (
            f"{name}: {tensor} depends on the order of agents, but the method is declared symmetric: "
            f"{_difference(one[tensor], other[tensor], 'in order', 'reversed')}"
        )


def check_reference(
    name: str, reference: Reference, parameters: Mapping[str, object] | None = None, *, exact: bool = True
) -> None:
    """Compare a method with a reference, in float32."""
    method, values = METHODS[name], dict(parameters or {})
    with models(name, "F32") as recipe:
        result = merged({**recipe, "parameters": values})
    base, agents = _test_values(method)
    for tensor in base:
        others = [agent[tensor] for agent in agents.values()]
        taus = [agent - base[tensor] for agent in others] if method.needs_base else others
        expectation = np.asarray(reference(base[tensor], taus, **values), np.float32)
        if exact:
            same, how = result[tensor].tobytes() == expectation.tobytes(), "bit for bit"
        else:
            same, how = np.allclose(result[tensor], expectation, rtol=1e-5, atol=1e-7), "to 1e-5"
        assert same, (
            f"{name}: {tensor} is not the reference's, {how}: "
            f"{_difference(result[tensor], expectation, 'merged', 'reference')}"
        )


def _difference(one: Values, other: Values, label: str, label_of_other: str) -> str:
    """Say where two tensors differ first, with both values, in how many elements, and by how much at most.

    bfloat16 comes as uint16.
    """
    if one.shape != other.shape:
        return f"{label} {list(one.shape)}, {label_of_other} {list(other.shape)}"
    first, second = (
        (each.astype(np.uint32) << 16).view(np.float32) if each.dtype == np.uint16 else each for each in (one, other)
    )
    words = np.dtype(f"u{first.dtype.itemsize}")
    differs = first.view(words) != second.view(words)  # -0 and 0 differ, equal NaN do not
    place = np.unravel_index(int(np.argmax(differs)), first.shape)
    largest = np.max(np.abs(first[differs].astype(np.float64) - second[differs].astype(np.float64)))
    return (
        f"{int(differs.sum())} of {first.size} elements differ, first at [{', '.join(map(str, place))}]: {label} "
        f"{first[place]!s}, {label_of_other} {second[place]!s}; the largest difference is {largest:.3g}"
    )


def check_bounds(name: str) -> None:
    """Check that recipes accept every bound of every parameter, and nothing beyond."""
    with models(name) as recipe:
        for parameter, inside, outside in _parameter_bounds(METHODS[name]):
            for value in inside:
                problems = plan({**recipe, "parameters": {parameter: value}}).problems
                assert not problems, f"{name}: {parameter} = {value!r} is refused: {problems}"
            for value in outside:
                is_refused = False
                try:
                    plan({**recipe, "parameters": {parameter: value}})
                except RecipeError:
                    is_refused = True
                assert is_refused, f"{name}: {parameter} = {value!r} is not refused"


def _parameter_bounds(method: Method) -> Iterator[tuple[str, list[Any], list[Any]]]:
    schema = method.parameters.model_json_schema()["properties"]
    for name, field in schema.items():
        inside, outside = [field["default"]], [["nonsense"], {"nobody": 1}]
        for key, sign in (("minimum", -1), ("maximum", 1)):
            if key in field:
                inside, outside = [*inside, field[key]], [*outside, field[key] + sign]
        for key in ("exclusiveMinimum", "exclusiveMaximum"):
            outside += [field[key]] if key in field else []
        yield name, inside, outside


# --- models ----------------------------------------------------------------------------------------------------------


@contextmanager
def models(method: str, dtype: str = "BF16", *, shards: int = 1) -> Iterator[dict[str, Any]]:
    """Write a small base and as many agents as the method takes, up to three, to a temporary folder; yield their
    recipe.

    Args:
        method: the method's name.
        dtype: the dtype of all models.
        shards: the number of files of each model.
    """
    base, agents = _test_values(METHODS[method])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model, tensors in {"base": base, **agents}.items():
            _write_checkpoint(folder / model, tensors, dtype, shards)
        recipe: dict[str, Any] = {"method": method, "base": str(folder / "base")}
        recipe["agents"] = {agent: str(folder / agent) for agent in agents}
        if METHODS[method].needs_importance:
            for agent in agents:
                importance = {tensor: np.abs(values) for tensor, values in agents[agent].items()}
                _write_checkpoint(folder / f"{agent}-importance", importance, "F32", 1)
                recipe["agents"][agent] = {
                    "model": str(folder / agent),
                    "importance": str(folder / f"{agent}-importance"),
                }
        yield recipe


def _test_values(method: Method) -> tuple[dict[str, Values], dict[str, dict[str, Values]]]:
    draw = np.random.default_rng(1234)
    base = {tensor: draw.normal(0, 0.02, shape).astype(np.float32) for tensor, shape in _SHAPES.items()}
    agents: dict[str, dict[str, Values]] = {}
    for agent, density in list(_AGENTS.items())[: method.most or max(method.fewest, len(_AGENTS))]:
        agents[agent] = {}
        for tensor, values in base.items():
            change = np.where(draw.random(values.shape) < density, draw.normal(0, 0.01, values.shape), 0)
            agents[agent][tensor] = (values + change).astype(np.float32)
    return base, agents


def _write_checkpoint(folder: Path, tensors: Mapping[str, Values], dtype: str, shards: int) -> None:
    """Write a checkpoint, with its tensors distributed over its files."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "test"}))
    files = [f"model-{place + 1:05}-of-{shards:05}.safetensors" for place in range(shards)]
    where = {tensor: files[place % shards] for place, tensor in enumerate(tensors)}
    for file in files:
        words_by_tensor = {
            tensor: _convert_to_dtype(tensors[tensor], dtype) for tensor in tensors if where[tensor] == file
        }
        entries = [(tensor, dtype, words.shape, words.nbytes) for tensor, words in words_by_tensor.items()]
        header = encode_header(entries, {"format": "pt"})
        (folder / file).write_bytes(header + b"".join(words.tobytes() for words in words_by_tensor.values()))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def _convert_to_dtype(values: Values, dtype: str) -> Values:
    """Convert numbers to their form in a file; bfloat16 is truncated, not rounded, which suffices for tests."""
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(_WORDS[dtype])


def merged(recipe: Mapping[str, object], *, block: int | None = None, workers: int = 2) -> dict[str, Values]:
    """Merge, and return the tensors by name; bfloat16 as uint16.

    Args:
        recipe: the recipe as a mapping.
        block: the number of elements that a worker processes at a time, however small.
        workers: the number of threads.
    """
    tensors: dict[str, Values] = {}

    def take(tensor: MergedTensor) -> None:
        tensors[tensor.name] = tensor.data.view(_WORDS[tensor.dtype]).reshape(tensor.shape).copy()

    plan = make_plan(make_points(open_recipe(recipe)), in_memory=True)
    if block is not None:
        plan = replace(plan, resources=replace(plan.resources, block_elements=block))
    execute(plan, ThreadExecutor(workers), on_tensor=take)
    return tensors
