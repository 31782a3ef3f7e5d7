"""The files beside the weights: configuration, tokenizer, chat template and the rest."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ramerge.checkpoint.embeddings import set_vocabulary
from ramerge.checkpoint.encodings.decode import KEYS, without_declaration
from ramerge.checkpoint.formats.files import read_json
from ramerge.checkpoint.paths import leads_outside, linked_out
from ramerge.checkpoint.storage.place import Place, relative
from ramerge.foundation.dtypes import full_name
from ramerge.foundation.errors import CheckpointError
from ramerge.foundation.jsontext import dumped
from ramerge.foundation.text import brief

# Weights in any format, their indices, and a trainer's state: these do not belong to the merged model.
_NOT_COMPANIONS = (
    "*.safetensors",
    "*.index.json",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.gguf",
    "*.h5",
    "*.msgpack",
    "*.onnx",
    "*.onnx_data",
    "*.pkl",
    "*.distcp",
    "*.npz",
    "*.npy",
    "*.nemo",
    "*.pdparams",
    "*.log",
    "events.out.*",
    "zero_to_fp32.py",
    "latest",
    "latest_*",
    "README.md",
    "ramerge.json",
    "ramerge.yaml",
    "trainer_state.json",
    ".*",
)

# Folders of other models and of a trainer's state inside of a model's folder.
_NOT_COMPANION_FOLDERS = (
    "checkpoint-*",
    "global_step*",
    "iter_*",
    "lora_adapter",
    "optimizer*",
    "pytorch_model_fsdp*",
    "runs",
    "wandb",
)

# Names that only files have; a folder of such a name stands where a file should be.
_NAMES_OF_FILES = ("*.json", "*.jinja", "*.tiktoken", "*.txt", "tokenizer.model")

# The files that `companions: AGENT` takes from that agent, not from the base.
_TOKENIZER_FILES = (
    "tokenizer*",
    "*.tiktoken",
    "vocab.*",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
    "chat_templates/*",
    "additional_chat_templates/*",
    "generation_config.json",
)

# Parts of keys of config.json that change what the weights mean, at any depth.
_MEANING = re.compile(
    r"architectures|model_type|auto_map|vocab_size|tie_word_embeddings|quantization_config|compression_config"
    r"|hidden_act|hidden_activation|activation_function|rope.*|.*_theta|rotary.*|partial_rotary_factor|head_dim"
    r"|.*(hidden|intermediate|embedding|embed|model|ffn|inner|state|conv)_?(size|dim)|.*_layers?|n_layer|n_embd|n_head"
    r"|n_inner|d_model|d_ff|.*_heads?|.*norm.*_eps.*|.*_experts?(_.*)?|.*experts_per_tok|layer_types"
    r"|sliding_window|attention_bias|mlp_bias|.*logit_softcapping|.*_multiplier|.*_rank"
)
_HARMLESS = frozenset(
    {"torch_dtype", "dtype", "transformers_version", "_name_or_path", "use_cache", "architectures_version"}
)
# No model has longer keys, and patterns with two gaps take quadratic time.
_LONGEST_KEY = 200
_ABSENT = "absent"
_DTYPE_KEYS = {"torch_dtype", "dtype"}


def companion_files(
    base: Sequence[Place], tokenizer_from: Sequence[Place] = (), *, allow_outside_links: bool = False
) -> dict[str, Place]:
    """Relative name to source of every file to copy.

    Args:
        base: the base checkpoint, then folders whose tokenizer files come instead of its own, such as adapters.
        tokenizer_from: the same of the checkpoint that gives tokenizer, chat template and generation config; empty for
            the base.
        allow_outside_links: follow links that lead out of a checkpoint.

    Raises:
        CheckpointError: a link leads out of its checkpoint, or what should be a file is none.
    """
    chosen = dict(_companions(base[0]))
    if tokenizer_from:
        chosen = {name: path for name, path in chosen.items() if not _is_tokenizer(name)}
    for folder in tokenizer_from or base[1:]:
        chosen |= {name: path for name, path in _companions(folder) if _is_tokenizer(name)}
    outside = [path for path in chosen.values() if all(leads_outside(path, root) for root in (*base, *tokenizer_from))]
    if outside and not allow_outside_links:
        raise CheckpointError(map(linked_out, outside))
    return chosen


def _companions(directory: Place) -> Iterator[tuple[str, Place]]:
    found: Iterator[Place] = directory.rglob("*")
    for path in sorted(found, key=str):
        name = relative(path, directory)
        hidden = any(part.startswith(".") for part in name.parts)
        elsewhere = any(fnmatch(part, pattern) for part in name.parts[:-1] for pattern in _NOT_COMPANION_FOLDERS)
        if hidden or elsewhere or any(fnmatch(name.name, pattern) for pattern in _NOT_COMPANIONS):
            continue
        if path.is_symlink() and not path.exists():
            raise CheckpointError(f"{path}: is a broken link; download the file again, or remove the link")
        if path.is_file():
            if isinstance(path, Path) and not os.access(path, os.R_OK):
                raise CheckpointError(f"{path}: no permission to read it; change its permissions, or remove it")
            yield name.as_posix(), path
        elif not path.is_dir() or any(fnmatch(name.name, pattern) for pattern in _NAMES_OF_FILES):
            raise CheckpointError(f"{path}: is not a regular file; put the file in its place, or remove it")


def _is_tokenizer(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _TOKENIZER_FILES)


def companions_of(
    files: Mapping[str, Place], dtype: str | None, *, dequantised: bool = False, vocabulary: int | None = None
) -> Iterator[tuple[str, Place | str]]:
    """The output's companions, by relative name: the file to copy byte for byte, or a text.

    `config.json` is changed only where it states something else than the output has.

    Args:
        files: relative name to source.
        dtype: safetensors' name of the dtype to state; None if the output keeps the base's dtypes.
        dequantised: whether the output has no quantisation although the configuration declares one.
        vocabulary: the number of tokens to state; None if the output keeps the base's.
    """
    for name, source in files.items():
        if name == "config.json" and (dtype is not None or vocabulary is not None):
            config = read_json(source)
            changed = dtype is not None and _set_dtype(config, full_name(dtype))
            changed |= vocabulary is not None and set_vocabulary(config, vocabulary)
            if dequantised and dtype is not None:
                config, changed = without_declaration(config), True
                if not any(isinstance(config.get(key), str) for key in _DTYPE_KEYS):
                    config["torch_dtype"] = full_name(dtype)
            if changed:
                yield name, dumped(config, constants=True)
                continue
        yield name, source


def _set_dtype(config: dict[str, Any], dtype: str) -> bool:
    """Set every dtype that a configuration states, also in nested mappings. Return whether anything changed."""
    changed = False
    for key, value in config.items():
        if key in _DTYPE_KEYS and isinstance(value, str) and value != dtype:
            config[key] = dtype
            changed = True
        elif isinstance(value, dict) and key not in KEYS:
            changed |= _set_dtype(value, dtype)
    return changed


def compare_configs(base: Mapping[str, Any], agent: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Differences between two configurations, as key to "base's value, agent's value".

    Returns:
        Those that change what the weights mean, and the others. A key that only one side states belongs to the others,
        because versions of transformers write different defaults, except quantisation and rotary scaling.
    """
    left, right = _flatten(_canonical(base)), _flatten(_canonical(agent))
    serious: dict[str, str] = {}
    harmless: dict[str, str] = {}
    for key in sorted(left.keys() | right.keys()):
        ours, theirs = left.get(key, _ABSENT), right.get(key, _ABSENT)
        if ours == theirs or key.rpartition(".")[2] in _HARMLESS:
            continue
        text = f"base has {_shown(ours)}, agent has {_shown(theirs)}"
        one_sided = _ABSENT in (ours, theirs) and not key.startswith(("quantization_config", "rope.scaling"))
        (serious if _has_meaning(key) and not one_sided else harmless)[key] = text
    return serious, harmless


def _shown(value: Any) -> str:
    return brief(json.dumps(value, ensure_ascii=False), 200)


def _has_meaning(key: str) -> bool:
    return any(len(part) <= _LONGEST_KEY and _MEANING.fullmatch(part) for part in key.split("."))


def _canonical(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with one spelling for rotary embeddings, which transformers 4 and 5 write differently."""
    rotary = {"rope_theta", "rope_parameters", "rope_scaling"}
    result = {
        key: _canonical(value) if isinstance(value, dict) and key not in rotary else value
        for key, value in config.items()
    }
    if not rotary & result.keys():
        return result
    scaling = result.pop("rope_scaling", None)
    parameters = result.pop("rope_parameters", None)
    parameters = dict(parameters) if isinstance(parameters, Mapping) else {}
    theta = parameters.pop("rope_theta", result.pop("rope_theta", None))
    scaling = dict(scaling) if isinstance(scaling, Mapping) else parameters
    kind = scaling.pop("rope_type", scaling.pop("type", "default"))
    result["rope"] = {"theta": float(theta) if isinstance(theta, int | float) else theta}
    if kind != "default" or scaling:
        result["rope"]["scaling"] = {"type": kind, **scaling}
    return result


def canonical_key(key: str) -> str:
    """The name that `compare_configs` uses for the key `key` of a configuration."""
    owner, dot, name = key.rpartition(".")
    spelling = {"rope_theta": "rope.theta", "rope_scaling": "rope.scaling", "rope_parameters": "rope"}
    return owner + dot + spelling.get(name, name)


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        elif value is not None:
            flat[f"{prefix}{key}"] = value
    return flat
