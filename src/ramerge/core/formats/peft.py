"""Reads and checks the configuration of a LoRA adapter, PEFT's `adapter_config.json`.

Sources: `LoraConfig`, `LoraLayer.update_layer` and `get_pattern_key` of peft 0.21. Targets are taken from the weights
and not from the configuration, because PEFT writes exactly the trained modules, however they were chosen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from ramerge.core.formats.files import read_json
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.foundation.text import quoted
from ramerge.core.storage.location import Location

CONFIG = "adapter_config.json"

# Initializations that do not change the base, so that the update is B A alone.
_PLAIN = ("gaussian", "eva", "orthogonal", "mica", "true", "false")
# Initializations that subtract from the base, or quantize it. PEFT can convert the first four when it saves.
_CONVERTIBLE = ("pissa", "corda", "olora", "lora_ga")
_CHANGE_BASE = (*_CONVERTIBLE, "loftq")
# Options with which the update is not B A, or depends on the input.
_REFUSALS = {
    "use_qalora": "pools its inputs",
    "kasa_config": "cuts singular values off the base, and has a diagonal between B and A",
    "monteclora_config": "samples its weights",
    "use_bdlora": "has block-diagonal factors",
    "alora_invocation_tokens": "works from certain tokens on, so it is no change of the weights",
    "velora_config": "has other factors",
    "arrow_config": "chooses between adapters for each token, so it is no change of the weights",
    "layer_replication": "has more layers than the base",
}
# Keys without effect on the update: training settings, and the choice of modules, which the weights show.
_HARMLESS_KEYS = frozenset(
    [
        "auto_mapping",
        "corda_config",
        "eva_config",
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "loftq_config",
        "lora_bias",
        "lora_dropout",
        "lora_ga_config",
        "megatron_config",
        "megatron_core",
        "peft_type",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
        "unsloth_fixed",
    ]
)
# The pattern of names of options that PEFT adds for other kinds of updates.
_CHANGES = re.compile(r"use_\w+|\w+_config")
# A file that verl writes next to its adapters, with the alpha of the training.
_TRAINING_METADATA = "lora_train_meta.json"

_LITERAL = re.compile(r"\^?[\w.-]+")
_MOST_PATTERNS = 50
_LONGEST = 300


_Text = Annotated[str, StringConstraints(min_length=1)]
_Number = Annotated[float, Field(gt=-1e30, lt=1e30)]
_Rank = Annotated[int, Field(gt=0, lt=1 << 31)]
# Longer names match no pattern, because no model has them.
_LONGEST_NAME = 1000


class AdapterSettings(BaseModel, frozen=True, strict=True, extra="allow"):
    """Settings of a LoRA adapter, with PEFT's names."""

    r: _Rank = 8
    rank_pattern: dict[str, _Rank] = {}
    lora_alpha: _Number
    alpha_pattern: dict[str, _Number] = {}
    use_rslora: bool = False
    use_dora: bool = False
    ensure_weight_tying: bool = False
    fan_in_fan_out: bool = False
    target_modules: list[str] | str = []
    exclude_modules: list[str] | str = []
    layers_to_transform: list[int] | int = []
    target_parameters: list[str] = []
    bias: str = "none"
    modules_to_save: list[_Text] = []
    trainable_token_indices: list[int] | dict[str, list[int]] = []
    base_model_name_or_path: str = ""
    peft_version: str = ""

    def rank(self, name: str) -> int:
        """Return the rank of a module or parameter."""
        return next((self.rank_pattern[key] for key in self._rank_patterns.matching(name)), self.r)

    def scaling(self, name: str, rank: int) -> float:
        """Return the factor of a module's or parameter's product."""
        alpha = next((self.alpha_pattern[key] for key in self._alpha_patterns.matching(name)), self.lora_alpha)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def idle(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return the patterns that match none of these names, by option."""
        module_names = list(names)
        idle_patterns = {
            "alpha_pattern": self._alpha_patterns.idle(module_names),
            "rank_pattern": self._rank_patterns.idle(module_names),
        }
        return {option: keys for option, keys in idle_patterns.items() if keys}

    @cached_property
    def _rank_patterns(self) -> _ModulePatterns:
        return _ModulePatterns(self.rank_pattern)

    @cached_property
    def _alpha_patterns(self) -> _ModulePatterns:
        return _ModulePatterns(self.alpha_pattern)

    def targets(self, modules: Iterable[str]) -> dict[str, list[str]]:
        """Return the modules that each entry of `target_modules` matches. Patterns that may take long are ignored."""
        targets, exclusions = (
            _ModulePatterns(_quick_entries(entries)) for entries in (self.target_modules, self.exclude_modules)
        )
        layers = self.layers_to_transform
        numbers = set(map(str, layers if isinstance(layers, list) else [layers]))
        matches: dict[str, list[str]] = {}
        for module in modules:
            if not exclusions.matching(module) and (not numbers or numbers & set(module.split("."))):
                for entry in targets.matching(module):
                    matches.setdefault(entry, []).append(module)
        return matches

    def saves(self, module: str) -> bool:
        """Whether a module was trained as a whole."""
        return module.endswith(tuple(self.modules_to_save))

    def tokens_of(self, module: str) -> Sequence[int]:
        """Return the rows of a module that are replaced."""
        if isinstance(self.trainable_token_indices, list):
            return self.trainable_token_indices
        matches = [rows for name, rows in self.trainable_token_indices.items() if f".{module}".endswith(f".{name}")]
        return matches[0] if matches else ()

    @property
    def is_older(self) -> bool:
        """Whether it was written by a PEFT version that treated the second dimension of experts as the input."""
        match = re.match(r"(\d{1,4})\.(\d{1,4})", self.peft_version)
        return match is not None and (int(match[1]), int(match[2])) < (0, 19)

    @property
    def unread(self) -> list[str]:
        """The unknown options that are set."""
        return sorted(key for key, value in (self.model_extra or {}).items() if value and key not in _HARMLESS_KEYS)


def read_settings(folder: Location) -> AdapterSettings:
    """Read an adapter's configuration. Raises CheckpointError with all problems."""
    path = folder / CONFIG
    config = read_json(path)
    kind = config.get("peft_type")
    if kind != "LORA":
        what = f"is an adapter of the type {quoted(kind)}" if kind else "does not say of which type the adapter is"
        raise CheckpointError(f"{path}: {what}; only LORA is read; merge it into its base with PEFT (merge_and_unload)")
    problems = _refusals(config)
    try:
        settings = AdapterSettings.model_validate({key: value for key, value in config.items() if value is not None})
    except ValidationError as error:
        keys = dict.fromkeys(str(item["loc"][0]) for item in error.errors(include_url=False))
        problems += [f"{key} must {_MUST.get(key, 'be true or false')}, not {quoted(config.get(key))}" for key in keys]
        raise CheckpointError(f"{path}: {text}" for text in problems) from error
    if not settings.lora_alpha:
        problems.append(_zero_alpha_problem(folder))
    if not all(settings.alpha_pattern.values()):
        problems.append("alpha_pattern must map patterns of module names to numbers that are not 0")
    for option, patterns in (("alpha_pattern", settings.alpha_pattern), ("rank_pattern", settings.rank_pattern)):
        regular = [pattern for pattern in patterns if not _LITERAL.fullmatch(pattern)]
        problems += [
            f"{option}: {quoted(pattern)} is not a regular expression that is matched quickly; write the names out"
            for pattern in regular
            if not _is_quick(pattern)
        ]
        if len(regular) > _MOST_PATTERNS:
            problems.append(f"{option}: has more than {_MOST_PATTERNS} regular expressions; write the names out")
    if problems:
        raise CheckpointError(f"{path}: {text}" for text in problems)
    return settings


_MUST = {
    "r": "be a rank, such as 16",
    "rank_pattern": "map patterns of module names to ranks",
    "lora_alpha": "be a number",
    "alpha_pattern": "map patterns of module names to numbers",
    "target_modules": "be a list of names, or a pattern",
    "exclude_modules": "be a list of names, or a pattern",
    "layers_to_transform": "be a number of a layer, or a list of such numbers",
    "target_parameters": "be a list of names",
    "bias": "be none, all or lora_only",
    "modules_to_save": "be a list of names",
    "trainable_token_indices": "be a list of token numbers, or map modules to such lists",
    "base_model_name_or_path": "be a name",
    "peft_version": "be a version, such as 0.21.0",
}


def _refusals(config: Mapping[str, object]) -> list[str]:
    problems = [
        f"{key} is set: such an adapter {why}; merge it into its base with PEFT (merge_and_unload), if PEFT can"
        for key, why in _REFUSALS.items()
        if config.get(key)
    ]
    known_keys = {*AdapterSettings.model_fields, *_HARMLESS_KEYS, *_REFUSALS}
    problems += [
        f"{quoted(key)} is set, which is not known here and may change what the factors mean: merge the adapter into "
        "its base with PEFT (merge_and_unload); if the option does not change the weights, remove it from this file"
        for key, value in config.items()
        if value and key not in known_keys and _CHANGES.fullmatch(key)
    ]
    initialization = config.get("init_lora_weights", True)
    start = str(initialization).lower()
    if start.startswith(_CHANGE_BASE):
        convert = (
            "save it with model.save_pretrained(OUT, path_initial_model_for_weight_conversion=INITIAL), which converts "
            "it, or "
            if start.startswith(_CONVERTIBLE)
            else ""
        )
        problems.append(
            f"init_lora_weights is {quoted(initialization)}, which changes the base before training, so the adapter "
            f"does not fit the base as it was published: {convert}give the changed base as the base, and set "
            "init_lora_weights to true in this file"
        )
    elif start not in _PLAIN:
        problems.append(
            f"init_lora_weights is {quoted(initialization)}, which is not known; if it leaves the base as it is, set "
            "it to true"
        )
    return problems


def _zero_alpha_problem(folder: Location) -> str:
    """Return the problem of an alpha of 0, which verl's merger writes up to 0.7.0, and later if alpha is unknown."""
    text = (
        "lora_alpha is 0, which makes the adapter change nothing. The merger of verl writes 0 where it does not know "
        "the alpha: set lora_alpha to that of the training (actor_rollout_ref.model.lora_alpha)"
    )
    for place in (folder, folder.parent):
        try:
            alpha = read_json(place / _TRAINING_METADATA).get("lora_alpha")
        except CheckpointError:
            continue
        if isinstance(alpha, int | float) and alpha:
            return f"{text}; {place / _TRAINING_METADATA} says {alpha:g}"
    return f"{text}, or take the folder lora_adapter that verl writes next to the checkpoint"


def _is_quick(pattern: str) -> bool:
    """Whether a regular expression from a file is certain to match quickly.

    At most two parts may be repeated, and none of them may be a group.
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


def _quick_entries(entries: Sequence[str] | str) -> list[str]:
    """Return the entries that can be matched quickly: names, or a single pattern."""
    if isinstance(entries, str):
        return [entries] if _is_quick(entries) else []
    return [entry for entry in entries if _LITERAL.fullmatch(entry)]


class _ModulePatterns:
    """Patterns of module names. As in PEFT, a pattern matches a whole name, or the end of a name after a dot."""

    def __init__(self, patterns: Iterable[str]) -> None:
        numbers = {pattern: number for number, pattern in enumerate(patterns)}
        self._literal = {pattern: number for pattern, number in numbers.items() if _LITERAL.fullmatch(pattern)}
        self._regular = {pattern: number for pattern, number in numbers.items() if pattern not in self._literal}

    def matching(self, name: str) -> list[str]:
        """Return the patterns that match a name, in their order; PEFT takes the first."""
        if len(name) > _LONGEST_NAME or not (self._literal or self._regular):
            return []
        parts = name.split(".")
        ends = (f"^{name}", *(".".join(parts[place:]) for place in range(len(parts))))
        matches = {end: self._literal[end] for end in ends if end in self._literal}
        if len(name) <= _LONGEST:
            matches |= {
                pattern: number for pattern, number in self._regular.items() if re.match(rf"(.*\.)?({pattern})$", name)
            }
        return sorted(matches, key=matches.__getitem__)

    def idle(self, names: Iterable[str]) -> list[str]:
        """Return the patterns that match none of the names."""
        used_patterns = {pattern for name in names for pattern in self.matching(name)}
        return [pattern for pattern in (*self._literal, *self._regular) if pattern not in used_patterns]
