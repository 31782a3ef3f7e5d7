"""Every consumer of a recipe opens the same models. The module that opens is imported by one other (pyproject.toml)."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import ramerge
from ramerge.core.planning.headers import read_headers
from ramerge.core.planning.inputs import open_recipe
from ramerge.core.recipe.document import Document
from tests.checkpoints import Tensors, read_checkpoint, write_simple
from tests.messages import Messages

LINKS = ramerge.Options(allow_outside_links=True)


def bits(tensors: Tensors) -> dict[str, tuple[str, bytes]]:
    return {name: (tensor.dtype, tensor.bits.tobytes()) for name, tensor in tensors.items()}


def test_filters_of_mergekit_read_linked_bases(tmp_path: Path) -> None:
    """Rule: options are part of a recipe before it is translated."""
    write_simple(tmp_path, {"code": 0.1})
    (tmp_path / "linked").mkdir()
    for file in (tmp_path / "base").iterdir():
        (tmp_path / "linked" / file.name).symlink_to(file)
    name = next(iter(read_checkpoint(tmp_path / "base")))
    recipe = {
        "merge_method": "ties",
        "base_model": str(tmp_path / "linked"),
        "models": [{"model": str(tmp_path / "code"), "parameters": {"weight": 1}}],
        "parameters": {"density": [{"filter": name, "value": 0.5}, {"value": 1}]},
    }
    with pytest.raises(ramerge.RamergeError, match="allow_outside_links"):
        ramerge.plan(recipe)
    assert not ramerge.plan(recipe, options=LINKS).problems
    assert open_recipe(recipe, LINKS).stated("allow") == {"outside_links": True}


def test_headers_are_those_of_the_plan(tmp_path: Path, messages: Messages) -> None:
    """Rule: `read_headers` gets its models from where plans do, soups and `allow` included."""
    write_simple(tmp_path, {"one": 0.1, "two": 0.2})
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    unknown = {**config, "quantization_config": {"quant_method": "of tomorrow"}}
    (tmp_path / "base" / "config.json").write_text(json.dumps(unknown))
    values = {
        "base": "base",
        "agents": {"code": {"soup": {"agents": {"one": "one", "two": "two"}}}},
        "allow": {"config": ["quantization_config"]},
    }
    base, code = read_headers(Document(values, folder=tmp_path))
    assert base.problems == code.problems == () and code.tensors == base.tensors
    assert not ramerge.plan(Document(values, folder=tmp_path)).problems
    (refused, _) = read_headers(Document({**values, "allow": {}}, folder=tmp_path))
    messages.check(refused.problems[0])


def test_deltas_of_allowed_configurations(tmp_path: Path, messages: Messages) -> None:
    """Rule: deltas open their models by a recipe, so `allow` says the same as in merges."""
    write_simple(tmp_path, {"code": 0.1})
    for name in ("base", "code"):
        path = tmp_path / name / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": {"quant_method": "new"}}))
    base, code, out = (tmp_path / name for name in ("base", "code", "out"))
    with messages.raises(ramerge.CheckpointError):
        ramerge.delta(base, code, out)
    allow = {"config": ["quantization_config"]}
    assert ramerge.delta(base, code, out, allow=allow).changed
    ramerge.apply(base, out, tmp_path / "again", allow=allow)
    assert bits(read_checkpoint(tmp_path / "again")) == bits(read_checkpoint(code))
    with messages.raises(ramerge.RecipeError):
        ramerge.delta(base, code, tmp_path / "other", allow={"extra_tensors": True})


def test_no_function_reaches_for_the_package() -> None:
    """Rule: what lies below a feature gets its functions by entry point, where import rules see them."""
    source = Path(ramerge.__file__).parent
    inside = [
        f"{path.relative_to(source)}:{node.lineno}"
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for each in ast.walk(node)
        if isinstance(each, ast.Import) and any(one.name == "ramerge" for one in each.names)
    ]
    bare = [path for path in (source / "core").rglob("*.py") if re.search(r"^import ramerge", path.read_text(), re.M)]
    assert not inside and not bare


def test_allow_of_deltas_is_checked_first(tmp_path: Path, messages: Messages) -> None:
    write_simple(tmp_path, {"code": 0.1})
    with pytest.raises(ramerge.RecipeError, match=r"allow.*outside_link"):
        ramerge.delta(tmp_path / "base", tmp_path / "code", tmp_path / "out", allow={"outside_link": True})
    with pytest.raises(ramerge.RecipeError, match="allow"):
        ramerge.delta(tmp_path / "base", tmp_path / "code", tmp_path / "out", allow=True)  # type: ignore[arg-type]
    with messages.raises(ramerge.RecipeError):
        ramerge.sweep({"base": "b", "agents": {"a": "a"}}, tmp_path / "s", vary={"parameters.r": 0.1})  # type: ignore[dict-item]


def test_a_base_that_is_missing_is_said_once(tmp_path: Path, messages: Messages) -> None:
    write_simple(tmp_path, {"code": 0.1})
    ramerge.delta(tmp_path / "base", tmp_path / "code", tmp_path / "delta")
    with messages.raises(ramerge.CheckpointError) as caught:
        ramerge.apply(tmp_path / "nosuch", tmp_path / "delta", tmp_path / "out")
    assert len(caught.value.problems) == 1
    with messages.raises(ramerge.PlanError):
        ramerge.convert(tmp_path / "delta", tmp_path / "out")


def test_linked_folders_are_named(tmp_path: Path) -> None:
    write_simple(tmp_path, {"code": 0.1})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "code" / "extra").symlink_to(tmp_path / "elsewhere")
    plan = ramerge.plan({"method": "passthrough", "agents": {"code": str(tmp_path / "code")}}, tmp_path / "out")
    assert any("'extra/'" in note and "not copied" in note for note in plan.notes), plan.notes
