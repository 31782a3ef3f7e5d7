"""Models that do not fit a device, and what a calibration says of it before it loads them."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ramerge
from ramerge.demo.run import AGENTS
from tests.commands import ramerge as command
from tests.messages import Messages

pytestmark = [
    pytest.mark.full,  # torch
    pytest.mark.needs("torch", "transformers"),
]
torch = pytest.importorskip("torch")

from ramerge.calibration import estimate  # noqa: E402
from ramerge.calibration.calibrate import estimate_calibration  # noqa: E402
from ramerge.calibration.live import LiveModel  # noqa: E402
from ramerge.calibration.live_base import LiveBase  # noqa: E402
from ramerge.calibration.offload import Offloaded  # noqa: E402

SETTINGS = ramerge.CalibrationSettings(count=4, max_new=8, rows=7, device="cpu", hold_out=True)
MODELS = {"add": str(AGENTS / "coder"), "sort": str(AGENTS / "memory")}


@pytest.fixture
def recipe(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{number}+586="}) + "\n" for number in (347, 12, 999, 40)))
    return {"base": str(AGENTS / "base"), "agents": MODELS, "prompts": dict.fromkeys(MODELS, str(path))}


def models(recipe: dict[str, Any]) -> ramerge.Recipe:
    return ramerge.Recipe(method="uniform", base=recipe["base"], agents=recipe["agents"])


@pytest.mark.parametrize("memory", ["1KB", "400KB"])
def test_weights_that_stay_in_main_memory_change_nothing(memory: str, recipe: dict[str, Any], tmp_path: Path) -> None:
    offloaded = replace(SETTINGS, device_memory=memory)
    whole = ramerge.calibrate(recipe, tmp_path / "whole", settings=SETTINGS)
    found = ramerge.calibrate(recipe, tmp_path / "some", settings=offloaded)
    for name, record in whole.items():
        assert record.layers == 28
        assert found[name].digests == record.digests
    assert ramerge.calibrate(recipe, tmp_path / "whole", settings=offloaded) == whole, "it is the same calibration"
    left, right = (
        ramerge.agreement(recipe["base"], MODELS["add"], tmp_path / "whole", settings=each)
        for each in (SETTINGS, offloaded)
    )
    assert left == right


def test_weights_are_copied_for_their_module_alone(recipe: dict[str, Any]) -> None:
    with LiveBase(models(recipe), replace(SETTINGS, device_memory="400KB"), ramerge.Options()) as base:
        live = base.live
        assert live.offloaded is not None
        size = sum(one.nbytes for one in live.model.parameters())
        assert size - 400_000 <= live.offloaded.bytes < size
        homes = {name: one.data_ptr() for name, one in live.model.named_parameters()}
        seen = []
        away = live.model.get_submodule("model.layers.3.mlp.down_proj")
        resident = live.model.get_submodule("model.embed_tokens")
        for module in (away, resident):
            module.register_forward_hook(
                lambda module, *_: seen.append(
                    (module.weight.data_ptr(), live.offloaded.home(module.weight).data_ptr())
                ),
                prepend=True,
            )
        before = live.negative_log_likelihoods([1, 2, 3, 4], 2)
        (embedding, _), (copy, home) = seen
        assert embedding == homes["model.embed_tokens.weight"]
        assert home == homes["model.layers.3.mlp.down_proj.weight"] != copy
        assert {name: one.data_ptr() for name, one in live.model.named_parameters()} == homes
        base.put_agent("sort")
        assert not torch.equal(live.negative_log_likelihoods([1, 2, 3, 4], 2), before)


def test_error_in_a_layer_leaves_weights_in_place(recipe: dict[str, Any], messages: Messages) -> None:
    with LiveBase(models(recipe), replace(SETTINGS, device_memory="1KB"), ramerge.Options()) as base:
        model = base.live.model
        homes = [one.data_ptr() for one in model.parameters()]

        def fail(*_: Any) -> None:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

        hook = model.get_submodule("model.layers.1.mlp.up_proj").register_forward_pre_hook(fail)
        with messages.raises(ramerge.PlanError):
            base.live.run_layers([1, 2, 3])
        assert [one.data_ptr() for one in model.parameters()] == homes
        hook.remove()
        base.live.run_layers([1, 2, 3])


def test_offloading_error_is_not_the_models(recipe: dict[str, Any]) -> None:
    with LiveBase(models(recipe), replace(SETTINGS, device_memory="1KB"), ramerge.Options()) as base:
        base.live.offloaded._device = "nowhere"
        with pytest.raises(RuntimeError, match="nowhere"):
            base.live.run_layers([1, 2, 3])


def test_importances_need_the_whole_model_on_the_device(
    recipe: dict[str, Any], tmp_path: Path, messages: Messages
) -> None:
    settings = replace(SETTINGS, device_memory="400KB", gather="importance")
    with messages.raises(ramerge.PlanError):
        ramerge.calibrate(recipe, tmp_path / "out", settings=settings)
    assert not (tmp_path / "out").exists()


def test_memory_is_stated_before_loading(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = ramerge.calibrate(recipe, tmp_path / "out", settings=SETTINGS)["add"]
    rows = (tmp_path / "out/add/inputs.safetensors").stat().st_size
    monkeypatch.setattr(LiveModel, "__init__", lambda *_: pytest.fail("loads a model"))
    found = estimate_calibration(recipe, settings=SETTINGS)
    assert (found.model_bytes, found.device_bytes, found.importance_bytes) == (4 * 372_576, 4 * 372_576, 0)
    assert record.rows == 7 and found.rows_bytes == 7 * 3840
    assert 0 < rows - found.rows_bytes < 5000  # the header, and how much rows count
    assert found.prompts == {"add": 4, "sort": 4}
    assert record.tokens <= found.tokens["add"] <= record.tokens + 4 * 8
    assert estimate_calibration(recipe, settings=replace(SETTINGS, device_memory="400KB")).device_bytes == 400_000
    assert estimate_calibration(recipe, settings=replace(SETTINGS, gather="all")).importance_bytes == 4 * 372_576


def test_a_model_that_fits_nowhere_is_refused(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setattr(estimate, "memory", lambda: 1_000_000)
    for run in (estimate_calibration, lambda *args, **how: ramerge.calibrate(*args, tmp_path / "out", **how)):
        with messages.raises(ramerge.PlanError):
            run(recipe, settings=SETTINGS)
        assert estimate_calibration(recipe, settings=replace(SETTINGS, dtype="bfloat16")).model_bytes == 2 * 372_576


@pytest.mark.parametrize(("layers", "hidden", "inner", "megabytes"), [(24, 896, 4864, 0.36), (28, 3584, 18944, 1.66)])
def test_inputs_of_half_and_seven_billion_models(layers: int, hidden: int, inner: int, megabytes: float) -> None:
    widths = dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"), hidden)
    widths |= {"mlp.gate_proj": hidden, "mlp.up_proj": hidden, "mlp.down_proj": inner}
    shapes = {f"model.layers.{n}.{name}.weight": (8, width) for n in range(layers) for name, width in widths.items()}
    shapes |= {"model.embed_tokens.weight": (9, hidden), "lm_head.weight": (9, hidden), "model.norm.weight": (hidden,)}
    tensors = [
        SimpleNamespace(name=name, base=SimpleNamespace(is_float=True, shape=shape)) for name, shape in shapes.items()
    ]
    plan: Any = SimpleNamespace(tensors=tensors)
    assert estimate.rows_bytes(plan, 1) / 1e6 == pytest.approx(megabytes, abs=0.005)


@pytest.mark.parametrize("stacked", [False, True])
def test_experts_share_a_budget(*, stacked: bool) -> None:
    """Of a model of 30B, whose experts see most tokens eight times."""
    down, up = ((128, 2048, 768), (128, 1536, 2048)) if stacked else ((2048, 768), (768, 2048))
    names = [""] if stacked else [f".{expert}" for expert in range(128)]
    shapes = {f"model.layers.{n}.mlp.experts{each}.down_proj": down for n in range(48) for each in names}
    shapes |= {f"model.layers.{n}.mlp.experts{each}.gate_up_proj": up for n in range(48) for each in names}
    tensors = [
        SimpleNamespace(name=name, base=SimpleNamespace(is_float=True, shape=shape)) for name, shape in shapes.items()
    ]
    plan: Any = SimpleNamespace(tensors=tensors)
    width = 2048 + (2048 if stacked else 768)  # which side of a stack is that of the inputs is not known
    assert estimate.rows_bytes(plan, 256) == 48 * 128 * 32 * width * 2
    assert estimate.rows_bytes(plan, 256) < 3e9


def test_from_the_command_line(recipe: dict[str, Any], tmp_path: Path) -> None:
    prompts = [word for name, path in recipe["prompts"].items() for word in ("--prompts", f"{name}={path}")]
    agents = [word for name, path in MODELS.items() for word in ("--agent", f"{name}={path}")]
    words = ["calibrate", "--dry-run", "--base", recipe["base"], *agents, *prompts, "--device", "cpu"]
    done = command(*words, str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "model       1.5 MB" in done.stdout and done.stdout.endswith("nothing was loaded (--dry-run)\n")
    assert json.loads(command(*words, "--json", str(tmp_path / "out")).stdout)["rows_bytes"] == 256 * 3840
    assert not (tmp_path / "out").exists()
    wrong = command(*words, "--device-memory", "much", str(tmp_path / "out"))
    assert wrong.returncode == 2 and "device_memory: 'much' is not a size" in wrong.stderr


@pytest.mark.parametrize(("budget", "away"), [(0, 4 * (6 + 8)), (24, 4 * 8), (1000, 0)])
def test_weights_beyond_budget_are_copied_per_pass(budget: int, away: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False), torch.nn.Linear(3, 2))
    x, own = torch.ones(1, 2), [one.data_ptr() for one in model.parameters()]
    expected = model(x)
    offloaded = Offloaded(model, torch.device("cpu"), budget)
    seen: list[int] = []
    model[1].register_forward_pre_hook(lambda module, _: seen.append(offloaded.home(module.weight[1:]).data_ptr()))
    with torch.inference_mode():
        assert torch.equal(model(x), expected)
    assert offloaded.bytes == away
    assert seen == [model[1].weight[1:].data_ptr()]  # the copy is known by the weight that it is of
    assert [one.data_ptr() for one in model.parameters()] == own
