"""Reads `pytorch_model.bin` files: dictionaries of tensors that `torch.save` wrote."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ramerge.core.formats.format import Format, Opening, local
from ramerge.core.formats.series import Naming, open_files
from ramerge.core.formats.torchfile.load import View, load_file
from ramerge.core.formats.views import split_off_ties, tensor_of
from ramerge.core.foundation.errors import CheckpointError, collect
from ramerge.core.foundation.text import quoted
from ramerge.core.storage.location import Location, here
from ramerge.core.tensors.checkpoint import Contents
from ramerge.core.tensors.tensor import Tensor

NAMING = Naming(("pytorch_model", "diffusion_pytorch_model"), ".bin", "*pytorch_model-*-of-*.bin")


def open_folder(folder: Path, opening: Opening) -> Contents:
    """Open `pytorch_model.bin`, or a series of such files."""
    contents = open_files(folder, NAMING, tensors_of, opening)
    untied, ties = split_off_ties(contents.tensors.values(), contents.config)
    shards = {
        re.sub("^pytorch_model", "model", file).removesuffix(".bin") + ".safetensors": layout
        for file, names in contents.shards.items()
        if (layout := tuple(name for name in names if name in untied))
    }
    return replace(contents, tensors=untied, shards=shards, notes=(*contents.notes, *ties))


def tensors_of(path: Location) -> list[Tensor]:
    """Return the tensors of a pickled file, in the order in which they were saved."""
    if (file := here(path)) is None:
        raise CheckpointError(f"{path}: a file of torch.save is read on this machine only; copy it here, or convert it")
    state = load_file(file)
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, View) for name, value in state.items()
    ):
        keys = [quoted(key) for key in list(state)[:3] if isinstance(key, str)] if isinstance(state, dict) else []
        raise CheckpointError(
            f"{path}: must hold a dictionary of tensors, and has {', '.join(keys) or 'no names'}; save "
            "model.state_dict() with save_pretrained"
        )
    problems: list[str] = []
    tensors = []
    for name, view in state.items():
        with collect(problems):
            tensors.append(tensor_of(name, view))
    if problems:
        raise CheckpointError(problems)
    return tensors


FORMAT = Format("bin", "pytorch_model.bin", NAMING.find, local(open_folder), priority=60)
