"""What `adapter_config.json` of PEFT says about a LoRA adapter, checked.

Sources: `LoraConfig` and `LoraLayer.update_layer` of peft 0.21. Rank and targets are taken from the weights and not
from here: PEFT writes what it has trained, whatever patterns chose it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramerge.formats.files import read_json
from ramerge.foundation.errors import CheckpointError
from ramerge.foundation.text import quoted
from ramerge.storage.location import Location

CONFIG = "adapter_config.json"

# Initializations after which the base is as it was, and the update is B A alone.
_PLAIN = ("gaussian", "eva", "orthogonal", "mica", "true", "false")
# Initializations that take something out of the base, or quantize it. PEFT can convert the first four when it saves.
_CONVERTIBLE = ("pissa", "corda", "olora", "lora_ga")
_CHANGE_BASE = (*_CONVERTIBLE, "loftq")
# Options with which the update is not B A, or depends on the input.
_REFUSED = {
    "use_qalora": "pools its inputs",
    "kasa_config": "cuts singular values off the base, and has a diagonal between B and A",
    "monteclora_config": "samples its weights",
    "use_bdlora": "has block-diagonal factors",
    "alora_invocation_tokens": "works from certain tokens on, so it is no change of the weights",
    "velora_config": "has other factors",
    "arrow_config": "chooses between adapters for each token, so it is no change of the weights",
    "layer_replication": "has more layers than the base",
}
# Everything else that PEFT writes: training, or which modules were chosen, which the weights show.
_KNOWN = frozenset(
    [
        "alpha_pattern",
        "auto_mapping",
        "base_model_name_or_path",
        "bias",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
        "fan_in_fan_out",
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
        "lora_alpha",
        "lora_bias",
        "lora_dropout",
        "lora_ga_config",
        "megatron_config",
        "megatron_core",
        "modules_to_save",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "r",
        "rank_pattern",
        "revision",
        "runtime_config",
        "target_modules",
        "target_parameters",
        "task_type",
        "trainable_token_indices",
        "use_dora",
        "use_rslora",
    ]
)
# What a trainer writes next to its adapters, with the alpha that it trained with (verl).
_TRAINED = "lora_train_meta.json"

_LITERAL = re.compile(r"\^?[\w.-]+")
_MOST_PATTERNS = 50
_LONGEST = 300


@dataclass(frozen=True)
class Settings:
    """What a LoRA adapter's configuration decides.

    Attributes:
        alpha: of modules that no pattern matches.
        patterns: alphas by pattern, in order.
        has_root: whether the scaling is alpha / sqrt(rank), and not alpha / rank (rsLoRA).
        has_magnitudes: whether it is DoRA.
        ties: whether input and output embeddings have the same factors, where the base ties them.
        is_transposed: whether square weights are stored as (in, out).
        parameters: the names of single parameters that it targets.
        tokens: the rows that it replaces, for every module, or by module.
        version: major and minor version of PEFT; None if it is not stated.
        saved: ends of the names of modules that were trained as a whole.
        base: the base's name as the trainer knew it; empty if it is not stated.
        unread: options that are set, and that are not known here.
    """

    alpha: float
    patterns: Mapping[str, float]
    has_root: bool
    has_magnitudes: bool
    ties: bool
    is_transposed: bool
    parameters: tuple[str, ...]
    tokens: Sequence[int] | Mapping[str, Sequence[int]]
    version: tuple[int, int] | None
    saved: tuple[str, ...]
    base: str
    unread: tuple[str, ...]

    def scaling(self, name: str, rank: int) -> float:
        """What the product of a module, or of a parameter, is multiplied by."""
        alpha = next((alpha for pattern, alpha in self.patterns.items() if _matches(pattern, name)), self.alpha)
        return alpha / math.sqrt(rank) if self.has_root else alpha / rank

    def saves(self, module: str) -> bool:
        """Whether a module was trained as a whole."""
        return module.endswith(self.saved)

    def tokens_of(self, module: str) -> Sequence[int]:
        """The rows of a module that are replaced."""
        if not isinstance(self.tokens, Mapping):
            return self.tokens
        found = [rows for name, rows in self.tokens.items() if f".{module}".endswith(f".{name}")]
        return found[0] if found else ()


def read_settings(folder: Location) -> Settings:
    """Read an adapter's configuration.

    Raises:
        CheckpointError: it cannot be read, or it says what cannot be computed; all problems are listed.
    """
    path = folder / CONFIG
    config = read_json(path)
    kind = config.get("peft_type")
    if kind != "LORA":
        what = f"is an adapter of the type {quoted(kind)}" if kind else "does not say of which type the adapter is"
        raise CheckpointError(f"{path}: {what}; only LORA is read; merge it into its base with PEFT (merge_and_unload)")
    problems = [f"{path}: {text}" for text in (*_refused(config), *_alphas(config, folder), *_tokens(config))]
    if problems:
        raise CheckpointError(problems)
    return Settings(
        alpha=float(config["lora_alpha"]),
        patterns={key: float(value) for key, value in (config.get("alpha_pattern") or {}).items()},
        has_root=bool(config.get("use_rslora")),
        has_magnitudes=bool(config.get("use_dora")),
        ties=bool(config.get("ensure_weight_tying")),
        is_transposed=bool(config.get("fan_in_fan_out")),
        parameters=tuple(config.get("target_parameters") or ()),
        tokens=config.get("trainable_token_indices") or (),
        version=_version(config.get("peft_version")),
        saved=tuple(config.get("modules_to_save") or ()),
        base=str(config.get("base_model_name_or_path") or ""),
        unread=tuple(sorted(key for key, value in config.items() if value and key not in {*_KNOWN, *_REFUSED})),
    )


def _refused(config: Mapping[str, Any]) -> list[str]:
    problems = [
        f"{key} is set: such an adapter {why}; merge it into its base with PEFT (merge_and_unload), if PEFT can"
        for key, why in _REFUSED.items()
        if config.get(key)
    ]
    stated = config.get("init_lora_weights", True)
    start = str(stated).lower()
    if start.startswith(_CHANGE_BASE):
        convert = (
            "save it with model.save_pretrained(OUT, path_initial_model_for_weight_conversion=INITIAL), which converts "
            "it, or "
            if start.startswith(_CONVERTIBLE)
            else ""
        )
        problems.append(
            f"init_lora_weights is {quoted(stated)}, which changes the base before training, so the adapter does not "
            f"fit the base as it was published: {convert}give the changed base as the base, and set "
            "init_lora_weights to true in this file"
        )
    elif start not in _PLAIN:
        problems.append(
            f"init_lora_weights is {quoted(stated)}, which is not known; if it leaves the base as it is, set it to true"
        )
    names = config.get("target_parameters") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        problems.append("target_parameters must be a list of names")
    saved = config.get("modules_to_save") or []
    if not isinstance(saved, list) or not all(isinstance(name, str) and name for name in saved):
        problems.append("modules_to_save must be a list of names")
    return problems


def _alphas(config: Mapping[str, Any], folder: Location) -> list[str]:
    problems = []
    alpha, patterns = config.get("lora_alpha"), config.get("alpha_pattern") or {}
    if not _is_number(alpha):
        problems.append(f"lora_alpha must be a number, not {quoted(alpha)}")
    elif alpha == 0:
        problems.append(_no_alpha(folder))
    if not isinstance(patterns, dict) or not all(_is_number(value) and value for value in patterns.values()):
        return [*problems, "alpha_pattern must map patterns of module names to numbers that are not 0"]
    regular = [pattern for pattern in patterns if not _LITERAL.fullmatch(pattern)]
    wrong = [pattern for pattern in regular if not _is_quick(pattern)]
    problems += [
        f"alpha_pattern: {quoted(pattern)} is not a regular expression that is matched quickly; write the names out"
        for pattern in wrong
    ]
    if len(regular) > _MOST_PATTERNS:
        problems.append(f"alpha_pattern: has more than {_MOST_PATTERNS} regular expressions; write the names out")
    return problems


def _no_alpha(folder: Location) -> str:
    """verl's merger wrote 0 up to version 0.7.0, and later where the trainer had not kept the alpha."""
    text = (
        "lora_alpha is 0, which makes the adapter change nothing. The merger of verl writes 0 where it does not know "
        "the alpha: set lora_alpha to that of the training (actor_rollout_ref.model.lora_alpha)"
    )
    for place in (folder, folder.parent):
        try:
            alpha = read_json(place / _TRAINED).get("lora_alpha")
        except CheckpointError:
            continue
        if _is_number(alpha) and alpha:
            return f"{text}; {place / _TRAINED} says {alpha:g}"
    return f"{text}, or take the folder lora_adapter that verl writes next to the checkpoint"


def _tokens(config: Mapping[str, Any]) -> list[str]:
    given = config.get("trainable_token_indices") or []
    lists = list(given.values()) if isinstance(given, dict) else [given]
    if all(isinstance(rows, list) and all(type(row) is int for row in rows) for rows in lists):
        return []
    return ["trainable_token_indices must be a list of token numbers, or map modules to such lists"]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


def _version(text: Any) -> tuple[int, int] | None:
    found = re.match(r"(\d{1,4})\.(\d{1,4})", text) if isinstance(text, str) else None
    return (int(found[1]), int(found[2])) if found else None


def _is_quick(pattern: str) -> bool:
    """Whether a regular expression from a file can be matched without taking long.

    What is repeated may not itself be a group, and at most two parts may be repeated.
    """
    if len(pattern) > _LONGEST or re.search(r"\)[*+?{]|\\[1-9]|\(\?", pattern):
        return False
    if len(re.findall(r"(?<!\\)[*+?{]", pattern)) > 2:
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _matches(pattern: str, name: str) -> bool:
    """Whether PEFT takes a pattern as one for this name: the pattern is the name, or its end after a dot."""
    if _LITERAL.fullmatch(pattern):
        return name == pattern[1:] if pattern[0] == "^" else f".{name}".endswith(f".{pattern}")
    return len(name) <= _LONGEST and re.match(rf"(.*\.)?({pattern})$", name) is not None


def model_name(place: str) -> str:
    """The last part of a model's name or path, in small letters; that of the model in a path of the hub's cache."""
    parts = [part for part in re.split(r"[/\\]", place) if part]
    cached = [part for part in parts if part.startswith("models--")]
    return (cached[0].rpartition("--")[2] if cached else parts[-1] if parts else "").lower()
