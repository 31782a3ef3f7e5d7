"""LoRA adapters that PEFT has written: the agent that is read equals PEFT's merge in float32."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ramerge
from ramerge.core.formats.open import open_checkpoint, open_stack
from ramerge.core.tensors.arena import Arena
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.reader import Files, Reader
from tests.checkpoints import read_checkpoint, write_checkpoint
from tests.messages import Messages
from tests.reference import NUMBERS, encode

pytestmark = pytest.mark.full  # PEFT

Values = Mapping[str, NDArray[np.float32]]

_SMALL = {
    "vocab_size": 64,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**_SMALL, "tie_word_embeddings": False, "attention_bias": True}),
    "tied": ("Qwen2", {**_SMALL, "tie_word_embeddings": True}),
    "gpt2": ("GPT2", {"vocab_size": 64, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "mixtral": ("Mixtral", {**_SMALL, "num_local_experts": 4}),
    "gpt-oss": ("GptOss", {**_SMALL, **_EXPERTS, "intermediate_size": 24}),  # square, as in the real ones
}
_BOTH = {"target_modules": [], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}


@dataclass(frozen=True)
class Case:
    """An adapter: its base, what PEFT is told, and by how many units of the last place PEFT differs."""

    base: str
    options: dict[str, Any]
    units: float = 1


_CASES = {
    "linear": Case("llama", {"target_modules": ["q_proj", "down_proj"], "init_lora_weights": "orthogonal"}),
    "patterns": Case(
        "llama",
        {
            "target_modules": "all-linear",
            "use_rslora": True,
            "rank_pattern": {"q_proj": 6, r"^model\.layers\.0\.mlp.*": 2},
            "alpha_pattern": {"q_proj": 5, r"model.layers.1.*proj": 3},
        },
    ),
    "embeddings": Case("llama", {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
    "replaced": Case(
        "llama", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"], "bias": "all"}
    ),
    "biases": Case("llama", {"target_modules": ["q_proj", "o_proj"], "lora_bias": True, "bias": "lora_only"}),
    # PEFT sums the squares of norms in float32
    "dora": Case("llama", {"target_modules": ["q_proj", "up_proj", "embed_tokens", "lm_head"], "use_dora": True}, 4),
    "tokens": Case("llama", {"target_modules": ["v_proj"], "trainable_token_indices": [5, 2, 60]}),
    "tied tokens": Case("tied", {"target_modules": ["v_proj"], "trainable_token_indices": [5, 2, 60]}),
    "untied by saving": Case("tied", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "transposed": Case("gpt2", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "transposed dora": Case(
        "gpt2", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "use_dora": True}, 4
    ),
    "experts in files": Case("mixtral", {**_BOTH, "alpha_pattern": {"experts.down_proj": 4}}),
    "a parameter": Case("mixtral", {"target_modules": ["q_proj"], "target_parameters": ["mlp.gate.weight"]}),
    "experts": Case("gpt-oss", {**_BOTH, "target_modules": ["q_proj"]}),
    "square": Case("gpt-oss", {"target_modules": [], "target_parameters": ["mlp.experts.down_proj"]}),
}
# What PEFT is told about embeddings that the base ties, and whether they are still the same tensor afterwards.
_TIED: dict[str, tuple[dict[str, Any], bool]] = {
    "saved input": ({"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}, False),
    "saved output": ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, False),
    "saved both": ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]}, False),
    "saved as one": (
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        True,
    ),
    "input": ({"target_modules": ["q_proj", "embed_tokens"]}, False),
    "output": ({"target_modules": ["q_proj", "lm_head"]}, False),
    "both": ({"target_modules": ["embed_tokens", "lm_head"]}, False),
    "as one": ({"target_modules": ["lm_head"], "ensure_weight_tying": True}, True),
    "dora": ({"target_modules": ["embed_tokens"], "use_dora": True}, False),
    "input, saved output": ({"target_modules": ["embed_tokens"], "modules_to_save": ["lm_head"]}, False),
    "output, saved input": ({"target_modules": ["lm_head"], "modules_to_save": ["embed_tokens"]}, False),
    "tokens": ({"target_modules": ["v_proj"], "trainable_token_indices": [5, 2, 60]}, True),
    "tokens of the output": ({"target_modules": ["v_proj"], "trainable_token_indices": {"lm_head": [5, 2]}}, False),
    "tokens of each": (
        {"target_modules": ["v_proj"], "trainable_token_indices": {"lm_head": [5, 2], "embed_tokens": [7]}},
        False,
    ),
    "tokens, output": ({"target_modules": ["lm_head"], "trainable_token_indices": [5, 2, 60]}, False),
    "others": ({"target_modules": ["q_proj"]}, True),
}


@dataclass
class Writer:
    """Writes models and adapters with transformers and PEFT, and merges them there."""

    folder: Path
    made: dict[str, Any] = field(default_factory=dict)

    def base(self, name: str) -> Path:
        """A model of random weights."""
        import torch
        import transformers

        place = self.folder / name
        if not place.exists():
            kind, config = _MODELS[name]
            torch.manual_seed(1)
            model = self._class(name)(getattr(transformers, f"{kind}Config")(**config))
            model.float().save_pretrained(place)
        return place

    @staticmethod
    def _class(name: str) -> Any:
        import transformers

        kind = _MODELS[name][0]
        return getattr(transformers, f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")

    def adapter(self, name: str, base: str, options: dict[str, Any], *, tokens: int | None = None) -> Path:
        """An adapter with random weights, as PEFT saves it, of a base with so many tokens."""
        import peft
        import torch

        place = self.folder / f"adapter {name}"
        if not place.exists():
            torch.manual_seed(3)
            config = peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM", **options})
            model = peft.get_peft_model(self.loaded(base, tokens), config)
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.data += 0.02 * torch.randn_like(parameter)
            model.save_pretrained(place)
        return place

    def loaded(self, base: str, tokens: int | None = None) -> Any:
        """The base in float32, with so many tokens."""
        import torch

        model = self._class(base).from_pretrained(self.base(base), dtype=torch.float32)
        if tokens is not None:
            model.resize_token_embeddings(tokens)
        return model

    def merged(self, base: str, adapter: Path) -> Values:
        """PEFT's merge, as a model would be saved."""
        import peft

        model = peft.PeftModel.from_pretrained(self.loaded(base), adapter).merge_and_unload()
        place = self.folder / "merged" / adapter.name
        model.save_pretrained(place)
        return values_of(place)


def values_of(folder: Path) -> Values:
    return {name: tensor.bits.view(NUMBERS[tensor.dtype]) for name, tensor in read_checkpoint(folder).items()}


def read(checkpoint: Checkpoint) -> Values:
    """All tensors, in the memory that they ask for."""
    found = {}
    with Files(checkpoint.files) as files:
        for name, tensor in checkpoint.tensors.items():
            arena, out = Arena(tensor.scratch(tensor.elements)), np.empty(tensor.nbytes, np.uint8)
            Reader(files, arena).read(tensor, 0, tensor.elements, out)
            assert not arena.excess_count
            found[name] = out.view(NUMBERS[tensor.dtype]).reshape(tensor.shape)
    return found


def units(ours: NDArray[np.float32], theirs: NDArray[np.float32], base: NDArray[np.float32]) -> float:
    """The largest difference in units of the last place of the largest number that is added or results.

    Where base and update cancel out, a unit of the result's last place is less than what float32 can hold of either.
    """
    largest = np.maximum(np.maximum(np.abs(ours), np.abs(theirs)), np.abs(base))
    return float((np.abs(ours.astype(np.float64) - theirs) / np.spacing(largest)).max(initial=0))


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writer]:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    yield Writer(tmp_path_factory.mktemp("peft"))
    gc.collect()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(_CASES))
def test_an_agent_is_what_peft_merges(name: str, writer: Writer) -> None:
    case = _CASES[name]
    base, adapter = writer.base(case.base), writer.adapter(name, case.base, case.options)
    opened_base = open_checkpoint(base)
    agent = open_checkpoint(adapter, base=opened_base)
    assert not agent.warnings
    ours, theirs, start = read(agent), writer.merged(case.base, adapter), values_of(base)
    assert ours.keys() == theirs.keys()
    changed = {key for key, tensor in agent.tensors.items() if tensor is not opened_base.tensors.get(key)}
    assert changed >= {key for key in theirs if key in start and theirs[key].tobytes() != start[key].tobytes()}
    for key, value in theirs.items():
        assert units(ours[key], value, start.get(key, value)) <= case.units, key
        if key not in changed:
            assert ours[key].tobytes() == start[key].tobytes()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tokens", [None, 67], ids=["same tokens", "more tokens"])
@pytest.mark.parametrize("name", list(_TIED))
def test_tied_embedding_adapter_gives_training_logits(
    name: str, tokens: int | None, writer: Writer, tmp_path: Path
) -> None:
    """Those of the model that PEFT has trained. Its own merge changes both embeddings with the factors of one."""
    import peft
    import torch
    import transformers

    options, stays_tied = _TIED[name]
    if tokens is not None and name in ("tokens of the output", "tokens, output"):
        pytest.skip("PEFT does not save the rows that were added")
    base, adapter = writer.base("tied"), writer.adapter(f"tied {name} {tokens}", "tied", options, tokens=tokens)
    ids = torch.arange(tokens or 64)[None]
    trained = peft.PeftModel.from_pretrained(writer.loaded("tied", tokens), adapter).eval()(ids).logits
    ramerge.convert(f"{base}+{adapter}", tmp_path / "converted", options=ramerge.Options(strict=True))
    one = {"method": "task_arithmetic", "base": str(base), "agents": {"a": str(adapter)}}
    record = ramerge.merge(
        {**one, "allow": {"vocabulary": "common"}}, tmp_path / "merged", options=ramerge.Options(strict=True)
    )
    assert any("the base ties input and output embeddings" in note for note in record.notes) is not stays_tied
    for out in ("converted", "merged"):
        model, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / out, output_loading_info=True)
        torch.testing.assert_close(model(ids).logits, trained, rtol=0, atol=1e-6)
        assert model.config.tie_word_embeddings is stays_tied
        assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))


_STACKS: dict[str, list[dict[str, Any]]] = {
    "products": [
        {"target_modules": ["q_proj", "up_proj"]},
        {"target_modules": ["up_proj"], "r": 2, "use_rslora": True},
    ],
    "tokens": [
        {"target_modules": ["v_proj"], "trainable_token_indices": [5, 2]},
        {"target_modules": ["v_proj"], "trainable_token_indices": [60, 1]},
    ],
    "the same tokens": [
        {"target_modules": ["v_proj"], "trainable_token_indices": [5, 2]},
        {"target_modules": ["v_proj"], "trainable_token_indices": [2]},
    ],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(_STACKS))
def test_stacked_adapters_are_what_peft_merges_at_once(name: str, writer: Writer, messages: Messages) -> None:
    """Products add up, and so do rows of other tokens; the same rows are refused here and there."""
    import peft

    base = writer.base("llama")
    adapters = [writer.adapter(f"{name} {n}", "llama", options) for n, options in enumerate(_STACKS[name])]
    model = peft.PeftModel.from_pretrained(writer.loaded("llama"), adapters[0], adapter_name="0")
    model.load_adapter(adapters[1], adapter_name="1")
    if name == "the same tokens":
        with messages.raises(ValueError):
            model.merge_and_unload(adapter_names=["0", "1"])
        with messages.raises(ramerge.RamergeError):
            open_stack([base, *adapters])
        return
    theirs = model.merge_and_unload(adapter_names=["0", "1"])
    theirs.save_pretrained(writer.folder / "merged" / name)
    ours, wanted, start = (
        read(open_stack([base, *adapters])),
        values_of(writer.folder / "merged" / name),
        values_of(base),
    )
    assert ours.keys() == wanted.keys()
    assert all(units(ours[key], wanted[key], start[key]) <= 2 for key in wanted)


@pytest.mark.filterwarnings("ignore")
def test_agents_beside_one_that_unties_are_untied_too(writer: Writer, tmp_path: Path) -> None:
    """A merge with a tied base is that with an untied copy of it, and of the other agents."""
    base = writer.base("tied")
    whole = ramerge.convert(f"{base}+{writer.adapter('q', 'tied', {'target_modules': ['q_proj']})}", tmp_path / "whole")
    assert whole.warnings == ()
    adapter = writer.adapter("saved input", "tied", _TIED["saved input"][0])
    ramerge.convert(f"{base}+{adapter}", tmp_path / "apart")
    for folder in (base, tmp_path / "whole"):
        tensors = read_checkpoint(folder)
        config = {**json.loads((folder / "config.json").read_text()), "tie_word_embeddings": False}
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        write_checkpoint(tmp_path / f"untied {folder.name}", tensors, config=config)
    ramerge.merge({"base": str(base), "agents": {"a": str(adapter), "b": str(tmp_path / "whole")}}, tmp_path / "out")
    agents = {name: str(tmp_path / folder) for name, folder in (("a", "apart"), ("b", "untied whole"))}
    ramerge.merge({"base": str(tmp_path / "untied tied"), "agents": agents}, tmp_path / "wanted")
    ours, wanted = read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / "wanted")
    assert {name: tensor.bits.tobytes() for name, tensor in ours.items()} == {
        name: tensor.bits.tobytes() for name, tensor in wanted.items()
    }


def test_importances_of_tied_embeddings_serve_both(writer: Writer, tmp_path: Path) -> None:
    """An agent's program may have one tensor where another agent made two of it."""
    base = writer.base("tied")
    other = writer.adapter("q", "tied", {"target_modules": ["q_proj"]})
    agents = {"a": writer.adapter("saved input", "tied", _TIED["saved input"][0]), "b": other}
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    tensors = {name: encode(np.ones(t.bits.shape, np.float32), "F32") for name, t in read_checkpoint(base).items()}
    write_checkpoint(tmp_path / "one", tensors)
    write_checkpoint(tmp_path / "both", {**tensors, head: tensors[embedding]})
    for out in ("one", "both"):
        with_sides = {name: {"model": str(model), "importance": str(tmp_path / out)} for name, model in agents.items()}
        ramerge.merge({"method": "fisher", "base": str(base), "agents": with_sides}, tmp_path / f"from {out}")
    assert (tmp_path / "from one" / "model.safetensors").read_bytes() == (
        tmp_path / "from both" / "model.safetensors"
    ).read_bytes()


@pytest.mark.filterwarnings("ignore")
def test_deltas_of_an_adapter_that_unties(writer: Writer, tmp_path: Path, messages: Messages) -> None:
    base, adapter = writer.base("tied"), writer.adapter("saved input", "tied", _TIED["saved input"][0])
    ramerge.delta(base, adapter, tmp_path / "delta")
    ramerge.apply(base, tmp_path / "delta", tmp_path / "applied")
    ramerge.convert(f"{base}+{adapter}", tmp_path / "wanted")
    config = json.loads((tmp_path / "applied/config.json").read_text())
    assert config == json.loads((tmp_path / "wanted/config.json").read_text())
    assert config["tie_word_embeddings"] is False
    ours, wanted = read_checkpoint(tmp_path / "applied"), read_checkpoint(tmp_path / "wanted")
    assert {name: tensor.bits.tobytes() for name, tensor in ours.items()} == {
        name: tensor.bits.tobytes() for name, tensor in wanted.items()
    }
    with messages.raises(ramerge.PlanError):
        ramerge.merge({"base": str(base), "agents": {"a": str(adapter)}}, tmp_path / "other", kind="delta")


@pytest.mark.filterwarnings("ignore")
def test_a_converted_pissa_adapter(writer: Writer, messages: Messages) -> None:
    """Saved as PEFT saves it, it is refused; converted when it is saved, it is a plain one of twice the rank."""
    import peft
    import torch

    torch.manual_seed(3)
    config = peft.LoraConfig(r=4, lora_alpha=8, init_lora_weights="pissa", target_modules=["q_proj"])
    model = peft.get_peft_model(writer.loaded("llama"), config)
    initial = writer.folder / "pissa" / "initial"
    model.peft_config["default"].init_lora_weights = True  # as the documentation of PEFT has it
    model.save_pretrained(initial)
    model.peft_config["default"].init_lora_weights = "pissa"
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.02 * torch.randn_like(parameter)
    base = open_checkpoint(writer.base("llama"))
    model.save_pretrained(writer.folder / "pissa" / "plain")
    with messages.raises(Exception):
        open_checkpoint(writer.folder / "pissa" / "plain", base=base)
    model.save_pretrained(writer.folder / "pissa" / "converted", path_initial_model_for_weight_conversion=str(initial))
    agent = read(open_checkpoint(writer.folder / "pissa" / "converted", base=base))
    merged = model.merge_and_unload().state_dict()
    for key, value in agent.items():
        np.testing.assert_allclose(value, merged[key].numpy(), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_pickled_adapter(writer: Writer) -> None:
    """`adapter_model.bin`, as trainers write with ZeRO-3, and names that FSDP and torch.compile have left."""
    import safetensors.torch
    import torch

    adapter = writer.adapter("linear", "llama", _CASES["linear"].options)
    state = safetensors.torch.load_file(adapter / "adapter_model.safetensors")
    place = writer.folder / "pickled"
    place.mkdir()
    (place / "adapter_config.json").write_text((adapter / "adapter_config.json").read_text())
    named = {f"_fsdp_wrapped_module.{key.replace('lora_A', 'lora_A.default')}": value for key, value in state.items()}
    torch.save(named, place / "adapter_model.bin")
    base = open_checkpoint(writer.base("llama"))
    ours, same = read(open_checkpoint(place, base=base)), read(open_checkpoint(adapter, base=base))
    assert all(ours[key].tobytes() == same[key].tobytes() for key in same)


@pytest.mark.filterwarnings("ignore")
def test_older_peft_expert_dimensions_are_read(writer: Writer) -> None:
    """The factors of versions before 0.19 for (experts, out, in): made by hand, because only the newer one is here."""
    import safetensors.torch

    base = open_checkpoint(writer.base("mixtral"))
    adapter = writer.adapter("experts in files", "mixtral", _CASES["experts in files"].options)
    state = safetensors.torch.load_file(adapter / "adapter_model.safetensors")
    swapped = {}
    for key, value in state.items():  # (rank * experts, in) and (out, rank * experts) change places and orders
        if "lora_A" in key:
            other = state[key.replace("lora_A", "lora_B")]
            swapped[key] = other.reshape(other.shape[0], 4, 4).permute(2, 1, 0).reshape(16, -1).contiguous()
            swapped[key.replace("lora_A", "lora_B")] = (
                value.reshape(4, 4, -1).permute(2, 1, 0).reshape(value.shape[1], 16).contiguous()
            )
    place = writer.folder / "older"
    place.mkdir()
    config = json.loads((adapter / "adapter_config.json").read_text())
    (place / "adapter_config.json").write_text(json.dumps({**config, "peft_version": "0.18.1"}))
    safetensors.torch.save_file(swapped, place / "adapter_model.safetensors")
    ours, same = read(open_checkpoint(place, base=base)), read(open_checkpoint(adapter, base=base))
    assert all(ours[key].tobytes() == same[key].tobytes() for key in same)
