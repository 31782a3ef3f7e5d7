"""An opened model: its tensors, and the rest of its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ramerge.core.storage.location import Location
from ramerge.core.tensors.access import Identity
from ramerge.core.tensors.orientation import Orientation, orientation_of
from ramerge.core.tensors.tensor import Tensor


@dataclass(frozen=True)
class Quantized:
    """Storage of a checkpoint whose weights are decoded.

    Attributes:
        names: of the decoded tensors.
        dtype: dtype of the decoded tensors in an output that states none: that of the model before it was quantized.
        extras: what belongs to the stored checkpoint and not to the model: scales of activations, by name.
        shards: safetensors files in order, each with the names of the stored tensors.
    """

    title: str
    names: frozenset[str]
    dtype: str
    extras: Mapping[str, Tensor]
    shards: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Contents:
    """Contents of a model's folder, as its format has opened it.

    Attributes:
        tensors: name to tensor, in the order in which an output shall have them.
        files: the identity of every file that was read or will be, from before it was read.
        config: `config.json`; empty if there is none.
        metadata_folder: the folder with `config.json`, tokenizer and other files that belong to the model.
        shards: safetensors files in order, each with the names of its tensors in the order of their bytes; empty if the
            format has no such files.
        notes: remarks on how the folder is read.
        warnings: likely mistakes.
        tokenizers: folders whose tokenizer files replace those of `metadata_folder`, the later before the earlier.
        quantized: how the weights are stored if they, or those that an adapter changes, are quantized; `tensors`,
            `shards` and `config` are then those of the model without quantization.
        vocabulary: rows of the embeddings if there are not as many as `config.json` in `metadata_folder` says.
        untied: whether the output embeddings are a tensor of their own although `config.json` ties them.
        companions: the files next to the weights by name, where they are not those of `metadata_folder`.
        lineage: the digest of the model that deltas began with, and of what each of them gives; empty if no delta is
            part of it.
        delta: the folder with the delta in ramerge's layout, if it is one; of several the last one.
    """

    tensors: Mapping[str, Tensor]
    files: Mapping[Location, Identity]
    config: Mapping[str, object]
    metadata_folder: Location
    shards: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    tokenizers: tuple[Location, ...] = ()
    quantized: Quantized | None = None
    vocabulary: int | None = None
    untied: bool = False
    companions: Mapping[str, Location] | None = None
    lineage: tuple[str, ...] = ()
    delta: Location | None = None

    @cached_property
    def orientation(self) -> Orientation:
        """Orientation of the model's linear weights."""
        return orientation_of({name: tensor.shape for name, tensor in self.tensors.items()}, self.config)


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Contents):
    """An opened model.

    Attributes:
        directory: the folder that was named.
        outside_links: whether its files may be links that lead out of their folder.
    """

    directory: Location
    format: str
    title: str
    needs_base: bool = False
    outside_links: bool = False

    @property
    def companion_folders(self) -> tuple[Location, ...]:
        """The folders of the model's other files; tokenizer files of later ones replace earlier ones."""
        return (self.metadata_folder, *self.tokenizers)
