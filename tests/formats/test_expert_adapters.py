"""Adapters on experts in the dialects of trainers, on bases in all layouts. Sums of these numbers are exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ramerge
from ramerge.core.formats.open import open_checkpoint
from tests.checkpoints import floats, read_checkpoint, write_checkpoint
from tests.formats.test_lora import EXPERTS, problems_of, write_adapter
from tests.reference import Stored
from tests.tensors.test_origins import read

Matrices = dict[str, np.ndarray]
COUNT, INNER, HIDDEN, RANK = 3, 5, 8, 4
SHAPES = {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}
SHORT = {"gate": "w1", "up": "w3", "down": "w2"}


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 9, shape) / 64


def experts() -> Matrices:
    """A matrix for each expert, by projection."""
    return {kind: numbers(place, COUNT, *shape) for place, (kind, shape) in enumerate(SHAPES.items())}


def in_one(model: Matrices, *, turned: bool = False, interleaved: bool = False) -> Matrices:
    gate_up = np.concatenate([model["gate"], model["up"]], 1)
    if interleaved:
        gate_up = np.stack([model["gate"], model["up"]], 2).reshape(gate_up.shape)
    found = {f"{EXPERTS}.gate_up_proj": gate_up, f"{EXPERTS}.down_proj": model["down"]}
    return {name: values.swapaxes(1, 2) if turned else values for name, values in found.items()}


def each(model: Matrices, names: dict[str, str] | None = None) -> Matrices:
    names = names or {kind: f"{kind}_proj" for kind in SHAPES}
    return {
        f"{EXPERTS}.{expert}.{names[kind]}.weight": matrix
        for kind, matrices in model.items()
        for expert, matrix in enumerate(matrices)
    }


BASES = {
    "in one": (in_one, "qwen3_moe"),
    "in one, turned": (lambda model: in_one(model, turned=True), "llama4_text"),
    "in one, turned, gates take turns": (lambda model: in_one(model, turned=True, interleaved=True), "gpt_oss"),
    "each its own": (each, "qwen3_moe"),
    "each its own, of Mixtral": (lambda model: each(model, SHORT), "mixtral"),
    "a tensor for each projection": (
        lambda model: {f"{EXPERTS}.{kind}_proj": matrices for kind, matrices in model.items()},
        "qwen3_moe",
    ),
}


def pairs(*front: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {
        kind: (numbers(10 + place, *front, RANK, shape[1]), numbers(20 + place, *front, shape[0], RANK))
        for place, (kind, shape) in enumerate(SHAPES.items())
    }


def tensors_of(modules: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, Stored]:
    return {
        f"base_model.model.{EXPERTS}.{module}.lora_{letter}.weight": floats(factor, "F32")
        for module, pair in modules.items()
        for letter, factor in zip("AB", pair, strict=True)
    }


def single(*numbered: int, names: dict[str, str] | None = None, form: str = "{expert}.{name}"):
    """Modules of single experts, and the update of all."""
    names = names or {kind: f"{kind}_proj" for kind in SHAPES}
    every, modules, update = pairs(COUNT), {}, {}
    for kind, (a, b) in every.items():
        update[kind] = np.zeros((COUNT, *SHAPES[kind]))
        for expert in numbered:
            modules[form.format(expert=expert, name=names[kind])] = a[expert], b[expert]
            update[kind][expert] = b[expert] @ a[expert]
    return modules, update


def together(names: dict[str, str], *, one_a: bool = False, one_b: bool = False):
    modules, update = {}, {}
    for kind, (a, b) in pairs(COUNT).items():
        a, b = a[:1] if one_a else a, b[:1] if one_b else b
        modules[names[kind]] = a, b
        update[kind] = np.broadcast_to(b @ a, (COUNT, *SHAPES[kind]))
    return modules, update


def shared():
    modules, update = together(SHORT, one_a=True, one_b=True)
    return {name: (a[0], b[0]) for name, (a, b) in modules.items()}, update


LONG = {kind: f"{kind}_proj" for kind in SHAPES}
DIALECTS = {
    "each its own": lambda: single(0, 1, 2),
    "each its own, w1": lambda: single(0, 1, 2, names=SHORT),
    "one expert only": lambda: single(1),
    "lists of projections": lambda: single(0, 1, 2, form="{name}s.{expert}"),
    "SkyRL": lambda: together(LONG),
    "Tinker": lambda: together(SHORT),
    "Tinker, one A": lambda: together(SHORT, one_a=True),
    "Tinker, one B": lambda: together(SHORT, one_b=True),
    "one pair for all": shared,
}


@pytest.mark.parametrize("base", list(BASES))
@pytest.mark.parametrize("dialect", list(DIALECTS))
def test_dialects(dialect: str, base: str, tmp_path: Path) -> None:
    layout, kind = BASES[base]
    modules, update = DIALECTS[dialect]()
    model = experts()
    start = {name: floats(values, "F32") for name, values in layout(model).items()}
    write_checkpoint(tmp_path / "base", start, config={"model_type": kind})
    wanted = layout({kind: matrices + 2 * update[kind] for kind, matrices in model.items()})
    ramerge.convert(f"{tmp_path / 'base'}+{write_adapter(tmp_path / 'x', tensors_of(modules))}", tmp_path / "out")
    found = read_checkpoint(tmp_path / "out")
    assert found.keys() == wanted.keys()
    assert all(found[name].numbers(np.float32).tolist() == values.tolist() for name, values in wanted.items())


@pytest.mark.parametrize("block", [64, 88, 512])
@pytest.mark.parametrize("base", ["in one", "in one, turned, gates take turns"])
def test_blocks_that_cut_rows_change_nothing(base: str, block: int, tmp_path: Path) -> None:
    """A region's rows and columns are added to blocks that begin and end anywhere."""
    layout, kind = BASES[base]
    modules, update = together(SHORT)
    model = experts()
    write_checkpoint(
        tmp_path / "base",
        {name: floats(values, "F32") for name, values in layout(model).items()},
        config={"model_type": kind},
    )
    folder = write_adapter(tmp_path / "x", tensors_of(modules))
    agent = open_checkpoint(folder, base=open_checkpoint(tmp_path / "base"))
    tensor = agent.tensors[f"{EXPERTS}.gate_up_proj"]
    wanted = layout({kind: matrices + 2 * update[kind] for kind, matrices in model.items()})[tensor.name]
    step = block // 4
    starts = range(0, tensor.elements, step)
    parts = [read(tensor, start, min(start + step, tensor.elements)).view(np.float32) for start in starts]
    assert np.concatenate(parts).tolist() == wanted.reshape(-1).tolist()


def test_gate_up_list_is_gpt_oss_parameter(tmp_path: Path) -> None:
    """unsloth has a linear layer for each expert, whose rows take turns as the columns of the parameter do."""
    model = experts()
    layout, kind = BASES["in one, turned, gates take turns"]
    start = layout(model)
    write_checkpoint(
        tmp_path / "base", {name: floats(values, "F32") for name, values in start.items()}, config={"model_type": kind}
    )
    a, b = numbers(1, COUNT, RANK, HIDDEN), numbers(2, COUNT, 2 * INNER, RANK)
    modules = {f"gate_up_projs.{expert}": (a[expert], b[expert]) for expert in range(COUNT)}
    ramerge.convert(f"{tmp_path / 'base'}+{write_adapter(tmp_path / 'x', tensors_of(modules))}", tmp_path / "out")
    name = f"{EXPERTS}.gate_up_proj"
    found = read_checkpoint(tmp_path / "out")[name].numbers(np.float32)
    assert found.tolist() == (start[name] + 2 * (b @ a).swapaxes(1, 2)).tolist()


def test_ungated_experts_have_up_in_w1(tmp_path: Path) -> None:
    model = {kind: matrices for kind, matrices in experts().items() if kind != "gate"}
    write_checkpoint(tmp_path / "base", {name: floats(values, "F32") for name, values in each(model).items()})
    modules, update = together(SHORT)
    modules["w1"], update["up"] = modules["w3"], update["up"]
    modules["w3"] = np.zeros(0), np.zeros(0)
    ramerge.convert(f"{tmp_path / 'base'}+{write_adapter(tmp_path / 'x', tensors_of(modules))}", tmp_path / "out")
    wanted = each({kind: matrices + 2 * update[kind] for kind, matrices in model.items()})
    found = read_checkpoint(tmp_path / "out")
    assert all(found[name].numbers(np.float32).tolist() == values.tolist() for name, values in wanted.items())


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ({"7.gate_proj": (numbers(1, 4, HIDDEN), numbers(2, INNER, 4))}, "changes expert 7, and the base has 3"),
        ({"w1": (numbers(1, 2, 4, HIDDEN), numbers(2, 2, INNER, 4))}, "and the base has 3 experts"),
        ({"w1": (numbers(1, 12, HIDDEN), numbers(2, INNER, 12))}, "in an order that is not said"),
        ({"w1": (numbers(1, 3, 4, HIDDEN), numbers(2, 3, INNER, 2))}, "no factors of a product for each expert"),
        ({"w1": (np.zeros(0), np.zeros(0))}, "A has the shape [0]"),
        (
            {
                "w1": (numbers(1, 3, 4, HIDDEN), numbers(2, 3, INNER, 4)),
                "0.w1": (numbers(1, 4, HIDDEN), numbers(2, INNER, 4)),
            },
            "only one of them can be meant",
        ),
        (
            {
                "0.w1": (numbers(1, 4, HIDDEN), numbers(2, INNER, 4)),
                "1.w1": (numbers(1, 2, HIDDEN), numbers(2, INNER, 2)),
            },
            "other shapes, ranks or dtypes for some experts",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    modules: dict[str, tuple[np.ndarray, np.ndarray]], words: str, tmp_path: Path
) -> None:
    start = {name: floats(values, "F32") for name, values in in_one(experts()).items()}
    write_checkpoint(tmp_path / "base", start, config={"model_type": "qwen3_moe"})
    assert any(words in problem for problem in problems_of(tmp_path, tensors_of(modules)))


@pytest.mark.parametrize(
    ("name", "replaced_by", "words"),
    [
        ("1.gate_proj", None, f"the base lacks '{EXPERTS}.1.gate_proj.weight', which other experts have"),
        ("1.up_proj", None, f"the base lacks '{EXPERTS}.1.up_proj.weight', which other experts have"),
        ("2.gate_proj", None, f"the base lacks '{EXPERTS}.2.gate_proj.weight', which other experts have"),
        (
            "2.up_proj",
            (INNER, HIDDEN, 1),
            f"'{EXPERTS}.2.up_proj.weight' has the shape [5, 8, 1], and must be a matrix",
        ),
    ],
)
@pytest.mark.parametrize("named", ["by module", "by parameter"])
def test_a_base_with_incomplete_experts_is_refused(
    named: str, name: str, replaced_by: tuple[int, ...] | None, words: str, tmp_path: Path
) -> None:
    """Experts behind the one that lacks something would be left as they are."""
    start = {key: floats(values, "F32") for key, values in each(experts()).items()}
    del start[f"{EXPERTS}.{name}.weight"]
    if replaced_by is not None:
        start[f"{EXPERTS}.{name}.weight"] = floats(numbers(5, *replaced_by), "F32")
    write_checkpoint(tmp_path / "base", start, config={"model_type": "qwen3_moe"})
    # one pair of factors for all experts, which fits any number of them
    a, b = numbers(1, RANK, HIDDEN), numbers(2, 2 * INNER, RANK)
    if named == "by module":
        found = problems_of(tmp_path, tensors_of({"gate_up_proj": (a[None], b[None])}))
    else:
        modules = {"base_layer": (np.tile(a, (COUNT, 1)), np.tile(b, COUNT))}
        found = problems_of(
            tmp_path,
            {key.replace(".base_layer", ""): factor for key, factor in tensors_of(modules).items()},
            target_parameters=["experts.gate_up_proj"],
        )
    assert any(words in problem for problem in found)
