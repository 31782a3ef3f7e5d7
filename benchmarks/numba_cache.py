"""`ramerge` with numba's own cache for its kernels, to be compared with: `python -m benchmarks.numba_cache merge ...`.

numba caches functions of files only. So each kernel is written to a module of its own, in the folder where ramerge
would keep its machine code, and imported from there.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np

from ramerge.core.foundation import store
from ramerge.core.kernels import native

_TYPES = {"f": "float", "u": "uint", "i": "int"}
_HEAD = """import numpy as np
from numba import njit, types
from ramerge.core.kernels.compiler import _callee
from ramerge.core.kernels.intrinsics import INTRINSICS
globals().update(INTRINSICS)
"""
_lock = threading.Lock()


def load(
    name: str,
    source: str,
    arguments: tuple[str, ...],
    returns: str,
    scope: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> Callable[..., Any]:
    """As `native.load`."""
    functions = [
        f"import {function.__module__} as module\n{key} = _callee(module.{function.__qualname__})\n"
        for key, function in scope.items()
    ]
    signature = f"{_type(returns)}({', '.join(map(_type, arguments))})"
    options = "cache=True, nogil=True, error_model='numpy', boundscheck=False"
    text = f"{_HEAD}{''.join(functions)}{source}\nkernel = njit({signature}, {options})({name})\n"
    module = f"kernel_{hashlib.sha256(text.encode()).hexdigest()}"
    folder = store.folder("kernels")
    assert folder is not None
    path = folder / f"{module}.py"
    with _lock:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        kernel = import_module(module).kernel

    def call(*values: Any) -> Any:
        return kernel(*[value.reshape(-1) if isinstance(value, np.ndarray) else value for value in values])

    return call


def _type(code: str) -> str:
    name = f"types.{_TYPES[code[0]]}{code[1:].removesuffix('[]')}"
    return f"types.Array({name}, 1, 'C')" if code.endswith("[]") else name


if __name__ == "__main__":
    native.load = load
    from ramerge.cli.start import main

    main()
