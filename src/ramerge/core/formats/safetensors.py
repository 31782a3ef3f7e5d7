"""Reads safetensors files, as `save_pretrained` writes them: one file, or several with or without an index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ramerge.core.formats.format import Format, Opening
from ramerge.core.formats.series import STEMS, Naming, open_files, stem_of
from ramerge.core.foundation.errors import readable
from ramerge.core.storage.location import Location, is_far
from ramerge.core.tensors.checkpoint import Contents
from ramerge.core.tensors.header import read_header
from ramerge.core.tensors.tensor import Stored, Tensor

NAME = "safetensors"
NAMING = Naming(
    STEMS,
    ".safetensors",
    "*.safetensors",
    others=(
        "adapter_model*.safetensors",
        "shard-*-model-*.safetensors",
        "*adapters.safetensors",
        "model-rank-*-part-*.safetensors",
        "*_processor.safetensors",
    ),
    again="consolidated*.safetensors",  # the same model under the names of Mistral's own code
)
ONE_FILE, INDEX, find = NAMING.one_file, NAMING.index, NAMING.find


def index_of(files: Iterable[str]) -> str:
    """Return the name of the index that libraries expect next to these files."""
    return f"{stem_of(files)}.safetensors.index.json"


def open_folder(folder: Location, opening: Opening) -> Contents:
    """Read the headers of safetensors files, and check that the index, the numbered names and the files agree."""
    contents = open_files(folder, NAMING, tensors_of, opening)
    first = next(iter(contents.shards), None)
    if first is None or is_far(folder) or not _is_of_mlx(folder / first):
        return contents
    note = (
        f"{folder}: was saved by MLX, which stores convolutions with their channels last, and the norms of some models "
        "plus one; if the merge warns of norms, or shapes differ, give the model as its trainer saved it"
    )
    return replace(contents, notes=(*contents.notes, note))


def _is_of_mlx(path: Location) -> bool:
    """Whether MLX saved a file. The header is searched before it is parsed again, because parsing takes long."""
    with readable(path), path.open("rb") as file:
        if b'"mlx"' not in file.read(int.from_bytes(file.read(8), "little")):
            return False
    return read_header(path).metadata.get("format") == "mlx"


def tensors_of(path: Location) -> list[Tensor]:
    """Return the tensors of a safetensors file, in the order of their bytes."""
    return [
        Tensor(entry.name, entry.dtype, entry.shape, Stored(path, entry.begin, entry.end - entry.begin))
        for entry in read_header(path).entries
    ]


FORMAT = Format(NAME, "safetensors files", find, open_folder, priority=80)
