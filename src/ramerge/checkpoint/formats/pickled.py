"""`pytorch_model.bin`, one or several with an index: dictionaries of tensors that `torch.save` wrote."""

from __future__ import annotations

from pathlib import Path

from ramerge.checkpoint.formats.files import check_files, check_index, read_config, read_index
from ramerge.checkpoint.formats.format import Contents, Format, Opening
from ramerge.checkpoint.formats.views import tensor_of, without_ties
from ramerge.checkpoint.identity import identify
from ramerge.checkpoint.tensor import Tensor
from ramerge.checkpoint.torchfile.load import View, load_file
from ramerge.foundation.errors import CheckpointError
from ramerge.foundation.text import quoted

INDEX = "pytorch_model.bin.index.json"
ONE_FILE = "pytorch_model.bin"


def find(folder: Path) -> Path | None:
    """The folder itself if it holds pickled weights."""
    return folder if (folder / ONE_FILE).exists() or (folder / INDEX).exists() else None


def open_folder(folder: Path, opening: Opening) -> Contents:
    """Find the tensors.

    Raises:
        CheckpointError: a file is missing or wrong; all problems are listed.
    """
    identities = identify(path for path in (folder / INDEX, folder / "config.json") if path.is_file())
    if (folder / ONE_FILE).exists():
        files, listed = [ONE_FILE], None
    else:
        files, listed = read_index(folder / INDEX, ".bin")
    check_files(folder, files, in_index=listed is not None, allow_outside_links=opening.allow_outside_links)
    identities |= identify(folder / name for name in files)
    tensors: dict[str, Tensor] = {}
    shards: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    for name in files:
        try:
            found = tensors_of(folder / name)
        except CheckpointError as error:
            problems.extend(error.problems)
            continue
        problems += [
            f"{folder / name}: tensor {quoted(tensor.name)} is also in {tensors[tensor.name].path.name}"
            for tensor in found
            if tensor.name in tensors
        ]
        shards[name] = tuple(tensor.name for tensor in found)
        tensors.update({tensor.name: tensor for tensor in found})
    if listed is not None and not problems:
        problems += check_index(folder, listed, shards)
    try:
        config = read_config(folder)
    except CheckpointError as error:
        problems.extend(error.problems)
    if problems:
        raise CheckpointError(problems)
    kept, notes = without_ties(tensors.values(), config)
    names = {tensor.name for tensor in kept}
    layout = {_renamed(file): tuple(name for name in held if name in names) for file, held in shards.items()}
    return Contents(
        tuple(kept), identities, config, folder, {file: held for file, held in layout.items() if held}, notes
    )


def tensors_of(path: Path) -> list[Tensor]:
    """The tensors of a file, in the order in which they were saved.

    Raises:
        CheckpointError: it does not hold a dictionary of tensors; see `torchfile.load`.
    """
    state = load_file(path)
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, View) for name, value in state.items()
    ):
        raise CheckpointError(f"{path}: must hold a dictionary of tensors; save model.state_dict() as safetensors")
    problems: list[str] = []
    tensors = []
    for name, view in state.items():
        try:
            tensors.append(tensor_of(name, view))
        except CheckpointError as error:
            problems.extend(error.problems)
    if problems:
        raise CheckpointError(problems)
    return tensors


def _renamed(shard: str) -> str:
    """Name of an output file: that of the .bin file, with the ending .safetensors."""
    return shard.replace("pytorch_model", "model").removesuffix(".bin") + ".safetensors"


FORMAT = Format("bin", "pytorch_model.bin", find, open_folder)
