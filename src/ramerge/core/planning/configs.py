"""Compare `config.json` of two models, and `config.json` of a model with its weights.

Keys that are known to be harmless may differ. Keys that are known to change what the weights mean may not, if both
models state them; all other differences are warnings. A key that a model leaves out has the default of transformers:
`config_keys.json` contains these defaults, rules for values that follow from others, and the names of harmless keys. If
the default of a key is unknown, and only one model states the key, that is a warning, too.
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

# Parts of dotted keys that change what the weights mean.
_MEANING = re.compile(
    r"architectures|model_type|auto_map|vocab_size|tie_word_embeddings|quantization_config|compression_config"
    r"|hidden_act|hidden_activation|activation_function|rope.*|.*_theta|rotary.*|partial_rotary_factor|head_dim"
    r"|.*(hidden|intermediate|embedding|embed|model|ffn|inner|state|conv)_?(size|dim)|.*_layers?|n_layer|n_embd|n_head"
    r"|n_inner|d_model|d_ff|.*_heads?|.*norm.*_eps.*|.*_experts?(_.*)?|.*experts_per_tok|layer_types"
    r"|sliding_window|attention_bias|mlp_bias|.*logit_softcapping|.*_multiplier|.*_rank"
)
# Refused even if only one model has them, because leaving them out has a meaning.
_EXPLICIT_KEYS = ("quantization_config", "rope_scaling")
# Used only if `use_sliding_window` is not false.
_OF_WINDOWS = ("sliding_window", "max_window_layers")
_ROTARY = ("rope_theta", "rope_scaling", "rope_parameters")
# Keys of models in which some layers have heads of another kind.
_OTHER_HEADS = re.compile(r"linear_|swa_|per_layer_config|.*lora_rank")
_EMBEDDINGS = re.compile(r"(.*\.)?embed_tokens\.weight")
_LAYER = re.compile(r"layers\.([0-9]{1,6})\.")
# No model has longer keys, and matching some patterns takes quadratic time.
_LONGEST_KEY = 200


@dataclass(frozen=True)
class ConfigDifferences:
    """Differences between two configurations: mappings from keys to texts such as "base has 8, agent has 4"."""

    refusals: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)
    harmless: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _KeyTable:
    """Contents of `config_keys.json`.

    Attributes:
        derived_keys: keys whose values follow from other keys if they are left out or null.
        lists: for each model type, the rules that derive its lists; see `derived.layers`.
    """

    unimportant: re.Pattern[str]
    harmless: re.Pattern[str]
    derived_keys: frozenset[str]
    lists: dict[str, dict[str, dict[str, Any]]]
    defaults: dict[str, object]
    models: dict[str, dict[str, object]]


@cache
def key_table() -> _KeyTable:
    """Load `config_keys.json`, which has keys of `config.json`, their defaults and rules."""
    text = files("ramerge.core.planning").joinpath("config_keys.json").read_text(encoding="utf-8")
    values = json.loads(text)
    unimportant, harmless = (re.compile("|".join(map(translate, values[key]))) for key in ("unimportant", "harmless"))
    return _KeyTable(
        unimportant, harmless, frozenset(values["derived"]), values["lists"], values["defaults"], values["models"]
    )


def compare_configs(base: Mapping[str, object], agent: Mapping[str, object]) -> ConfigDifferences:
    """Find the keys with different values; a missing key has its default."""
    differences = ConfigDifferences()
    left, right = (_flatten(normalize_config(config)) for config in _comparable_parts(base, agent))
    if left == right:
        return differences
    table = key_table()
    for key in sorted(left.keys() | right.keys()):
        values = _interpreted_value(left, key), _interpreted_value(right, key)
        # an unknown default is probably null if the other model's value is null
        if (
            values[0] == values[1]
            or set(map(id, values)) == {id(None), id(_UNKNOWN)}
            or _has_part(key, table.unimportant)
        ):
            continue
        is_on_one_side = key not in left or key not in right
        text = f"base has {_describe_value(left, key)}, agent has {_describe_value(right, key)}"
        if _has_part(key, table.harmless):
            differences.harmless[key] = text
        elif _has_part(key, _MEANING) and (not is_on_one_side or key.startswith(_EXPLICIT_KEYS)):
            differences.refusals[key] = text
        else:
            differences.warnings[key] = text
    return differences


def are_related(base: Mapping[str, object], agent: Mapping[str, object]) -> bool:
    """Whether two configurations have the same architecture, or one belongs to a part of the other's model.

    Model types of a text model and the model with more parts are, for example, qwen2 and qwen2_5_vl.
    """
    kinds = [config.get("model_type") for config in (base, agent)]
    if None in kinds or kinds[0] == kinds[1] or path_to(base, kinds[1]) or path_to(agent, kinds[0]):
        return True
    families = {re.sub(r"[^a-z].*", "", str(kind)) for kind in kinds}
    return bool(part_configs(base)) != bool(part_configs(agent)) and len(families) == 1


def _comparable_parts(
    base: Mapping[str, object], agent: Mapping[str, object]
) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """The parts of two configurations that can be compared."""
    kinds = [config.get("model_type") for config in (base, agent)]
    same = kinds[0] == kinds[1]
    if same and part_configs(base) and _writes_text(base) and _writes_text(agent):
        # the tensors show which parts an agent has
        base, agent = (_remove_keys(config, _NAMES[:1]) for config in (base, agent))
    if not same:
        if path := path_to(base, kinds[1]):
            return _part_config(base, path), _remove_keys(agent, _NAMES)
        if path := path_to(agent, kinds[0]):
            return _remove_keys(base, _NAMES), _part_config(agent, path)
    nested = [len(text_configs(config)) > 1 for config in (base, agent)]
    if bool(part_configs(base)) == bool(part_configs(agent)) and nested[0] == nested[1]:
        return base, agent
    left, right = _flat_text_config(base), _flat_text_config(agent)
    if part_configs(base) and part_configs(agent):  # transformers 4 has no part for the text model of Qwen2.5-VL
        return left, right
    irrelevant_keys = (*_NAMES, *_OF_IMAGES, *part_configs(base), *part_configs(agent))
    return _remove_keys(left, irrelevant_keys), _remove_keys(right, irrelevant_keys)


_NAMES = ("architectures", "model_type", "auto_map")
# Keys for rotary positions of images, which do not affect text.
_OF_IMAGES = ("mrope_section", "mrope_interleaved")


def _writes_text(config: Mapping[str, object]) -> bool:
    """Whether a configuration belongs to a model that writes text or has no head; false for a classifier."""
    names = config.get("architectures")
    architectures = names if isinstance(names, list) else []
    return all(str(name).endswith(("ForCausalLM", "ForConditionalGeneration", "Model")) for name in architectures)


def _part_config(config: Mapping[str, object], path: Sequence[str]) -> dict[str, object]:
    """The configuration of a part, with `tie_word_embeddings` of the whole model, which may be the only one."""
    part: Any = config
    for key in path:
        part = part[key]
    tie = {key: value for key, value in config.items() if key == "tie_word_embeddings"}
    return _remove_keys({**part, **tie}, _NAMES)


def _flat_text_config(config: Mapping[str, object]) -> dict[str, object]:
    """A configuration in which the keys of its text model are at the top level."""
    outer, *inner = text_configs(config)
    names = {key for part in (outer, *inner) for key, value in part.items() if any(value is text for text in inner)}
    flat: dict[str, object] = {}
    for part in (outer, *inner, {key: outer[key] for key in (*_NAMES, "tie_word_embeddings") if key in outer}):
        flat |= {key: value for key, value in part.items() if key not in names}
    return flat


def _remove_keys(config: Mapping[str, object], keys: Sequence[str]) -> dict[str, object]:
    """A configuration without these keys, at any depth."""
    others = {key: value for key, value in config.items() if key not in keys}
    return {key: _remove_keys(value, keys) if isinstance(value, Mapping) else value for key, value in others.items()}


def is_accepted_by(pattern: str, key: str) -> bool:
    """Whether an entry of `allow.config` accepts a difference in `key`: it names the key, or a mapping around it."""
    owner, dot, name = pattern.rpartition(".")
    names = ("rope_theta", "rope_scaling", "partial_rotary_factor") if name == "rope_parameters" else (name,)
    return any(f"{key}.".startswith(f"{owner}{dot}{one}.") for one in names)


def _has_part(key: str, names: re.Pattern[str]) -> bool:
    return any(len(part) <= _LONGEST_KEY and names.fullmatch(part) for part in key.split("."))


def _describe_value(flat: Mapping[str, object], key: str) -> str:
    value = _interpreted_value(flat, key)
    if value is _UNKNOWN:
        return "none, and what that means is not known"
    text = brief(json.dumps(value, ensure_ascii=False), 200)
    is_explicit = key in flat and (flat[key] is not None or value is None)
    return text if is_explicit else "none" if value is None else f"none, which means {text}"


_UNKNOWN = object()
"""The value of a key that is left out and follows from others by an unknown rule."""


def _interpreted_value(flat: Mapping[str, object], key: str) -> object:
    """The value of a key as transformers interprets it; None also for an empty list."""
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
    """The value in the file, or else the model type's default; None if there is neither."""
    if prefix + name in flat:
        return flat[prefix + name]
    table, kind = key_table(), flat.get(prefix + "model_type")
    own = table.models.get(kind, {}) if isinstance(kind, str) else {}
    return own.get(name, table.defaults.get(name))


def normalize_config(config: Mapping[str, object]) -> dict[str, object]:
    """Normalize a configuration: rotary embeddings, which transformers 4 and 5 write differently, and class names."""
    result = {key: normalize_config(value) if isinstance(value, dict) else value for key, value in config.items()}
    if isinstance(names := result.get("architectures"), list):  # FSDP adds a prefix to classes that it wraps
        result["architectures"] = [str(name).removeprefix("FSDP") for name in names]
    rotary_configs = [config[key] for key in _ROTARY if key in config]
    if not rotary_configs:
        return result
    parameters, scaling = (_mapping_or_empty(config.get(key)) for key in ("rope_parameters", "rope_scaling"))
    main, local = (_mapping_or_empty(parameters.get(key)) for key in ("full_attention", "sliding_attention"))
    for key in ("rope_parameters", "rope_scaling"):
        result.pop(key, None)
    if main:  # Gemma 3 has other rotary embeddings in local layers
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


def _mapping_or_empty(value: object) -> dict[str, object]:
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
    """Contradictions between `config.json` and the shapes of the weights, as texts."""
    embedding = next((embedding for name in model.tensors if (embedding := _EMBEDDINGS.fullmatch(name))), None)
    if embedding is None:
        return []
    parts = reversed(text_configs(model.config))
    stem, config = embedding[1] or "", dict(next((part for part in parts if "hidden_size" in part), model.config))
    heads = [tensor for name, tensor in model.tensors.items() if name.endswith("lm_head.weight")]
    if model.vocabulary is not None or any(head.shape[:1] == (config.get("vocab_size"),) for head in heads):
        config.pop("vocab_size", None)  # an adapter adds rows, and some models embed tokens that they never output
    first: dict[str, Tensor] = {}
    layers = set()
    for name, tensor in model.tensors.items():
        if layer := _LAYER.match(name, len(stem)) if name.startswith(stem) else None:
            layers.add(int(layer[1]))
            first.setdefault(name[layer.end() :], tensor)
    misfits = list(_size_problems(config, {"embed_tokens.weight": model.tensors[embedding[0]], **first}))
    # the weights may have more layers, which predict further tokens
    layer_count, further = (
        _config_number(config, "num_hidden_layers"),
        _config_number(config, "num_nextn_predict_layers") or 0,
    )
    if layer_count and layers and not layer_count <= len(layers) <= layer_count + further:
        misfits.append(f"num_hidden_layers is {layer_count:,}, but the weights have {quantity(len(layers), 'layer')}")
    return misfits


def _size_problems(config: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Iterator[str]:
    heads, groups, size = map(
        partial(_config_number, config), ("num_attention_heads", "num_key_value_heads", "hidden_size")
    )
    if any(_OTHER_HEADS.match(key) for key in config):
        heads = groups = None
    width = _config_number(config, "head_dim") or (size // heads if size and heads else None)
    expectations = [
        ("vocab_size", _config_number(config, "vocab_size"), "embed_tokens.weight", 0),
        ("hidden_size", size, "embed_tokens.weight", 1),
        ("intermediate_size", _config_number(config, "intermediate_size"), "mlp.gate_proj.weight", 0),
        ("num_attention_heads x head_dim", heads and width and heads * width, "self_attn.q_proj.weight", 0),
        ("num_key_value_heads x head_dim", groups and width and groups * width, "self_attn.k_proj.weight", 0),
    ]
    for what, number, name, axis in expectations:
        tensor = tensors.get(name)
        if number and tensor is not None and len(tensor.shape) == 2 and tensor.shape[axis] != number:
            kind = ("rows", "columns")[axis]
            yield f"{what} is {number:,}, but {quoted(tensor.name)} has {tensor.shape[axis]:,} {kind}"


def _config_number(config: Mapping[str, object], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
