"""An opened model: its tensors, and the other contents of its folder."""

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
    """How a quantized checkpoint, whose weights are decoded when they are read, is stored.

    Attributes:
        title: readable name of the encoding.
        names: the names of the decoded tensors.
        dtype: dtype of the decoded tensors in an output for which none is chosen: the model's before quantization.
        extras: tensors of the stored checkpoint that the decoded model does not have, such as scales of activations.
        shards: safetensors files in order, each with the names of its stored tensors.
    """

    title: str
    names: frozenset[str]
    dtype: str
    extras: Mapping[str, Tensor]
    shards: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Contents:
    """The contents of a model's folder, as opened by its format.

    Attributes:
        tensors: tensors by name, in the order that outputs will have.
        files: the identity of each file that was or will be read, taken before it is read.
        config: `config.json`; empty if there is none.
        metadata_folder: the folder with `config.json`, tokenizer and other files that belong to the model.
        shards: safetensors files in order, each with the names of its tensors in the order of their bytes; empty if the
            format has no such files.
        notes: remarks on how the folder is read.
        warnings: likely mistakes.
        tokenizers: folders whose tokenizer files replace those of `metadata_folder`; later folders take precedence.
        quantized: how the weights are stored if they, or the weights that an adapter changes, are quantized; `tensors`,
            `shards` and `config` are then those of the model without quantization.
        vocabulary: rows of the embeddings, if their number differs from `config.json` in `metadata_folder`.
        untied: whether the output embedding is a separate tensor although `config.json` ties it.
        companions: the files next to the weights by name, if they are not those of `metadata_folder`.
        lineage: the digests of the first model in a chain of deltas, and of the result of each delta; empty without
            deltas.
        delta: the folder of the delta, if the model is a delta in ramerge's layout; for several deltas, the last one.
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
        """The orientation of the model's linear weights."""
        return orientation_of({name: tensor.shape for name, tensor in self.tensors.items()}, self.config)


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Contents):
    """An opened model.

    Attributes:
        directory: the folder that was opened.
        format: the name of its format.
        title: readable name of its format.
        needs_base: whether it is an adapter or delta, which needs a base.
        outside_links: whether its files may be links that lead out of their folder.
    """

    directory: Location
    format: str
    title: str
    needs_base: bool = False
    outside_links: bool = False

    @property
    def companion_folders(self) -> tuple[Location, ...]:
        """The folders of the model's other files; tokenizer files in later folders replace those in earlier ones."""
        return (self.metadata_folder, *self.tokenizers)
