"""Importances, the diagonal of the Fisher information, against one plain autograd loop a prompt."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ramerge
from ramerge.deltas.run import delta
from tests.messages import Messages

pytestmark = [
    pytest.mark.full,  # torch
    pytest.mark.needs("torch", "transformers"),
]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: E402

from ramerge.calibration.exchanges import Exchange, read_exchanges  # noqa: E402
from ramerge.calibration.live import quiet  # noqa: E402
from tests.commands import ramerge as command  # noqa: E402
from tests.tiers import some  # noqa: E402

WORDS = ("<unk>", "<s>", "</s>", "user", "assistant", *(f"w{place}" for place in range(8)))
IDS = {word: place for place, word in enumerate(WORDS)}
CHAT = (
    "<s> {% for m in messages %}{{ m.role }} {{ m.content }} </s> after {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)
LINES = [
    {"prompt": "w1 w2 w3", "reply": "w4 w5"},
    {"prompt": "w2", "reply": "w2 w2 w7 w6", "reward": 1},
    {"prompt": "w0 w5 w5 w5 w1", "reply": "w3"},
]
LLAMA = {
    "vocab_size": len(WORDS),
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {
    "vocab_size": len(WORDS),
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 32,
    "initializer_range": 0.5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


# --- tiny models ------------------------------------------------------------------------------------------------------


def tokenizer(**options: Any) -> Any:
    made = Tokenizer(models.WordLevel(IDS, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # one in front and one behind, of which only the first is wanted
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", IDS["<s>"]), ("</s>", IDS["</s>"])]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=CHAT, **options
    )


def save(folder: Path, model: Any) -> Path:
    with quiet():
        model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def llama(folder: Path, **options: Any) -> Path:
    torch.manual_seed(7)
    return save(folder, transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA | options)))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The models are so small that a second thread costs more than it gives, much more on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer, of everything that Llama has."""
    return llama(tmp_path_factory.mktemp("model") / "llama")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Prompts with replies."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def importances(model: Any, tasks: Path, out: Path, base: Path | None = None, **changed: Any) -> Path:
    """The folder of the importances of an agent."""
    settings = ramerge.CalibrationSettings(gather="importance", device="cpu", **changed)
    recipe = {"base": str(base or model), "agents": {"a": str(model)}, "prompts": {"a": str(tasks)}}
    record = ramerge.calibrate(recipe, out, settings=settings)["a"]
    assert (record.rows, record.layers) == (0, 0) and record.importances
    return out / "a/importance"


def stored(folder: Path) -> dict[str, NDArray[np.float32]]:
    found = {name: tensor.numpy() for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}
    return found


def reference(folder: Path, exchanges: Sequence[Exchange]) -> dict[str, NDArray[np.float64]]:
    """The Fisher information in float64, one `autograd.grad` a prompt, under all names of the model's parameters."""
    with quiet():
        net = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").double().eval()
    if hasattr(net, "set_experts_implementation"):
        net.set_experts_implementation("eager")  # the others cannot compute in float64
    named = dict(net.named_parameters(remove_duplicate=False))
    sums = {name: torch.zeros_like(parameter) for name, parameter in named.items()}
    for each in exchanges:
        probabilities = net(torch.tensor([each.ids])).logits[0].log_softmax(-1)
        value = sum(probabilities[place - 1, each.ids[place]] for place in range(each.start, len(each.ids)))
        unique = list({id(parameter): parameter for parameter in named.values()}.values())
        gradients = torch.autograd.grad(value, unique)
        by_id = {id(parameter): gradient for parameter, gradient in zip(unique, gradients, strict=True)}
        for name, parameter in named.items():
            sums[name] += by_id[id(parameter)] ** 2
    return {name: (total / len(exchanges)).detach().numpy() for name, total in sums.items()}


def assert_close(actual: NDArray[np.float32], expected: NDArray[np.float64]) -> None:
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-5 * float(np.abs(expected).max()))


def expected_of(model: Path, out: Path) -> dict[str, NDArray[np.float64]]:
    """The reference on what was gathered."""
    return reference(model, read_exchanges(out / "a/replies.jsonl"))


def test_every_parameter_is_what_autograd_says(model: Path, tasks: Path, tmp_path: Path) -> None:
    found = stored(importances(model, tasks, tmp_path / "out"))
    expected = expected_of(model, tmp_path / "out")
    assert found.keys() == expected.keys() == load_file(model / "model.safetensors").keys()
    for name, values in expected.items():
        assert values.any()
        assert_close(found[name], values)


def test_buffers_count_0(tasks: Path, tmp_path: Path) -> None:
    config = transformers.MiniMaxM2Config(**LLAMA, head_dim=8, num_local_experts=4, num_experts_per_tok=4)
    torch.manual_seed(7)
    model = save(tmp_path / "model", transformers.MiniMaxM2ForCausalLM(config))
    found = stored(importances(model, tasks, tmp_path / "out"))
    assert {name for name, values in found.items() if not values.any()} == {
        "model.layers.0.block_sparse_moe.e_score_correction_bias"
    }


def test_tied_embeddings_are_written_as_stored(tasks: Path, tmp_path: Path) -> None:
    tied = llama(tmp_path / "tied", tie_word_embeddings=True)
    found = stored(importances(tied, tasks, tmp_path / "out"))
    expected = expected_of(tied, tmp_path / "out")
    assert found.keys() == load_file(tied / "model.safetensors").keys()
    for name, values in found.items():
        assert_close(values, expected[name])


def test_a_checkpoint_without_the_heads_prefix(tasks: Path, tmp_path: Path) -> None:
    torch.manual_seed(7)
    bare = save(tmp_path / "gpt2", transformers.GPT2Model(transformers.GPT2Config(**GPT2)))
    found = stored(importances(bare, tasks, tmp_path / "out"))
    expected = expected_of(bare, tmp_path / "out")
    assert found.keys() == load_file(bare / "model.safetensors").keys()
    for name, values in found.items():
        assert_close(values, expected[f"transformer.{name}"])


def test_fused_experts_are_taken_apart_again(tasks: Path, tmp_path: Path) -> None:
    torch.manual_seed(7)
    config = transformers.MixtralConfig(**LLAMA | {"num_local_experts": 3, "num_experts_per_tok": 2})
    folder = save(tmp_path / "mixtral", transformers.MixtralForCausalLM(config))
    if int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("nothing is fused before version 5")
    found = stored(importances(folder, tasks, tmp_path / "out"))
    expected = expected_of(folder, tmp_path / "out")
    assert found.keys() == load_file(folder / "model.safetensors").keys()
    stem, fused = "model.layers.0.block_sparse_moe", "model.layers.0.mlp.experts"
    assert_close(found[f"{stem}.gate.weight"], expected["model.layers.0.mlp.gate.weight"])
    for expert in range(3):
        gate_up = expected[f"{fused}.gate_up_proj"][expert]
        assert_close(found[f"{stem}.experts.{expert}.w1.weight"], gate_up[:16])
        assert_close(found[f"{stem}.experts.{expert}.w3.weight"], gate_up[16:])
        assert_close(found[f"{stem}.experts.{expert}.w2.weight"], expected[f"{fused}.down_proj"][expert])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-4), ("bfloat16", 0.1)])
def test_other_dtypes_compute_the_same_thing(
    model: Path, tasks: Path, tmp_path: Path, dtype: str, tolerance: float
) -> None:
    found = stored(importances(model, tasks, tmp_path / "out", dtype=dtype))
    for name, values in expected_of(model, tmp_path / "out").items():
        assert float(found[name].sum()) == pytest.approx(float(values.sum()), rel=tolerance)


def test_an_agent_that_is_given_as_a_delta(model: Path, tasks: Path, tmp_path: Path) -> None:
    moved = {name: tensor * 1.5 for name, tensor in load_file(model / "model.safetensors").items()}
    agent = llama(tmp_path / "agent")
    save_file(moved, agent / "model.safetensors", {"format": "pt"})
    delta(model, agent, tmp_path / "delta")
    found = stored(importances(f"{model}+{tmp_path / 'delta'}", tasks, tmp_path / "out", model))
    whole = stored(importances(agent, tasks, tmp_path / "whole", model))
    assert found.keys() == whole.keys()
    assert all(values.tobytes() == whole[name].tobytes() for name, values in found.items())


def test_importances_are_of_agents_inputs_of_base(model: Path, tasks: Path, tmp_path: Path) -> None:
    agent = llama(tmp_path / "agent")
    moved = {name: tensor * 1.5 for name, tensor in load_file(model / "model.safetensors").items()}
    save_file(moved, agent / "model.safetensors", {"format": "pt"})
    alone = stored(importances(agent, tasks, tmp_path / "alone", model))
    settings = ramerge.CalibrationSettings(gather="all", source="base", device="cpu")
    recipe = {"base": str(model), "agents": {"a": str(agent)}, "prompts": {"a": str(tasks)}}
    ramerge.calibrate(recipe, tmp_path / "all", settings=settings)
    found = stored(tmp_path / "all/a/importance")
    assert all(values.tobytes() == alone[name].tobytes() for name, values in found.items())


def test_damaged_weights_are_named(model: Path, tasks: Path, tmp_path: Path, messages: Messages) -> None:
    bad = llama(tmp_path / "bad")
    tensors = load_file(bad / "model.safetensors")
    tensors["model.norm.weight"][3] = 3e38
    save_file(tensors, bad / "model.safetensors", {"format": "pt"})
    with messages.raises(ramerge.WeightsError):
        importances(bad, tasks, tmp_path / "out", model)
    assert not (tmp_path / "out/a").exists()


@pytest.mark.parametrize("folder", some(["a", "a/importance"], full=["a"]))
def test_from_the_command_line_to_a_merge(folder: str, model: Path, tasks: Path, tmp_path: Path) -> None:
    agent = llama(tmp_path / "agent")
    base = load_file(model / "model.safetensors")
    save_file({name: tensor * 1.5 for name, tensor in base.items()}, agent / "model.safetensors", {"format": "pt"})
    models = ["--base", str(model), "--agent", f"a={agent}"]
    made = command("calibrate", "--gather", "all", *models, "--prompts", f"a={tasks}", str(tmp_path / "c"))
    assert made.returncode == 0, made.stderr
    assert f"--importance a={tmp_path}/c/a " in made.stdout and "--inputs a=" in made.stdout
    given = ["--importance", f"a={tmp_path}/c/{folder}"]
    merged = command("merge", "--method", "fisher", *models, *given, str(tmp_path / "out"))
    assert merged.returncode == 0, merged.stderr
    weights, found = load_file(tmp_path / "out/model.safetensors"), stored(tmp_path / "c/a/importance")
    for name, weight in weights.items():
        expected = torch.where(torch.from_numpy(found[name]) > 0, base[name] * 1.5, base[name])
        torch.testing.assert_close(weight, expected)
    by_prompts = command("merge", "--method", "fisher", *models, "--prompts", f"a={tasks}", str(tmp_path / "again"))
    assert by_prompts.returncode == 0, by_prompts.stderr
