"""A LoRA adapter of PEFT, opened over its base: the tensors of the whole agent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

from ramerge.core.formats import pickled, safetensors, unread
from ramerge.core.formats.adapter_model import IN_4_BITS, AdaptedModel
from ramerge.core.formats.files import check_files, policy_places
from ramerge.core.formats.format import ADAPTER, Format, Opening
from ramerge.core.formats.peft import CONFIG, AdapterSettings, read_settings
from ramerge.core.foundation.errors import CheckpointError, collected
from ramerge.core.foundation.text import quoted
from ramerge.core.storage.location import Location
from ramerge.core.tensors.checkpoint import Checkpoint, Contents
from ramerge.core.tensors.embeddings import set_vocabulary
from ramerge.core.tensors.identity import identify
from ramerge.core.tensors.tensor import Tensor

_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# Problems of a kind that are listed one by one.
_MOST_ALIKE = 3


def find(folder: Location) -> Location | None:
    """The folder of an adapter: this one, or verl's inside of a step or a run. MLX has a `CONFIG` of its own."""
    inside = (inner for place in policy_places(folder) for inner in (place, place / "lora_adapter"))
    return next((inner for inner in inside if (inner / CONFIG).exists() and not unread.is_mlx(inner)), None)


def open_folder(folder: Location, opening: Opening) -> Contents:
    """Open an adapter over `opening.base`.

    Raises:
        CheckpointError: there is no base, or the adapter cannot be read or does not fit it; all problems are listed.
    """
    base = opening.needed(folder, "a LoRA adapter")
    present = [name for name in _WEIGHTS if (folder / name).exists()] or [_WEIGHTS[0]]
    if not (folder / present[0]).exists() and (several := [path.name for path in folder.glob("adapter_model-*-of-*")]):
        raise CheckpointError(
            f"{folder}: the adapter is in several files, such as {quoted(min(several))}, which PEFT does not read "
            "either; save it in one: model.save_pretrained(OUT, max_shard_size='1TB')"
        )
    names = (present[0], CONFIG)
    check_files(folder, names, in_index=False, allow_outside_links=opening.allow_outside_links)
    files = identify(folder / name for name in names)
    path, problems = folder / present[0], list[str]()
    stored: Sequence[Tensor] = ()
    with collected(problems):
        stored = safetensors.tensors_of(path) if path.suffix == ".safetensors" else pickled.tensors_of(path)
    if (text := unread.adapter_of_megatron(folder, (tensor.name for tensor in stored))) is not None:
        raise CheckpointError(text)
    with collected(problems):
        settings = read_settings(folder)
    if problems:
        raise CheckpointError(problems)
    agent = AdaptedModel(path, settings, base)
    agent.add(stored)
    agent.tie_again()
    if agent.problems:
        raise CheckpointError(f"{path}: {text}" for text in _gathered(agent.problems))
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
        notes=(f"{folder} is a LoRA adapter: {agent.told()}", *agent.notes),
        warnings=tuple(f"{path}: {text}" for text in (*agent.warnings, *_other_base(settings, base))),
        tokenizers=(*base.tokenizers, folder),
        quantized=quantized,
        vocabulary=vocabulary,
        untied=base.untied,
    )


def _gathered(problems: Sequence[str]) -> list[str]:
    """The problems; of those that say the same of many modules, the first and how many there are."""
    alike: dict[str, list[str]] = {}
    for text in problems:
        alike.setdefault(re.sub(r"'[^']*'|[0-9]+", "", text), []).append(text)
    return [
        text
        for texts in alike.values()
        for text in (texts if len(texts) <= _MOST_ALIKE else [f"{texts[0]} (and {len(texts) - 1:,} others alike)"])
    ]


def _other_base(settings: AdapterSettings, base: Checkpoint) -> Iterator[str]:
    """A warning if the adapter names another base. Paths differ between machines, so only last parts are compared."""
    known = {_model_name(str(place)) for place in (base.directory, base.directory.resolve(), base.metadata_folder)}
    known.add(_model_name(str(base.config.get("_name_or_path") or "")))
    named = IN_4_BITS.sub("", settings.base_model_name_or_path)
    if named and not {_model_name(named), _model_name(settings.base_model_name_or_path)} & known:
        yield (
            f"its configuration says that it was trained on {quoted(named)}, and the base is "
            f"{base.directory}; the shapes fit, but on another model it makes no sense"
        )


def _model_name(place: str) -> str:
    """The last part of a model's name or path, in small letters; that of the model in a path of the hub's cache."""
    parts = [part for part in re.split(r"[/\\]", place) if part]
    cached = [part for part in parts if part.startswith("models--")]
    return (cached[0].rpartition("--")[2] if cached else parts[-1] if parts else "").lower()


FORMAT = Format(ADAPTER, "LoRA adapters of PEFT", find, open_folder, needs_base=True, priority=70)
