"""Other names under which libraries store the same tensor: a table, and all aliases of a name by the table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ramerge.core.tensors.text_config import text_configs


@dataclass(frozen=True)
class Renaming:
    """An alternative for a part of tensor names.

    Attributes:
        pattern: a regular expression for the part.
        text: its replacement.
        why: the library or convention that has such names.
    """

    pattern: str
    text: str
    why: str


_WRAPPERS = "wrappers of torch and trainers"
_VISION = "the text model in a model for images"
_HEADLESS = "a model without its head"
_MIXTRAL = "Mixtral and MiniMax in files and in memory"
_EXPERTS = "mixtures of experts in files and in the memory of transformers 5"
_PRIME = "names of training in prime-rl"
_MLX = "names of MLX"
_TINKER = "names of training in Tinker"
TOWERS = "visual|vision_tower|vision_model|multi_modal_projector|audio_tower"

RENAMINGS = (
    Renaming(r"(^|\.)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.", r"\1", _WRAPPERS),
    Renaming(r"^(?:module|actor|policy|pretrained_model|_forward_module)\.", "", _WRAPPERS),
    Renaming(r"^model\.language_model\.", "model.", _VISION),
    Renaming(rf"^model\.(?!language_model\.|(?:{TOWERS})\.)", "model.language_model.", _VISION),
    Renaming(r"^language_model\.model\.", "model.language_model.", _VISION),
    Renaming(r"^model\.language_model\.", "language_model.model.", _VISION),
    Renaming(r"^language_model\.lm_head\.", "lm_head.", _VISION),
    Renaming(r"^lm_head\.", "language_model.lm_head.", _VISION),
    Renaming(rf"^({TOWERS})\.", r"model.\1.", _VISION),
    Renaming(rf"^model\.({TOWERS})\.", r"\1.", _VISION),
    Renaming(r"^(?=(?:layers|embed_tokens|norm)\.)", "model.", _HEADLESS),
    Renaming(r"^model\.(?=(?:layers|embed_tokens|norm)\.)", "", _HEADLESS),
    Renaming(r"^(?=(?:h|wte|wpe|ln_f)\.)", "transformer.", _HEADLESS),
    Renaming(r"^transformer\.(?=(?:h|wte|wpe|ln_f)\.)", "", _HEADLESS),
    Renaming(r"\.mlp\.(?=gate\.|experts\.|shared_experts?\.|e_score_correction_bias$)", ".block_sparse_moe.", _MIXTRAL),
    Renaming(r"\.block_sparse_moe\.", ".mlp.", _MIXTRAL),
    *(
        Renaming(rf"\.{re.escape(old)}$", f".{new}", _EXPERTS)
        for in_files, in_memory in (
            ("block_sparse_moe.input_linear.weight", "block_sparse_moe.experts.gate_up_proj"),  # Granite
            ("block_sparse_moe.output_linear.weight", "block_sparse_moe.experts.down_proj"),
            ("block_sparse_moe.router.layer.weight", "block_sparse_moe.router.weight"),
            ("experts.fc1.weight", "experts.gate_up_proj"),  # Aria
            ("experts.fc2.weight", "experts.down_proj"),
            ("mlp.gate.weight", "mlp.router.weight"),  # Phi
            ("mlp.e_score_correction_bias", "mlp.gate.e_score_correction_bias"),  # EXAONE
            ("mlp.moe_statics.e_score_correction_bias", "mlp.gate.moe_statics.e_score_correction_bias"),  # ERNIE
            ("self_attn.attention_sink_bias", "self_attn.sinks"),  # MiMo
        )
        for old, new in ((in_files, in_memory), (in_memory, in_files))
    ),
    Renaming(r"\.mlp\.router\.gate\.", ".mlp.gate.", _PRIME),
    Renaming(r"\.mlp\.expert_bias$", ".mlp.gate.e_score_correction_bias", _PRIME),
    Renaming(r"(?<!\.mlp)\.shared_expert(?=\.|_gate\.)", ".mlp.shared_expert", _PRIME),
    *(
        Renaming(rf"\.shared_expert\.{short}(?:\.weight)?$", f".shared_expert.{long}.weight", _PRIME)
        for short, long in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj"))
    ),
    Renaming(r"\.shared_expert\.", ".shared_experts.", _PRIME),
    Renaming(r"\.experts\.w2$", ".experts.down_proj", _PRIME),
    Renaming(r"^(?:model\.)?unembed_tokens\.", "lm_head.", _TINKER),
    Renaming(r"\.attn\.(?=[qkvo]_proj\.)", ".self_attn.", _TINKER),
    *(
        Renaming(rf"\.switch_mlp\.{long}\.weight$", f".experts.{short}", _MLX)
        for short, long in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj"))
    ),
)


def interleaves_gates(config: Mapping[str, object]) -> bool:
    """Whether rows of gate and up alternate in `experts.gate_up_proj`, instead of all of gate before all of up."""
    return any(part.get("model_type") == "gpt_oss" for part in text_configs(config))


# Limits for aliases of a name; real names need three steps.
_MOST_STEPS = 4
_MOST_NAMES = 32


_PATTERNS = [(re.compile(row.pattern), row) for row in RENAMINGS]
# Numbers of layers and experts, but not digits inside a part such as w1.
_NUMBERS = re.compile(r"(?<![^.])\d+(?![^.])")
# A placeholder for numbers; no row of the table depends on numbers.
_NUMBER = "\0"


def name_aliases(name: str) -> dict[str, tuple[str, ...]]:
    """All aliases of a name by the table, including the name itself, each with the reasons for its steps."""
    numbers = _NUMBERS.findall(name)
    if _NUMBER in name or not numbers:
        return dict(_aliases_of_name(name))
    aliases = {}
    for other, reasons in _aliases_of_name(_NUMBERS.sub(_NUMBER, name)).items():
        first, *others = other.split(_NUMBER)
        aliases[first + "".join(number + text for number, text in zip(numbers, others, strict=True))] = reasons
    return aliases


@lru_cache(4096)  # names of layers and experts differ only in their numbers
def _aliases_of_name(name: str) -> dict[str, tuple[str, ...]]:
    result: dict[str, tuple[str, ...]] = {name: ()}
    new = [name]
    for _ in range(_MOST_STEPS):
        previous, new = new, []
        for start in previous:
            for pattern, row in _PATTERNS:
                other = pattern.sub(row.text, start)
                if other not in result and len(result) < _MOST_NAMES:
                    result[other] = (*result[start], row.why)
                    new.append(other)
    return result
