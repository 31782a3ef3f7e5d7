"""Safetensors files, as `save_pretrained` writes them: one, several with an index, or several without."""

from __future__ import annotations

from ramerge.core.formats.format import Format, Opening
from ramerge.core.formats.series import Naming, open_files
from ramerge.core.storage.location import Location
from ramerge.core.tensors.checkpoint import Contents
from ramerge.core.tensors.header import read_header
from ramerge.core.tensors.tensor import Stored, Tensor

NAME = "safetensors"
INDEX = "model.safetensors.index.json"
ONE_FILE = "model.safetensors"
NAMING = Naming(
    ONE_FILE,
    INDEX,
    "*.safetensors",
    others=("adapter_model*.safetensors", "shard-*-model-*.safetensors", "*adapters.safetensors"),
    again="consolidated*.safetensors",  # the same model under the names of Mistral's own code
)


def find(folder: Location) -> Location | None:
    """The folder itself if it holds weights in safetensors files."""
    return folder if NAMING.is_in(folder) else None


def open_folder(folder: Location, opening: Opening) -> Contents:
    """Read the headers of safetensors files, and check that index, numbers and files agree.

    Raises:
        CheckpointError: a file is missing or wrong; all problems are listed.
    """
    return open_files(folder, NAMING, tensors_of, opening)


def tensors_of(path: Location) -> list[Tensor]:
    """The tensors of a safetensors file, in the order of their bytes.

    Raises:
        CheckpointError: the file cannot be read, or its header is wrong.
    """
    return [
        Tensor(entry.name, entry.dtype, entry.shape, Stored(path, entry.begin, entry.end - entry.begin))
        for entry in read_header(path).entries
    ]


FORMAT = Format(NAME, "safetensors files", find, open_folder, priority=80)
