"""Compares `config.json` of two models, and `config.json` of a model with its weights.

Keys that are known to be harmless pass. Keys that are known to change what the weights mean are refused where both
sides state them; everything else that differs is a warning. A key that one side leaves out has the value that
transformers gives it: `config_keys.json` has these defaults, rules for values that follow from others, and the names
of harmless keys. Where it is not known what a model means by leaving out such a key, a value on the other side is a
warning too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cache, partial
from importlib.resources import files
from typing import Any

from ramerge.core.foundation.text import brief, quantity, quoted
from ramerge.core.planning import derived
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.tensor import Tensor
from ramerge.core.tensors.text_config import part_configs, path_to, text_configs

# Parts of keys that change what the weights mean, at any depth.
_MEANING = re.compile(
    r"architectures|model_type|auto_map|vocab_size|tie_word_embeddings|quantization_config|compression_config"
    r"|hidden_act|hidden_activation|activation_function|rope.*|.*_theta|rotary.*|partial_rotary_factor|head_dim"
    r"|.*(hidden|intermediate|embedding|embed|model|ffn|inner|state|conv)_?(size|dim)|.*_layers?|n_layer|n_embd|n_head"
    r"|n_inner|d_model|d_ff|.*_heads?|.*norm.*_eps.*|.*_experts?(_.*)?|.*experts_per_tok|layer_types"
    r"|sliding_window|attention_bias|mlp_bias|.*logit_softcapping|.*_multiplier|.*_rank"
)
# Refused even if only one side has them, because their absence is a statement.
_EXPLICIT_KEYS = ("quantization_config", "rope_scaling")
# Used only where `use_sliding_window` is not false.
_OF_WINDOWS = ("sliding_window", "max_window_layers")
_ROTARY = ("rope_theta", "rope_scaling", "rope_parameters")
# Where some layers have heads of another kind.
_OTHER_HEADS = re.compile(r"linear_|swa_|per_layer_config|.*lora_rank")
_EMBEDDINGS = re.compile(r"(.*\.)?embed_tokens\.weight")
_LAYER = re.compile(r"layers\.([0-9]{1,6})\.")
# No model has longer keys, and patterns with two gaps take quadratic time.
_LONGEST_KEY = 200


@dataclass(frozen=True)
class ConfigDifferences:
    """Differences between two configurations, as key to "base has this, agent has that"."""

    refusals: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)
    harmless: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _KeyTable:
    """Contents of `config_keys.json`.

    Attributes:
        derived_keys: keys that follow from others where they are left out or null.
        lists: model type to the rules by which its lists are derived; see `derived.layers`.
    """

    unimportant: re.Pattern[str]
    harmless: re.Pattern[str]
    derived_keys: frozenset[str]
    lists: dict[str, dict[str, dict[str, Any]]]
    defaults: dict[str, object]
    models: dict[str, dict[str, object]]


@cache
def key_table() -> _KeyTable:
    """The table `config_keys.json`: keys of `config.json`, their defaults and rules."""
    text = files("ramerge.core.planning").joinpath("config_keys.json").read_text(encoding="utf-8")
    values = json.loads(text)
    unimportant, harmless = (re.compile("|".join(map(translate, values[key]))) for key in ("unimportant", "harmless"))
    return _KeyTable(
        unimportant, harmless, frozenset(values["derived"]), values["lists"], values["defaults"], values["models"]
    )


def compare_configs(base: Mapping[str, object], agent: Mapping[str, object]) -> ConfigDifferences:
    """Keys with different values; a missing key has its default."""
    differences = ConfigDifferences()
    left, right = (_flatten(canonical(config)) for config in _comparable(base, agent))
    if left == right:
        return differences
    table = key_table()
    for key in sorted(left.keys() | right.keys()):
        values = _value(left, key), _value(right, key)
        # an unknown default is probably null if the other side is
        if (
            values[0] == values[1]
            or set(map(id, values)) == {id(None), id(_UNKNOWN)}
            or _has_part(key, table.unimportant)
        ):
            continue
        is_on_one_side = key not in left or key not in right
        text = f"base has {_description(left, key)}, agent has {_description(right, key)}"
        if _has_part(key, table.harmless):
            differences.harmless[key] = text
        elif _has_part(key, _MEANING) and (not is_on_one_side or key.startswith(_EXPLICIT_KEYS)):
            differences.refusals[key] = text
        else:
            differences.warnings[key] = text
    return differences


def are_related(base: Mapping[str, object], agent: Mapping[str, object]) -> bool:
    """Whether two configurations share an architecture, or one is of a part, such as the text model, of the other.

    Text models that were made from parts have names such as qwen2 and qwen2_5_vl.
    """
    kinds = [config.get("model_type") for config in (base, agent)]
    if None in kinds or kinds[0] == kinds[1] or path_to(base, kinds[1]) or path_to(agent, kinds[0]):
        return True
    families = {re.sub(r"[^a-z].*", "", str(kind)) for kind in kinds}
    return bool(part_configs(base)) != bool(part_configs(agent)) and len(families) == 1


def _comparable(
    base: Mapping[str, object], agent: Mapping[str, object]
) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """The comparable parts of two configurations."""
    kinds = [config.get("model_type") for config in (base, agent)]
    same = kinds[0] == kinds[1]
    if same and part_configs(base) and _writes_text(base) and _writes_text(agent):
        # the tensors show which parts an agent has
        base, agent = (_without(config, _NAMES[:1]) for config in (base, agent))
    if not same:
        if path := path_to(base, kinds[1]):
            return _part(base, path), _without(agent, _NAMES)
        if path := path_to(agent, kinds[0]):
            return _without(base, _NAMES), _part(agent, path)
    nested = [len(text_configs(config)) > 1 for config in (base, agent)]
    if bool(part_configs(base)) == bool(part_configs(agent)) and nested[0] == nested[1]:
        return base, agent
    left, right = _flat_text_config(base), _flat_text_config(agent)
    if part_configs(base) and part_configs(agent):  # transformers 4 has no part for the text model of Qwen2.5-VL
        return left, right
    irrelevant_keys = (*_NAMES, *_OF_IMAGES, *part_configs(base), *part_configs(agent))
    return _without(left, irrelevant_keys), _without(right, irrelevant_keys)


_NAMES = ("architectures", "model_type", "auto_map")
# How positions of images are rotated, which changes nothing for text.
_OF_IMAGES = ("mrope_section", "mrope_interleaved")


def _writes_text(config: Mapping[str, object]) -> bool:
    """Whether a configuration is that of a model with output embeddings, or without a head, and not of a classifier."""
    names = config.get("architectures")
    architectures = names if isinstance(names, list) else []
    return all(str(name).endswith(("ForCausalLM", "ForConditionalGeneration", "Model")) for name in architectures)


def _part(config: Mapping[str, object], path: Sequence[str]) -> dict[str, object]:
    """The configuration of a part. Tied embeddings may be stated only in the whole model's."""
    part: Any = config
    for key in path:
        part = part[key]
    tie = {key: value for key, value in config.items() if key == "tie_word_embeddings"}
    return _without({**part, **tie}, _NAMES)


def _flat_text_config(config: Mapping[str, object]) -> dict[str, object]:
    """A configuration with that of its text model in the place of its own."""
    outer, *inner = text_configs(config)
    names = {key for part in (outer, *inner) for key, value in part.items() if any(value is text for text in inner)}
    flat: dict[str, object] = {}
    for part in (outer, *inner, {key: outer[key] for key in (*_NAMES, "tie_word_embeddings") if key in outer}):
        flat |= {key: value for key, value in part.items() if key not in names}
    return flat


def _without(config: Mapping[str, object], keys: Sequence[str]) -> dict[str, object]:
    """A configuration without some keys, at any depth."""
    others = {key: value for key, value in config.items() if key not in keys}
    return {key: _without(value, keys) if isinstance(value, Mapping) else value for key, value in others.items()}


def is_accepted_by(pattern: str, key: str) -> bool:
    """Whether `pattern` in `allow.config` accepts a difference in `key`, or in a mapping that holds it."""
    owner, dot, name = pattern.rpartition(".")
    names = ("rope_theta", "rope_scaling", "partial_rotary_factor") if name == "rope_parameters" else (name,)
    return any(f"{key}.".startswith(f"{owner}{dot}{one}.") for one in names)


def _has_part(key: str, names: re.Pattern[str]) -> bool:
    return any(len(part) <= _LONGEST_KEY and names.fullmatch(part) for part in key.split("."))


def _description(flat: Mapping[str, object], key: str) -> str:
    value = _value(flat, key)
    if value is _UNKNOWN:
        return "none, and what that means is not known"
    text = brief(json.dumps(value, ensure_ascii=False), 200)
    is_explicit = key in flat and (flat[key] is not None or value is None)
    return text if is_explicit else "none" if value is None else f"none, which means {text}"


_UNKNOWN = object()
"""The value of a key that is left out and follows from others, in a way that is not known."""


def _value(flat: Mapping[str, object], key: str) -> object:
    """The value of a key as transformers understands it; None also for empty lists."""
    owner, dot, name = key.rpartition(".")
    prefix = owner + dot
    if name in _OF_WINDOWS and _effective_value(flat, prefix, "use_sliding_window") is False:
        return None
    value = _effective_value(flat, prefix, name)
    if value is None and name in key_table().derived_keys:
        kind, value_of = flat.get(f"{prefix}model_type"), partial(_effective_value, flat, prefix)
        rule = key_table().lists.get(kind, {}).get(name) if isinstance(kind, str) else None
        if rule is None:
            value = derived.number(name, value_of)
        else:
            value = derived.layers(rule, value_of, lambda key: prefix + key in flat)
        value = _UNKNOWN if value is None else value
    return None if value == [] else value


def _effective_value(flat: Mapping[str, object], prefix: str, name: str) -> object:
    """The value in the file, or otherwise the model type's default; None if neither is known."""
    if prefix + name in flat:
        return flat[prefix + name]
    table, kind = key_table(), flat.get(prefix + "model_type")
    own = table.models.get(kind, {}) if isinstance(kind, str) else {}
    return own.get(name, table.defaults.get(name))


def canonical(config: Mapping[str, object]) -> dict[str, object]:
    """The configuration with one form for rotary embeddings, which transformers 4 and 5 write differently, and for
    names of classes."""
    result = {key: canonical(value) if isinstance(value, dict) else value for key, value in config.items()}
    if isinstance(names := result.get("architectures"), list):  # FSDP names the classes that it wraps
        result["architectures"] = [str(name).removeprefix("FSDP") for name in names]
    rotary_configs = [config[key] for key in _ROTARY if key in config]
    if not rotary_configs:
        return result
    parameters, scaling = (_mapping(config.get(key)) for key in ("rope_parameters", "rope_scaling"))
    main, local = (_mapping(parameters.get(key)) for key in ("full_attention", "sliding_attention"))
    for key in ("rope_parameters", "rope_scaling"):
        result.pop(key, None)
    if main:  # Gemma 3 rotates local layers in another way
        result |= {"rope_local_base_freq": local.get("rope_theta")} if local else {}
        parameters = main
    scaling = scaling or parameters
    for key in ("rope_theta", "partial_rotary_factor"):
        inner = scaling.pop(key, None)
        if inner is not None:
            result[key] = inner
    kind = scaling.pop("rope_type", scaling.pop("type", "default"))
    if kind not in ("default", "mrope") or scaling:
        result["rope_scaling"] = {"type": "default" if kind == "mrope" else kind, **scaling}
    return result


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}


def _flatten(config: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def contradictions(model: Checkpoint) -> list[str]:
    """Contradictions between `config.json` and the shapes of weights, human-readable."""
    embedding = next((embedding for name in model.tensors if (embedding := _EMBEDDINGS.fullmatch(name))), None)
    if embedding is None:
        return []
    parts = reversed(text_configs(model.config))
    stem, config = embedding[1] or "", dict(next((part for part in parts if "hidden_size" in part), model.config))
    heads = [tensor for name, tensor in model.tensors.items() if name.endswith("lm_head.weight")]
    if model.vocabulary is not None or any(head.shape[:1] == (config.get("vocab_size"),) for head in heads):
        config.pop("vocab_size", None)  # an adapter adds rows, and some models embed tokens that they never write
    first: dict[str, Tensor] = {}
    layers = set()
    for name, tensor in model.tensors.items():
        if layer := _LAYER.match(name, len(stem)) if name.startswith(stem) else None:
            layers.add(int(layer[1]))
            first.setdefault(name[layer.end() :], tensor)
    misfits = list(_sizes(config, {"embed_tokens.weight": model.tensors[embedding[0]], **first}))
    # the weights may have some more that predict further tokens
    layer_count, further = _number(config, "num_hidden_layers"), _number(config, "num_nextn_predict_layers") or 0
    if layer_count and layers and not layer_count <= len(layers) <= layer_count + further:
        misfits.append(f"num_hidden_layers is {layer_count:,}, but the weights have {quantity(len(layers), 'layer')}")
    return misfits


def _sizes(config: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Iterator[str]:
    heads, groups, size = map(partial(_number, config), ("num_attention_heads", "num_key_value_heads", "hidden_size"))
    if any(_OTHER_HEADS.match(key) for key in config):
        heads = groups = None
    width = _number(config, "head_dim") or (size // heads if size and heads else None)
    expectations = [
        ("vocab_size", _number(config, "vocab_size"), "embed_tokens.weight", 0),
        ("hidden_size", size, "embed_tokens.weight", 1),
        ("intermediate_size", _number(config, "intermediate_size"), "mlp.gate_proj.weight", 0),
        ("num_attention_heads x head_dim", heads and width and heads * width, "self_attn.q_proj.weight", 0),
        ("num_key_value_heads x head_dim", groups and width and groups * width, "self_attn.k_proj.weight", 0),
    ]
    for what, number, name, axis in expectations:
        tensor = tensors.get(name)
        if number and tensor is not None and len(tensor.shape) == 2 and tensor.shape[axis] != number:
            kind = ("rows", "columns")[axis]
            yield f"{what} is {number:,}, but {quoted(tensor.name)} has {tensor.shape[axis]:,} {kind}"


def _number(config: Mapping[str, object], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
