"""Safetensors files, as `save_pretrained` writes them: one, several with an index, or several without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ramerge.formats.files import open_files, read_index
from ramerge.formats.format import Format, Opening
from ramerge.foundation.errors import CheckpointError
from ramerge.storage.location import Location
from ramerge.tensors.checkpoint import Contents
from ramerge.tensors.header import read_header
from ramerge.tensors.tensor import Stored, Tensor

NAME = "safetensors"
INDEX = "model.safetensors.index.json"
ONE_FILE = "model.safetensors"
# Safetensors files that do not hold a model's tensors as they are.
_OTHERS = ("adapter_model*.safetensors", "shard-*-model-*.safetensors")


def find(folder: Location) -> Location | None:
    """The folder itself if it holds weights in safetensors files."""
    return folder if any((folder / name).exists() for name in (ONE_FILE, INDEX)) or _loose(folder) else None


def _loose(folder: Location) -> list[str]:
    others = {path for pattern in _OTHERS for path in folder.glob(pattern)}
    return sorted(path.name for path in folder.glob("*.safetensors") if path not in others)


def open_folder(folder: Location, opening: Opening) -> Contents:
    """Read the headers, and check that index and files agree.

    Raises:
        CheckpointError: a file is missing or wrong; all problems are listed.
    """
    warnings = tuple(_two_models(folder))
    files, listed = _weight_files(folder)
    return replace(open_files(folder, INDEX, files, listed, tensors_of, opening), warnings=warnings)


def tensors_of(path: Location) -> list[Tensor]:
    """The tensors of a file, in the order of their bytes.

    Raises:
        CheckpointError: the file cannot be read, or its header is wrong.
    """
    return [
        Tensor(entry.name, entry.dtype, entry.shape, Stored(path, entry.begin, entry.end - entry.begin))
        for entry in read_header(path).entries
    ]


def _weight_files(folder: Location) -> tuple[list[str], Mapping[str, str] | None]:
    """Names of the weight files, and the index's map of tensors to files; None without an index."""
    if (folder / ONE_FILE).exists():
        return [ONE_FILE], None
    if (folder / INDEX).exists():
        return read_index(folder / INDEX, ".safetensors")
    return _loose(folder), None


def _two_models(folder: Location) -> Iterator[str]:
    """A warning about a file and an index of other files, of which programs take one or the other."""
    if not (folder / ONE_FILE).exists() or not (folder / INDEX).exists():
        return
    try:
        files, _ = read_index(folder / INDEX, ".safetensors")
    except CheckpointError:
        files = []
    if files != [ONE_FILE]:
        yield (
            f"{folder}: holds both {ONE_FILE}, which is read, as transformers does, and {INDEX}, which names other "
            "files, as vLLM reads them; remove what is left from an earlier save"
        )


FORMAT = Format(NAME, "safetensors files", find, open_folder, priority=80)
