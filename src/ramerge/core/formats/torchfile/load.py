"""Reads a file of `torch.save` as plain values, with tensors as views of their bytes in the file.

This module lists the names that a pickle may use, with functions that create their values. The classes of
torch.distributed that describe shards become stubs (`instructions.Stub`), which hold arguments and state.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

from ramerge.core.formats.torchfile.archive import Archive, Window, damage, window
from ramerge.core.formats.torchfile.instructions import Machine, Name, RefusedError, Stub
from ramerge.core.foundation.dtypes import TORCH_NAMES, itemsize
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.foundation.text import quoted

# enough for 200,000 DTensors
_MOST_PICKLE_BYTES = 64_000_000
_MOST_DIMENSIONS = 16
_MOST = 2**63 - 1


@dataclass(frozen=True)
class TorchStorage:
    """Bytes of a file that hold the elements of one or more tensors; tensors need not use all of them.

    `checksum` is the CRC-32 of the bytes, or 0 if the writer did not compute it.
    """

    path: Path
    offset: int
    nbytes: int
    checksum: int


@dataclass(frozen=True)
class View:
    """A tensor as a view of a storage. `start` and `strides` count elements.

    The tensor lies within its storage, and no number is negative.
    """

    storage: TorchStorage
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        """The bytes of the tensor's elements."""
        return prod(self.shape) * itemsize(self.dtype)


DTYPES = {f"torch.{name}": dtype for dtype, name in TORCH_NAMES.items()}
"""Names of dtypes in safetensors, by their names in pickles."""

_STORAGES = {
    "torch.DoubleStorage": "F64",
    "torch.FloatStorage": "F32",
    "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16",
    "torch.LongStorage": "I64",
    "torch.IntStorage": "I32",
    "torch.ShortStorage": "I16",
    "torch.CharStorage": "I8",
    "torch.ByteStorage": "U8",
    "torch.BoolStorage": "BOOL",
    "torch.ComplexFloatStorage": "C64",
}
_UNTYPED = "torch.storage.UntypedStorage"

SHARDED_TENSOR = "torch.distributed._shard.sharded_tensor.api.ShardedTensor"
# Packages whose classes may all be used, because torch moves classes between modules; their objects become stubs, which
# have no behavior. Parts of `pathlib` paths are not joined, because nested paths could need any amount of memory.
_PACKAGES = ("torch.distributed", "pathlib")
_CLASSES = ("torch.device", "torch.Tensor", "torch.nn.parameter.Parameter", "torch.serialization._get_layout")

_Make = Callable[[Name, tuple[object, ...]], object]


@contextmanager
def suspend_garbage_collection() -> Iterator[None]:
    """Suspend garbage collection of cycles, which would take half of the time by visiting all objects repeatedly.

    Values of a file have no cycles unless it is an attack; these are collected afterwards.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def load(file: Window, modules: Collection[str] = ()) -> object:
    """Read the value in an archive of torch.save.

    Args:
        file: the archive.
        modules: further packages whose classes all become stubs.

    Raises:
        CheckpointError: the file is not such an archive, is damaged, or its pickle contains anything but tensors, plain
            values, and classes that describe shards.
    """
    archive = Archive(file)
    if archive.read("byteorder", most=16) not in (None, b"little"):
        raise CheckpointError(
            f"{file.path}: was written on a machine with another byte order; save it again on this one"
        )
    data = archive.read("data.pkl", most=_MOST_PICKLE_BYTES)
    if data is None:
        raise damage(file.path, "the archive has no data.pkl")
    return _unpickle(file.path, data, archive, modules)


def load_file(path: Path, modules: Collection[str] = ()) -> object:
    """Read the value in a file of `torch.save`. Nothing in its pickle is executed, and no elements are read.

    Args:
        path: the file.
        modules: further packages whose classes all become stubs.

    Returns:
        Plain values, in which each tensor is a `View` with dtype, shape, strides and position in the file.

    Raises:
        CheckpointError: as for `load`.
    """
    with window(path) as file:
        return load(file, modules)


def load_plain(path: Path, modules: Collection[str] = ()) -> object:
    """Read the value in a plain pickle file without tensors; otherwise like `load_file`."""
    with window(path) as file:
        if file.end > _MOST_PICKLE_BYTES:
            raise CheckpointError(f"{path}: has {file.end:,} bytes, more than the {_MOST_PICKLE_BYTES:,} that are read")
        return _unpickle(path, file.read(0, file.end), None, modules)


def _unpickle(path: Path, data: bytes, archive: Archive | None, modules: Collection[str]) -> object:
    try:
        return Machine(data, partial(_find_name, modules), _make_object, partial(_resolve_storage, archive, {})).run()
    except RefusedError as error:
        raise CheckpointError(f"{path}: refused: {error}; nothing of it was executed") from error


def _find_name(modules: Collection[str], module: str, name: str) -> Name:
    path = f"{module}.{name}"
    if path in _MAKERS or path in DTYPES or path in _STORAGES or path == _UNTYPED or path in _CLASSES:
        return Name(path)
    if any(module == package or module.startswith(f"{package}.") for package in (*_PACKAGES, *modules)):
        return Name(path)
    raise RefusedError(f"its pickle imports {quoted(path)}, which tensors do not need; it may be an attack")


def _make_object(name: Name, args: tuple[object, ...]) -> object:
    if name.path in _MAKERS:
        return _MAKERS[name.path](name, args)
    if name.path in DTYPES or name.path in _STORAGES or name.path == _UNTYPED:
        raise RefusedError(f"its pickle calls {name.path}; it may be an attack")
    return Stub(name.path, args)


def _make_ordered_dict(_name: Name, args: tuple[object, ...]) -> dict[object, object]:
    if args:
        raise RefusedError("its pickle makes a dictionary from arguments, which torch does not do")
    return {}


def _nested_class(_name: Name, args: tuple[object, ...]) -> Name:
    """Return the only attribute that torch's pickles use: a nested class."""
    if args != (Name(SHARDED_TENSOR), "ProcessGroupState"):
        raise RefusedError("its pickle reads an attribute of an object; it may be an attack")
    return Name(f"{SHARDED_TENSOR}.ProcessGroupState")


def _rebuild_tensor(name: Name, args: tuple[object, ...]) -> View:
    """Evaluate `_rebuild_tensor_v2(storage, start, shape, strides, requires_grad, hooks, more)`.

    In v3, the dtype comes before `more`. `more` marks elements that are negated or conjugated when they are read.
    """
    if len(args) < 6 or type(args[0]) is not tuple or len(args[0]) != 2 or type(args[0][0]) is not TorchStorage:
        raise RefusedError("its pickle makes a tensor from something that is not a storage")
    (storage, dtype), start, more = args[0], args[1], args[6:]
    if name.path.endswith("_v3"):
        dtype = DTYPES.get(more[0].path) if more and type(more[0]) is Name else None
        more = more[1:]
    if dtype is None:
        raise RefusedError("its pickle holds a tensor without a dtype")
    if any(more):
        raise RefusedError("a tensor is a view that negates or conjugates; save it again after .resolve_neg()")
    shape, strides = numbers(args[2], "a shape"), numbers(args[3], "strides")
    (start,) = numbers((start,), "an offset")
    if len(shape) != len(strides):
        raise RefusedError(f"a tensor has {len(shape)} dimensions, but {len(strides)} strides")
    last = start + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    if 0 not in shape and (last + 1) * itemsize(dtype) > storage.nbytes:
        raise RefusedError(f"a tensor of shape {list(shape)} goes beyond its storage of {storage.nbytes:,} bytes")
    return View(storage, dtype, shape, strides, start)


def _build_parameter(_name: Name, args: tuple[object, ...]) -> object:
    if not args or type(args[0]) not in (View, Stub):
        raise RefusedError("its pickle makes a parameter from something that is not a tensor")
    return args[0]


def _make_typed_tensor(_name: Name, args: tuple[object, ...]) -> object:
    if len(args) != 4 or type(args[0]) is not Name or type(args[2]) is not tuple:
        raise RefusedError("its pickle makes a tensor of a class in a way that torch does not")
    value = _make_object(args[0], args[2])
    if type(value) is Stub:
        value.fill(args[3])
    return value


def _rebuild_wrapper(_name: Name, args: tuple[object, ...]) -> Stub:
    """Evaluate `_rebuild_wrapper_subclass(class, dtype, shape, ...)`: a DTensor or ShardedTensor, yet without state."""
    if not args or type(args[0]) is not Name:
        raise RefusedError("its pickle makes a tensor of something that is not a class")
    return Stub(args[0].path, args[1:])


_MAKERS: dict[str, _Make] = {
    "collections.OrderedDict": _make_ordered_dict,
    "torch.Size": lambda _, args: numbers(args[0] if len(args) == 1 else None, "a size"),
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v3": _rebuild_tensor,
    "torch._utils._rebuild_parameter": _build_parameter,
    "torch._utils._rebuild_wrapper_subclass": _rebuild_wrapper,
    "torch._tensor._rebuild_from_type_v2": _make_typed_tensor,
    "__builtin__.getattr": _nested_class,
    "builtins.getattr": _nested_class,
}


def numbers(values: object, what: str) -> tuple[int, ...]:
    """Check a short list of integers that must not be negative and must fit 63 bits, and return it as a tuple."""
    if not (
        isinstance(values, tuple | list)
        and len(values) <= _MOST_DIMENSIONS
        and all(type(value) is int and 0 <= value <= _MOST for value in values)
    ):
        raise RefusedError(f"its pickle holds {what} that is no list of up to {_MOST_DIMENSIONS} sizes")
    return tuple(values)


def _resolve_storage(
    archive: Archive | None, storages: dict[str, TorchStorage], reference: object
) -> tuple[TorchStorage, str | None]:
    """Return storage and dtype for the persistent id `('storage', class, key, location, elements)`."""
    if archive is None:
        raise RefusedError("its pickle refers to a storage, but there is none")
    if type(reference) is not tuple or len(reference) != 5 or reference[0] != "storage":
        raise RefusedError("its pickle refers to something that is not a storage")
    _, kind, key, _, elements = reference
    if type(kind) is not Name or not (kind.path in _STORAGES or kind.path == _UNTYPED) or type(key) is not str:
        raise RefusedError("its pickle refers to a storage in a way that torch does not")
    if key not in storages:
        place = archive.entries.get(f"data/{key}")
        if place is None:
            raise RefusedError(f"its pickle refers to the storage {quoted(key)}, which the archive does not hold")
        storages[key] = TorchStorage(archive.file.path, archive.locate(place), place.nbytes, place.checksum)
    dtype, storage = _STORAGES.get(kind.path), storages[key]
    (count,) = numbers((elements,), "a number of elements")
    if count * (itemsize(dtype) if dtype else 1) != storage.nbytes:
        raise RefusedError(
            f"its pickle says that storage {quoted(key)} holds {count:,} elements, but it has {storage.nbytes:,} bytes"
        )
    return storage, dtype
