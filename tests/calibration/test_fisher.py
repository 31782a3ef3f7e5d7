"""The diagonal Fisher information, against closed forms and against one plain autograd loop an example."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ramerge
from ramerge.calibration import estimate as importance
from ramerge.calibration import jsonl, layout
from ramerge.calibration.encode import EncodedExample, ExampleEncoder
from ramerge.calibration.estimate import fisher
from ramerge.deltas.run import delta
from ramerge.formats.open import open_checkpoint
from ramerge.foundation.errors import CheckpointError, InputError, PlanError, RecipeError, WeightsError
from ramerge.foundation.extras import install

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: E402

from ramerge.calibration import worker  # noqa: E402
from ramerge.calibration.live import quiet  # noqa: E402
from ramerge.calibration.names import check_names  # noqa: E402

WORDS = ("<unk>", "<s>", "</s>", "user", "assistant", *(f"w{place}" for place in range(8)))
IDS = {word: place for place, word in enumerate(WORDS)}
CHAT = (
    "<s> {% for m in messages %}{{ m.role }} {{ m.content }} </s> after {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)
LINES = [
    {"prompt": "w1 w2 w3", "completion": "w4 w5"},
    {"prompt": "w2", "completion": "w2 w2 w7 w6", "reward": 1},
    {"prompt": "w0 w5 w5 w5 w1", "completion": "w3"},
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


@pytest.fixture(scope="session")
def zero(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No layer: embedding, norm, head."""
    return llama(tmp_path_factory.mktemp("zero") / "llama", num_hidden_layers=0)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return jsonl_file(tmp_path / "data.jsonl", LINES)


def jsonl_file(path: Path, lines: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def changed(source: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a checkpoint whose tensors were changed."""
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def stored(folder: Path) -> dict[str, NDArray[np.float32]]:
    found = {name: tensor.numpy() for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}
    return found


# --- the reference ----------------------------------------------------------------------------------------------------


def sequence(line: dict[str, str]) -> tuple[list[int], int]:
    """Token ids, and the place of the first label."""
    context = ["<s>", *line["prompt"].split()]
    return [IDS[word] for word in (*context, *line["completion"].split())], len(context)


def reference(folder: Path, lines: Sequence[dict[str, str]]) -> dict[str, NDArray[np.float64]]:
    """The empirical Fisher in float64, one `autograd.grad` an example, under all names of the model's parameters."""
    with quiet():
        net = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").double().eval()
    if hasattr(net, "set_experts_implementation"):
        net.set_experts_implementation("eager")  # the others cannot compute in float64
    named = dict(net.named_parameters(remove_duplicate=False))
    sums = {name: torch.zeros_like(parameter) for name, parameter in named.items()}
    for line in lines:
        ids, start = sequence(line)
        probabilities = net(torch.tensor([ids])).logits[0].log_softmax(-1)
        value = sum(probabilities[place - 1, ids[place]] for place in range(start, len(ids)))
        unique = list({id(parameter): parameter for parameter in named.values()}.values())
        gradients = torch.autograd.grad(value, unique)
        by_id = {id(parameter): gradient for parameter, gradient in zip(unique, gradients, strict=True)}
        for name, parameter in named.items():
            sums[name] += by_id[id(parameter)] ** 2
    return {name: (total / len(lines)).detach().numpy() for name, total in sums.items()}


def assert_close(actual: NDArray[np.float32], expected: NDArray[np.float64]) -> None:
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-5 * float(np.abs(expected).max()))


# --- the numbers ------------------------------------------------------------------------------------------------------


def test_the_heads_fisher_is_the_closed_form(model: Path, data: Path, tmp_path: Path) -> None:
    """F[k, j] = mean over examples of (sum over labels of (1[y = k] - p_k) h_j)^2."""
    record = fisher(model, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu"))
    with quiet():
        net = transformers.AutoModelForCausalLM.from_pretrained(model).double().eval()
    head = net.lm_head.weight.detach().numpy()
    expected, likelihood, labels = np.zeros_like(head), 0.0, 0
    for line in LINES:
        ids, start = sequence(line)
        with torch.no_grad():
            hidden = net.model(torch.tensor([ids])).last_hidden_state[0, start - 1 : -1].numpy()
        logits = hidden @ head.T
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        gradient = (np.eye(len(WORDS))[ids[start:]] - p).T @ hidden
        expected += gradient**2 / len(LINES)
        likelihood += float(np.log(p[np.arange(len(p)), ids[start:]]).sum())
        labels += len(p)
    assert_close(stored(tmp_path / "out")["lm_head.weight"], expected)
    assert record.tokens == labels == 7
    assert record.mean_log_likelihood == pytest.approx(likelihood / labels, rel=1e-5)


def positions(folder: Path, words: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of a model without layers, after each word alone: what the head reads (words, 8), and p (words, vocabulary)."""
    weights = {name: tensor.double().numpy() for name, tensor in load_file(folder / "model.safetensors").items()}
    embeddings = weights["model.embed_tokens.weight"][[IDS[word] for word in words]]
    hidden = embeddings / np.sqrt((embeddings**2).mean(1, keepdims=True) + 1e-6) * weights["model.norm.weight"]
    p = np.exp(hidden @ weights["lm_head.weight"].T)
    return hidden, p / p.sum(1, keepdims=True)


def test_sampled_labels_give_the_true_fisher(zero: Path, tmp_path: Path) -> None:
    """E F[k, j] = mean over examples of h_j^2 p_k (1 - p_k), and 1[y = k] is a Bernoulli draw, with a known spread."""
    words = [f"w{place % 8}" for place in range(2000)]
    data = jsonl_file(tmp_path / "data.jsonl", [{"prompt": word, "completion": "w0"} for word in words])
    fisher(
        zero,
        data,
        tmp_path / "out",
        settings=ramerge.FisherSettings(labels="sampled", examples=len(words), device="cpu", seed=3),
    )
    hidden, p = positions(zero, words[:8])
    mean = (p * (1 - p)).T @ hidden**2 / 8
    # (1[y = k] - p)^2 is (1 - p)^2 or p^2, which are 1 - 2p apart; every word comes equally often
    variance = (p * (1 - p) * (1 - 2 * p) ** 2).T @ hidden**4 / 8
    error = np.sqrt(variance / len(words))
    found = stored(tmp_path / "out")["lm_head.weight"]
    assert np.abs((found - mean) / error).max() < 4.5
    assert np.median(error / mean) < 0.15, "the test would not tell much"


def test_sampled_labels_of_an_example_are_independent(zero: Path, tmp_path: Path) -> None:
    """Then the expectation is the sum over positions, and no product of two positions is left in it."""
    words = ["<s>", *(f"w{place}" for place in range(7))]
    data = jsonl_file(tmp_path / "data.jsonl", [{"text": " ".join([*words[1:], "w7"])}] * 400)
    record = fisher(
        zero,
        data,
        tmp_path / "out",
        settings=ramerge.FisherSettings(labels="sampled", examples=400, device="cpu", seed=3),
    )
    hidden, p = positions(zero, words)
    expected = (p * (1 - p)).T @ hidden**2
    assert record.tokens == 400 * 8
    np.testing.assert_allclose(stored(tmp_path / "out")["lm_head.weight"], expected, rtol=0.5)
    assert float(stored(tmp_path / "out")["lm_head.weight"].sum()) == pytest.approx(float(expected.sum()), rel=0.05)
    entropy = -(p * np.log(p)).sum(1).mean()
    assert record.mean_log_likelihood == pytest.approx(-entropy, rel=0.03)


def test_every_parameter_is_what_autograd_says(model: Path, data: Path, tmp_path: Path) -> None:
    fisher(model, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu"))
    found, expected = stored(tmp_path / "out"), reference(model, LINES)
    assert found.keys() == expected.keys() == load_file(model / "model.safetensors").keys()
    for name, values in expected.items():
        assert values.any()
        assert_close(found[name], values)


def test_tied_embeddings_are_written_as_stored(data: Path, tmp_path: Path) -> None:
    tied = llama(tmp_path / "tied", tie_word_embeddings=True)
    expected = reference(tied, LINES)
    fisher(tied, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu"))
    found = stored(tmp_path / "out")
    assert "lm_head.weight" not in found
    assert found.keys() == load_file(tied / "model.safetensors").keys()
    for name, values in found.items():
        assert_close(values, expected[name])

    def store_twice(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    fisher(
        changed(tied, tmp_path / "twice", store_twice),
        data,
        tmp_path / "both",
        settings=ramerge.FisherSettings(device="cpu"),
    )
    both = stored(tmp_path / "both")
    assert np.array_equal(both["lm_head.weight"], both["model.embed_tokens.weight"])
    assert_close(both["lm_head.weight"], expected["model.embed_tokens.weight"])


def test_a_checkpoint_without_the_heads_prefix(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(7)
    bare = save(tmp_path / "gpt2", transformers.GPT2Model(transformers.GPT2Config(**GPT2)))
    record = fisher(bare, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu"))
    found, expected = stored(tmp_path / "out"), reference(bare, LINES)
    assert found.keys() == load_file(bare / "model.safetensors").keys()
    for name, values in found.items():
        assert_close(values, expected[f"transformer.{name}"])
    assert record.max_length == 32
    assert not any("positions" in note for note in record.notes), "nothing was cut"
    jsonl_file(data, [{"text": "w1 " * 40}])
    record = fisher(bare, data, tmp_path / "long", settings=ramerge.FisherSettings(device="cpu"))
    assert (record.truncated, record.tokens) == (1, 31)
    assert any("32 positions" in note for note in record.notes)


def test_fused_experts_are_taken_apart_again(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(7)
    config = transformers.MixtralConfig(**LLAMA | {"num_local_experts": 3, "num_experts_per_tok": 2})
    folder = save(tmp_path / "mixtral", transformers.MixtralForCausalLM(config))
    if int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("nothing is fused before version 5")
    fisher(folder, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu"))
    found, expected = stored(tmp_path / "out"), reference(folder, LINES)
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
    model: Path, data: Path, tmp_path: Path, dtype: str, tolerance: float
) -> None:
    record = fisher(model, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu", dtype=dtype))
    assert record.dtype == dtype
    expected = reference(model, LINES)
    for name, values in stored(tmp_path / "out").items():
        assert float(values.sum()) == pytest.approx(float(expected[name].sum()), rel=tolerance)


def test_a_model_that_is_given_as_a_delta(model: Path, data: Path, tmp_path: Path) -> None:
    def move(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1.0

    base = changed(model, tmp_path / "base", move)
    delta(base, model, tmp_path / "delta")
    fisher(
        f"{base}+{tmp_path / 'delta'}",
        data,
        tmp_path / "out",
        settings=ramerge.FisherSettings(device="cpu", examples=1),
    )
    fisher(model, data, tmp_path / "wanted", settings=ramerge.FisherSettings(device="cpu", examples=1))
    wanted, found = stored(tmp_path / "wanted"), stored(tmp_path / "out")
    assert wanted.keys() == found.keys()
    assert all(values.tobytes() == wanted[name].tobytes() for name, values in found.items())
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


# --- the data ---------------------------------------------------------------------------------------------------------


def test_the_three_forms_of_a_line(model: Path, tmp_path: Path) -> None:
    """A chat is what its template writes, up to the end of the sequence; a text is all labels after the beginning."""
    asked = [{"role": "user", "content": "w1 w2"}, {"role": "assistant", "content": "w3"}]
    forms = {
        "chat": {"messages": asked},
        "pair": {"prompt": "user w1 w2 </s> after assistant", "completion": "w3 </s>"},
        "text": {"text": "w1 w2"},
        "rest": {"prompt": "", "completion": "w1 w2"},
    }
    found = {}
    for name, line in forms.items():
        if name == "rest":
            continue
        path = jsonl_file(tmp_path / f"{name}.jsonl", [line])
        record = fisher(model, path, tmp_path / name, settings=ramerge.FisherSettings(device="cpu", examples=1))
        found[name] = (stored(tmp_path / name), record)
    for tensor, values in found["chat"][0].items():
        assert np.array_equal(values, found["pair"][0][tensor])
    assert [found[name][1].tokens for name in ("chat", "pair", "text")] == [2, 2, 2]
    for tensor, values in reference(model, [forms["rest"]]).items():
        assert_close(found["text"][0][tensor], values)


def test_lines_without_an_answer_sample_over_what_there_is(model: Path, tmp_path: Path) -> None:
    data = jsonl_file(
        tmp_path / "data.jsonl", [{"prompt": "w1 w2 w3"}, {"messages": [{"role": "user", "content": "w4"}]}]
    )
    with pytest.raises(InputError, match="labels=sampled") as caught:
        fisher(model, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu"))
    assert [problem.split(": ")[1] for problem in caught.value.problems] == ["line 1", "line 2"]
    record = fisher(model, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu", labels="sampled"))
    assert record.tokens == 3 + 5  # <s> user w4 </s> after assistant
    assert all(values.any() for name, values in stored(tmp_path / "out").items())


def test_the_first_examples_are_used_and_no_more(model: Path, data: Path, tmp_path: Path) -> None:
    data.write_text(data.read_text() + "not JSON\n")
    record = fisher(model, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu", examples=2))
    assert (record.examples, record.examples_requested, record.notes) == (2, 2, ())
    for name, values in reference(model, LINES[:2]).items():
        assert_close(stored(tmp_path / "out")[name], values)


BAD = [
    (b"{\n", "is not JSON"),
    (b"\n", "is empty"),
    (b'{"prompt": "\xff"}\n', "is not UTF-8"),
    (b'["w1"]\n', "must be a JSON object, and is a list"),
    (b'{"completion": "w1"}\n', "has none of prompt, messages and text"),
    (b'{"prompt": "w1", "text": "w2"}\n', "has prompt and text, and must have one of"),
    (b'{"prompt": ["w1"], "completion": 3}\n', "prompt must be text, and is a list; completion must be text"),
    (b'{"prompt": "w1", "completion": ""}\n', "completion is empty"),
    (b'{"prompt": "", "completion": "w1"}\n', "prompt is empty"),
    (b'{"prompt": "w1"}\n', "has no completion"),
    (b'{"text": "w1", "completion": "w1"}\n', "a completion belongs to a prompt"),
    (b'{"text": "\\ud800"}\n', "half of a surrogate pair"),
    (b'{"messages": "w1"}\n', "messages must be a list, and is text"),
    (b'{"messages": []}\n', "messages is empty"),
    (b'{"messages": [7, {"role": "user"}]}\n', "message 1 must be an object, and is a number; message 2: content"),
    (b'{"messages": [{"role": "user", "content": "w1"}]}\n', "the last message is not the assistant's"),
]


def test_every_bad_line_is_named(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_bytes(b'{"text": "w1"}\n' + b"".join(line for line, _ in BAD))
    with pytest.raises(InputError) as caught:
        fisher(model, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu"))
    assert len(caught.value.problems) == len(BAD)
    for number, (problem, (_, words)) in enumerate(zip(caught.value.problems, BAD, strict=True), 2):
        assert problem.startswith(f"{data}: line {number}: ")
        assert words in problem


def test_lines_that_give_no_label_are_named(model: Path, tmp_path: Path) -> None:
    lines = [{"prompt": "w1", "completion": " "}, {"text": "w1"}, {"text": "  "}]
    with pytest.raises(InputError) as caught:
        fisher(
            model,
            jsonl_file(tmp_path / "data.jsonl", lines),
            tmp_path / "out",
            settings=ramerge.FisherSettings(device="cpu"),
        )
    assert [problem.split(": ")[1] for problem in caught.value.problems] == ["line 1", "line 3"]
    assert "gives no token" in str(caught.value)


def test_data_that_is_no_file_of_lines(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("empty", "no lines"), ("pipe", "regular"), ("none", "No such file"), ("a\0b", "data file")):
        with pytest.raises(InputError, match=words):
            fisher(model, tmp_path / name, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu"))


@pytest.mark.parametrize(
    ("line", "max_length", "words", "start"),
    [
        (jsonl.Text(1, "w1 w2", "w3 w4"), 5, "<s> w1 w2 w3 w4", 3),
        (jsonl.Text(1, "w1 w2", "w3 w4"), 4, "<s> w2 w3 w4", 2),
        (jsonl.Text(1, "w1 w2", "w3 w4"), 3, "w2 w3 w4", 1),
        (jsonl.Text(1, "w1 w2", "w3 w4"), 2, "w2 w3", 1),
        (jsonl.Text(1, " ", "w3 w4"), 8, "<s> w3 w4", 1),
        (jsonl.Text(1, None, "w1 w2 w3"), 4, "<s> w1 w2 w3", 1),
        (jsonl.Text(1, None, "w1 w2 w3"), 3, "<s> w1 w2", 1),
        (
            jsonl.ChatExample(1, [{"role": "user", "content": "w1 w2"}, {"role": "assistant", "content": "w3"}]),
            5,
            "<s> after assistant w3 </s>",
            3,
        ),
    ],
)
def test_where_long_examples_are_cut(line: jsonl.Example, max_length: int, words: str, start: int) -> None:
    ids = tuple(IDS.get(word, 0) for word in words.split())
    whole = ExampleEncoder(tokenizer(), 100)(line)
    assert isinstance(whole, EncodedExample)
    assert ExampleEncoder(tokenizer(), max_length)(line) == EncodedExample(1, ids, start, len(ids) < len(whole.ids))


def test_a_tokenizer_without_a_beginning_gives_the_first_token_no_label() -> None:
    plain = tokenizer()
    plain.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    assert ExampleEncoder(plain, 8)(jsonl.Text(1, None, "w1 w2")) == EncodedExample(1, (IDS["w1"], IDS["w2"]), 1, False)
    assert ExampleEncoder(plain, 2)(jsonl.Text(1, "w1 w2", "w3")) == EncodedExample(1, (IDS["w2"], IDS["w3"]), 1, True)
    assert ExampleEncoder(plain, 8)(jsonl.Text(1, None, "w1")) == "gives no token whose likelihood could be taken"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages | length }}", "otherwise when the answer follows"),
    ],
)
def test_chats_that_cannot_be_rendered(template: str | None, words: str) -> None:
    made = tokenizer()
    made.chat_template = template
    chat = jsonl.ChatExample(1, [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w3"}])
    problem = ExampleEncoder(made, 8)(chat)
    assert isinstance(problem, str)
    assert words in problem


def test_truncated_examples_are_counted(model: Path, data: Path, tmp_path: Path) -> None:
    record = fisher(model, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu", max_length=6))
    assert (record.truncated, record.tokens, record.max_length) == (1, 7, 6)


# --- the folder -------------------------------------------------------------------------------------------------------


def test_the_output_and_its_record(model: Path, data: Path, tmp_path: Path) -> None:
    record = fisher(
        str(model),
        str(data),
        str(tmp_path / "deep/out"),
        settings=ramerge.FisherSettings(device="auto", dtype="float32"),
    )
    assert sorted(path.name for path in (tmp_path / "deep/out").iterdir()) == ["fisher.json", "model.safetensors"]
    written = json.loads((tmp_path / "deep/out/fisher.json").read_text())
    assert written == record.to_dict()
    assert (written["model"], written["data"], written["labels"]) == (str(model), str(data), "given")
    assert (written["examples"], written["examples_requested"]) == (3, 256)
    assert "3 lines, fewer than the 256 examples" in written["notes"][0]
    assert written["torch"] == torch.__version__
    assert written["transformers"] == transformers.__version__
    found, source = open_checkpoint(tmp_path / "deep/out"), open_checkpoint(model)
    assert {name: tensor.shape for name, tensor in found.tensors.items()} == {
        name: tensor.shape for name, tensor in source.tensors.items()
    }
    assert written["tensors"] == len(source.tensors)


def test_several_files_with_an_index(model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fisher(model, data, tmp_path / "one", settings=ramerge.FisherSettings(device="cpu"))
    monkeypatch.setattr(layout, "SHARD_BYTES", 600)
    fisher(model, data, tmp_path / "many", settings=ramerge.FisherSettings(device="cpu"))
    found = open_checkpoint(tmp_path / "many")
    assert len(found.shards) > 2
    whole, parts = stored(tmp_path / "one"), stored(tmp_path / "many")
    assert whole.keys() == parts.keys()
    assert all(np.array_equal(values, parts[name]) for name, values in whole.items())


def test_the_seed_decides_what_is_sampled_and_nothing_else(model: Path, data: Path, tmp_path: Path) -> None:
    def made(name: str, seed: int, **more: Any) -> bytes:
        settings = ramerge.FisherSettings(device="cpu", seed=seed, **more)
        fisher(model, data, tmp_path / name, settings=settings, options=ramerge.Options(overwrite=True))
        return (tmp_path / name / "model.safetensors").read_bytes()

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = made("a", 5, labels="sampled")
    assert torch.equal(torch.get_rng_state(), before)
    assert made("a", 5, labels="sampled") == first
    assert made("b", 6, labels="sampled") != first
    assert made("c", 5) == made("d", 6)


def test_buffers_are_zero_and_integers_left_out(model: Path, data: Path, tmp_path: Path) -> None:
    def add(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(2)
        tensors["model.steps"] = torch.arange(3)

    folder = changed(model, tmp_path / "old", add)
    record = fisher(folder, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu"))
    found = stored(tmp_path / "out")
    assert not found["model.layers.0.self_attn.rotary_emb.inv_freq"].any()
    assert "model.steps" not in found
    assert any("buffers" in note and "inv_freq" in note for note in record.notes)


def test_what_no_example_depends_on_is_noted(zero: Path, tmp_path: Path) -> None:
    def idle(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"].zero_()

    folder = changed(zero, tmp_path / "idle", idle)
    data = jsonl_file(tmp_path / "data.jsonl", [{"text": "w1"}])
    record = fisher(folder, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu", examples=1))
    assert record.notes == ("zero: tensors that no example depends on: model.embed_tokens.weight, model.norm.weight",)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.fixture
def _no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> None:
        pytest.fail("the model would have been loaded")

    monkeypatch.setattr(worker, "run", run)


@pytest.mark.usefixtures("_no_work")
def test_every_wrong_argument_is_named(model: Path, data: Path, tmp_path: Path) -> None:
    wrong: dict[str, Any] = {
        "examples": 0,
        "max_length": 1,
        "seed": -1,
        "labels": "true",
        "dtype": "int8",
        "device": 0,
    }
    with pytest.raises(RecipeError) as caught:
        fisher(model, data, tmp_path / "out", settings=ramerge.FisherSettings(**wrong))
    assert sorted(problem.split(":")[0] for problem in caught.value.problems) == sorted(wrong)
    for bad in (True, 1.5, 2**63):
        with pytest.raises(RecipeError, match="examples"):
            fisher(model, data, tmp_path / "out", settings=ramerge.FisherSettings(examples=bad))  # type: ignore[arg-type]


@pytest.mark.usefixtures("_no_work")
def test_outputs_that_cannot_be_are_refused_before_the_work(model: Path, data: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "full/inner").mkdir(parents=True)
    for out, overwrite, words in (
        (tmp_path / "there", False, "exists"),
        (tmp_path / "full", True, "subfolders"),
        (data, True, "one of the inputs"),
        (tmp_path, True, "holds the input"),
        (model / "fisher", False, "inside the input"),
        (data / "inner" / "out", False, "is a file"),
        (Path.cwd(), True, "working folder"),
        (Path("/"), True, "working folder"),
    ):
        with pytest.raises(PlanError, match=words):
            fisher(model, data, out, options=ramerge.Options(overwrite=overwrite))
    with pytest.raises(RecipeError, match="output folder"):
        fisher(model, data, "a\0b")


def test_devices_that_are_not_there(model: Path, data: Path, tmp_path: Path) -> None:
    for device in ("cuda:63", "tpu", "xla", "cpu:x"):
        with pytest.raises(RecipeError, match="device: "):
            fisher(model, data, tmp_path / "out", settings=ramerge.FisherSettings(device=device))
    assert names_in(tmp_path) == ["data.jsonl"]


def test_without_torch_it_says_what_to_install(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heavy = {"torch", "transformers", "numba"}
    code = f"import ramerge.calibration.estimate, sys; sys.exit(bool({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    monkeypatch.setattr(importance, "find_spec", lambda _: None)
    with pytest.raises(RecipeError, match=re.escape(install("torch"))):
        fisher(model, data, tmp_path / "out")


def _raise_norm(tensors: dict[str, Any]) -> None:
    tensors["model.norm.weight"] *= 1e25
    tensors["lm_head.weight"] *= 1e-25


def _nan(tensors: dict[str, Any]) -> None:
    tensors["model.norm.weight"][3] = float("nan")


def _extra(tensors: dict[str, Any]) -> None:
    tensors["model.adapter.weight"] = torch.ones(2, 2)
    tensors["model.other.weight"] = torch.ones(2)


def _headless(tensors: dict[str, Any]) -> None:
    del tensors["lm_head.weight"]


def _float8(tensors: dict[str, Any]) -> None:
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.float8_e4m3fn)


def _integers(tensors: dict[str, Any]) -> None:
    tensors.clear()
    tensors["steps"] = torch.arange(2)


@pytest.mark.parametrize("labels", ["given", "sampled"])
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (_nan, WeightsError, ["line 1: its log-likelihood", "is nan"]),
        (_raise_norm, WeightsError, ["line 1: its squared gradient is NaN or Inf in 'lm_head.weight'"]),
        (_extra, CheckpointError, ["'model.adapter.weight' has no counterpart", "'model.other.weight' has no"]),
        (_headless, CheckpointError, ["lacks lm_head.weight"]),
        (_float8, CheckpointError, ["quantized weights (tensors of dtype F8_E4M3)"]),
        (_integers, CheckpointError, ["no floating-point tensors"]),
    ],
)
def test_weights_that_give_no_fisher_leave_nothing(
    zero: Path,
    data: Path,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], None],
    error: type[Exception],
    words: list[str],
    labels: Any,
) -> None:
    folder = changed(zero, tmp_path / "bad", change)
    with pytest.raises(error) as caught:
        fisher(folder, data, tmp_path / "deep/out", settings=ramerge.FisherSettings(device="cpu", labels=labels))
    assert all(text in str(caught.value) for text in words)
    assert names_in(tmp_path) == ["bad", "data.jsonl"]


def test_models_that_do_not_load(zero: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        fisher(tmp_path / "none", data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu"))
    for file, content, words in (
        ("config.json", '{"model_type": "unheard_of"}', "cannot load a .* from it"),
        ("config.json", '{"quantization_config": {"quant_method": "gptq"}}', "gptq"),
        ("tokenizer.json", "{", "cannot load a tokenizer"),
    ):
        folder = changed(zero, tmp_path / "bad", lambda _: None)
        (folder / file).write_text(content)
        with pytest.raises(CheckpointError, match=words):
            fisher(folder, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu"))
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    assert names_in(tmp_path) == ["data.jsonl"]


def test_a_tokenizer_of_another_model(data: Path, tmp_path: Path) -> None:
    small = llama(tmp_path / "small", vocab_size=9, num_hidden_layers=0)
    with pytest.raises(InputError, match=r"line 1: token 10 is beyond the model's vocabulary of 9"):
        fisher(small, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu"))


def test_a_name_that_holds_other_values_is_refused(zero: Path) -> None:
    with quiet():
        net = transformers.AutoModelForCausalLM.from_pretrained(zero)
    checkpoint = open_checkpoint(zero)
    assert check_names(net, checkpoint) == frozenset()
    with torch.no_grad():
        net.lm_head.weight[[0, 1]] = net.lm_head.weight[[1, 0]]
    net.model.norm.weight = torch.nn.Parameter(torch.ones(9))
    with pytest.raises(CheckpointError) as caught:
        check_names(net, checkpoint)
    text = "\n".join(sorted(caught.value.problems))
    assert "'lm_head.weight' has other values" in text
    assert "'model.norm.weight' has shape [8], and [9] in the model" in text


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "data.jsonl"])
def test_inputs_that_change_meanwhile_are_refused(zero: Path, data: Path, tmp_path: Path, name: str) -> None:
    folder = changed(zero, tmp_path / "model", lambda _: None)
    path = data if data.name == name else folder / name

    def listen(event: ramerge.Progress) -> None:
        if event.done == event.total:
            path.write_bytes(path.read_bytes())

    with pytest.raises(CheckpointError, match=f"{name}: has changed"):
        fisher(folder, data, tmp_path / "out", on_progress=listen, settings=ramerge.FisherSettings(device="cpu"))
    assert names_in(tmp_path) == ["data.jsonl", "model"]


def test_data_that_shrinks_meanwhile_is_refused(
    zero: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = worker.load_model

    def load(*arguments: Any) -> Any:
        jsonl_file(data, LINES[:1])
        return original(*arguments)

    monkeypatch.setattr(worker, "load_model", load)
    with pytest.raises(CheckpointError, match=r"data\.jsonl: has changed"):
        fisher(zero, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu"))
    assert names_in(tmp_path) == ["data.jsonl"]


def test_a_device_that_runs_out_of_memory(
    zero: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(worker, "SquareSums", full)
    with pytest.raises(PlanError, match="does not fit into the memory of cpu"):
        fisher(zero, data, tmp_path / "out", settings=ramerge.FisherSettings(device="cpu"))
    assert names_in(tmp_path) == ["data.jsonl"]


def test_the_limits_of_threads_and_memory_are_kept(
    zero: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Watched(worker.SquareSums):
        def __init__(self, model: Any) -> None:
            seen.append(torch.get_num_threads())
            super().__init__(model)

    monkeypatch.setattr(worker, "SquareSums", Watched)
    before, settings = torch.get_num_threads(), ramerge.FisherSettings(device="cpu")
    fisher(zero, data, tmp_path / "out", settings=settings, options=ramerge.Options(threads=before + 1))
    assert (seen, torch.get_num_threads()) == ([before + 1], before)
    sizes = [tensor.elements for tensor in layout.floats_of(open_checkpoint(zero))]
    need = 8 * sum(sizes) + 4 * max(sizes)
    with pytest.raises(PlanError, match=f"--max-memory: {need - 1:,} bytes do not suffice.* at least {need:,}"):
        fisher(zero, data, tmp_path / "no", settings=settings, options=ramerge.Options(max_memory=need - 1))
    fisher(zero, data, tmp_path / "yes", settings=settings, options=ramerge.Options(max_memory=need))
    with pytest.raises(RecipeError, match="--max-memory"):
        fisher(zero, data, tmp_path / "no", settings=settings, options=ramerge.Options(max_memory="two"))
    assert names_in(tmp_path) == ["data.jsonl", "out", "yes"]


# --- progress, and the end before the end -----------------------------------------------------------------------------


def test_progress_counts_examples(zero: Path, data: Path, tmp_path: Path) -> None:
    seen: list[ramerge.Progress] = []
    fisher(zero, data, tmp_path / "out", on_progress=seen.append, settings=ramerge.FisherSettings(device="cpu"))
    assert seen == [ramerge.Progress("fisher", done, 3, "examples") for done in range(4)]


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/fisher.json").write_text("old")
    (tmp_path / "out/model.safetensors").touch()
    yield tmp_path / "out"


def test_an_interrupt_leaves_what_was_there(zero: Path, data: Path, old: Path) -> None:
    def interrupt(event: ramerge.Progress) -> None:
        if event.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fisher(
            zero,
            data,
            old,
            on_progress=interrupt,
            settings=ramerge.FisherSettings(device="cpu"),
            options=ramerge.Options(overwrite=True),
        )
    assert names_in(old.parent) == ["data.jsonl", "out"]
    assert (old / "fisher.json").read_text() == "old"
    fisher(zero, data, old, settings=ramerge.FisherSettings(device="cpu"), options=ramerge.Options(overwrite=True))
    assert names_in(old) == ["fisher.json", "model.safetensors"]


def test_from_the_command_line_to_a_merge(model: Path, data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ramerge.cli.main"]
    made = subprocess.run(
        [*command, "fisher", "--agent", f"a={model}", "--data", str(data), "--examples", "9", str(tmp_path / "f")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "note: the data has 3 lines" in made.stdout and "from 3 examples" in made.stdout
    assert json.loads((tmp_path / "f/fisher.json").read_text())["examples"] == 3
    agent = changed(model, tmp_path / "agent", lambda tensors: [tensor.mul_(1.5) for tensor in tensors.values()])
    flags = ["--method", "fisher", "--base", str(model), "--agent", f"a={agent}", "--importance", f"a={tmp_path / 'f'}"]
    merged = subprocess.run(
        [*command, "merge", *flags, str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert merged.returncode == 0, merged.stderr
    weights, base = load_file(tmp_path / "out/model.safetensors"), load_file(model / "model.safetensors")
    importances = load_file(tmp_path / "f/model.safetensors")
    for name, weight in weights.items():
        expected = torch.where(importances[name] > 0, base[name] * 1.5, base[name])
        torch.testing.assert_close(weight, expected)
