"""Opens a LoRA adapter of PEFT over its base, as the tensors of a whole agent."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

from ramerge.core.formats import pickled, safetensors, unread
from ramerge.core.formats.adapter_model import IN_4_BITS, AdaptedModel
from ramerge.core.formats.files import policy_places
from ramerge.core.formats.format import ADAPTER, Format, Opening
from ramerge.core.formats.peft import CONFIG, read_settings
from ramerge.core.foundation.errors import CheckpointError, collect
from ramerge.core.foundation.text import brief_list, quoted
from ramerge.core.storage.location import Location
from ramerge.core.tensors.checkpoint import Checkpoint, Contents
from ramerge.core.tensors.embeddings import EMBEDDINGS
from ramerge.core.tensors.identity import identify
from ramerge.core.tensors.tensor import Tensor
from ramerge.core.tensors.text_config import set_vocabulary, text_configs

_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# The most similar problems that are listed one by one.
_MOST_ALIKE = 3
_DIGITS = 7
_KEYS_AND_VALUES = re.compile(r"\.[kv]_(?:proj|norm)\.")


def find(folder: Location) -> Location | None:
    """Find an adapter's folder: this one, or verl's within a step or a run. Adapters of MLX do not count."""
    inside = (inner for place in policy_places(folder) for inner in (place, place / "lora_adapter"))
    return next((inner for inner in inside if (inner / CONFIG).exists() and not unread.is_mlx(inner)), None)


def open_folder(folder: Location, opening: Opening) -> Contents:
    """Open an adapter over `opening.base`."""
    base = opening.require(folder, "a LoRA adapter")
    present = [name for name in _WEIGHTS if (folder / name).exists()] or [_WEIGHTS[0]]
    if not (folder / present[0]).exists() and (several := [path.name for path in folder.glob("adapter_model-*-of-*")]):
        raise CheckpointError(
            f"{folder}: the adapter is in several files, such as {quoted(min(several))}, which PEFT does not read "
            "either; save it in one: model.save_pretrained(OUT, max_shard_size='1TB')"
        )
    names = (present[0], CONFIG)
    opening.check_files(folder, names, in_index=False)
    files = identify(folder / name for name in names)
    path, problems = folder / present[0], list[str]()
    tensors: Sequence[Tensor] = ()
    with collect(problems):
        tensors = safetensors.tensors_of(path) if path.suffix == ".safetensors" else pickled.tensors_of(path)
    if (text := unread.adapter_of_megatron(folder, (tensor.name for tensor in tensors))) is not None:
        raise CheckpointError(text)
    with collect(problems):
        settings = read_settings(folder)
    if problems:
        raise CheckpointError(problems)
    agent = AdaptedModel(path, settings, base)
    agent.add(tensors)
    agent.tie_again()
    if agent.problems:
        raise CheckpointError(f"{path}: {text}" for text in _grouped_problems(agent.problems))
    base = agent.base
    same_names = agent.tensors.keys() == base.tensors.keys()
    vocabulary = agent.vocabulary
    config = deepcopy(dict(base.config))
    if vocabulary is not None:
        set_vocabulary(config, vocabulary)
    quantized = base.quantized
    if quantized is not None and not same_names:
        quantized = replace(quantized, shards={})
    return Contents(
        tensors=agent.tensors,
        files={**base.files, **files},
        config=config,
        metadata_folder=base.metadata_folder,
        shards=base.shards if same_names else {},
        notes=(f"{folder} is a LoRA adapter: {agent.description()}", *agent.notes),
        warnings=tuple(f"{path}: {text}" for check in _CHECKS for text in check(agent)),
        tokenizers=(*base.tokenizers, folder),
        quantized=quantized,
        vocabulary=vocabulary,
        untied=base.untied,
    )


def _grouped_problems(problems: Sequence[str]) -> list[str]:
    """Group problems that differ only in names and numbers: many are reduced to the first and a count."""
    alike: dict[str, list[str]] = {}
    for text in problems:
        alike.setdefault(re.sub(r"'[^']*'|[0-9]+", "", text), []).append(text)
    return [
        text
        for texts in alike.values()
        for text in (texts if len(texts) <= _MOST_ALIKE else [f"{texts[0]} (and {len(texts) - 1:,} others alike)"])
    ]


def _idle_patterns(agent: AdaptedModel) -> Iterator[str]:
    """Yield warnings about patterns of ranks and alphas that match nothing."""
    for option, keys in agent.settings.idle(agent.scaled_names).items():
        yield f"{option} in {CONFIG} has {brief_list(list(map(quoted, keys)))}, which matches no module that it changes"


def _unread_options(agent: AdaptedModel) -> Iterator[str]:
    """Yield a warning about unknown options that are set."""
    if options := agent.settings.unread:
        names = brief_list(list(map(quoted, options)))
        yield (
            f"{CONFIG} sets options unknown to ramerge, which are ignored: {names}; make sure that the update is "
            "still B A"
        )


def _lost_part_warnings(agent: AdaptedModel) -> Iterator[str]:
    """Yield a warning about tensors of the base that the configuration states as trained, but the file lacks."""
    changes, losses = agent.changes, list[str]()
    for entry, names in _stated_targets(agent):
        if absent := _unchanged_names(names, changes):
            losses.append(f"{entry} ({len(absent):,} of {len(names):,}, such as {quoted(absent[0])})")
    if losses:
        yield (
            f"lacks tensors that {CONFIG} states and the base has: {brief_list(losses)}; probably they were lost when "
            f"it was saved: save the whole adapter again, or correct {CONFIG}"
        )


def _stated_targets(agent: AdaptedModel) -> Iterator[tuple[str, list[str]]]:
    """Yield the base's tensors that an adapter states as trained, by option and entry.

    Experts are left out, because they are modules or one parameter depending on the trainer's version. So are layers
    that transformers does not load: layers that predict further tokens, and keys and values of layers that share them.
    """
    settings, tensors = agent.settings, agent.base.tensors
    layers, sharing_layers = (
        _config_count(agent.base, "num_hidden_layers"),
        _config_count(agent.base, "num_kv_shared_layers"),
    )
    names = []
    for name in tensors:
        layer = next((int(part) for part in name.split(".") if part.isdecimal() and len(part) < _DIGITS), 0)
        layers_in_use = layers - sharing_layers if _KEYS_AND_VALUES.search(name) else layers
        if ".experts." not in name and (not layers or layer < layers_in_use):
            names.append(name)
    modules = [
        name.removesuffix(".weight") for name in names if name.endswith(".weight") and len(tensors[name].shape) == 2
    ]
    targets = settings.targets(modules)
    for entry, matches in targets.items():
        by_last: dict[str, list[str]] = {}  # a pattern may match modules of several kinds
        for module in matches:
            by_last.setdefault(module.rpartition(".")[2], []).append(f"{module}.weight")
        for last, weights in by_last.items():
            yield f"target_modules: {quoted(last if len(by_last) > 1 else entry)}", weights
    for option, entries, ends in (
        ("modules_to_save", settings.modules_to_save, [".weight", ".bias"]),
        ("target_parameters", settings.target_parameters, [""]),
    ):
        for entry in entries:
            suffixes = tuple(f".{entry}{end}" for end in ends)
            yield f"{option}: {quoted(entry)}", [name for name in names if f".{name}".endswith(suffixes)]
    if settings.bias == "all":
        yield "bias: all", [name for name in names if name.endswith(".bias")]
    elif settings.bias == "lora_only":
        biases = {f"{module}.bias" for matches in targets.values() for module in matches}
        yield "bias: lora_only", [name for name in names if name in biases]
    rows = settings.trainable_token_indices
    embeddings = tuple(f".{module}.weight" for module in rows) if isinstance(rows, dict) else EMBEDDINGS
    if rows:
        yield "trainable_token_indices", [name for name in names if f".{name}".endswith(embeddings)]


def _unchanged_names(names: Sequence[str], changes: Container[str]) -> list[str]:
    """Return the unchanged names of each kind of which some names have changed; all names if none has changed.

    Names of a kind differ only in numbers. So towers of the model without any changes are not reported.
    """
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(re.sub(r"\d+", "0", name), []).append(name)
    partial_kinds = [kind for kind in kinds.values() if any(name in changes for name in kind)]
    return [name for kind in partial_kinds or kinds.values() for name in kind if name not in changes]


def _config_count(base: Checkpoint, key: str) -> int:
    """Return a number from the text model's configuration; 0 if it is missing."""
    return max((value for part in text_configs(base.config) if isinstance(value := part.get(key), int)), default=0)


def _base_name_warnings(agent: AdaptedModel) -> Iterator[str]:
    """Yield a warning if the adapter names another base. Paths differ by machine, so only last parts are compared."""
    settings, base = agent.settings, agent.base
    model_names = {
        _model_name(str(place)) for place in (base.directory, base.directory.resolve(), base.metadata_folder)
    }
    model_names.add(_model_name(str(base.config.get("_name_or_path") or "")))
    name = IN_4_BITS.sub("", settings.base_model_name_or_path)
    if name and not {_model_name(name), _model_name(settings.base_model_name_or_path)} & model_names:
        yield (
            f"{CONFIG} names {quoted(name)} as its base, but the base is {base.directory}; the shapes fit, so make "
            "sure "
            "that it is the same model"
        )


def _model_name(place: str) -> str:
    """Return the last part of a model's name or path in lower case; for a path in the Hub's cache, the model's name."""
    parts = [part for part in re.split(r"[/\\]", place) if part]
    cached = [part for part in parts if part.startswith("models--")]
    return (cached[0].rpartition("--")[2] if cached else parts[-1] if parts else "").lower()


_CHECKS = (_lost_part_warnings, _idle_patterns, _unread_options, _base_name_warnings)

FORMAT = Format(ADAPTER, "LoRA adapters of PEFT", find, open_folder, needs_base=True, priority=70)
