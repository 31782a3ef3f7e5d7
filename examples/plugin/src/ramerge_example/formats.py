"""A folder of NumPy files: `config.json`, and a file `NAME.npy` for each tensor NAME."""

from __future__ import annotations

import numpy as np

from ramerge import CheckpointError
from ramerge.sdk.formats import Format, Opening, read_config
from ramerge.sdk.storage import Location
from ramerge.sdk.tensors import Contents, Stored, Tensor, identify

_DTYPES = {"<f2": "F16", "<f4": "F32", "<f8": "F64", "<i4": "I32", "<i8": "I64"}


def find(folder: Location) -> Location | None:
    """The folder itself if it holds NumPy files."""
    return folder if any(folder.glob("*.npy")) else None


def open_folder(folder: Location, opening: Opening) -> Contents:
    """Read the headers.

    Raises:
        CheckpointError: a file is not an array, or links lead out of the folder.
    """
    paths = sorted(folder.glob("*.npy"))
    names = [path.name for path in paths]
    opening.check_files(folder, names, in_index=False)
    files = identify(paths)
    tensors = {path.stem: tensor_of(path) for path in paths}
    return Contents(tensors=tensors, files=files, config=read_config(folder), metadata_folder=folder)


def tensor_of(path: Location) -> Tensor:
    """The tensor of a file: where its bytes are, and what its header says of them."""
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, fortran, dtype = read(file)
            begin = file.tell()
            size = file.seek(0, 2) - begin
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: is not a NumPy array: {error}; write it again with numpy.save") from error
    nbytes = dtype.itemsize * int(np.prod(shape))
    if fortran or dtype.str not in _DTYPES or size != nbytes:
        raise CheckpointError(f"{path}: must hold a whole array of {', '.join(_DTYPES)} in C order")
    return Tensor(path.stem, _DTYPES[dtype.str], shape, Stored(path, begin, nbytes))


NPY = Format("npy", "NumPy files", find, open_folder, interface=1)
