"""From source to machine code, with numba; imported only where something is compiled.

The function that comes out has numba's own calling convention, which is C's: it takes a pointer to the result, a
pointer for an exception, and the arguments, and returns 0 if it did not raise. The wrappers that numba would put around
it for Python are left out, because they would call into Python and into numba, and neither shall be needed to load it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils, compiler, registry
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from ramerge.kernels.intrinsics import INTRINSICS

_SCALARS = {"f32": types.float32, "f64": types.float64, "u32": types.uint32, "u64": types.uint64, "i64": types.int64}
_ELEMENTS = {**_SCALARS, "u8": types.uint8}
_OPTIONS = {"error_model": "numpy", "boundscheck": False, "forceinline": True}


def _as_array(_typing: Any, pointer: Any, size: Any) -> Any:
    """`size` elements at `pointer` as an array. numba's `carray` would bring its reference counting with it."""
    array = types.Array(pointer.dtype, 1, "C")

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array.dtype)))
        made = make_array(array)(context, builder)
        shape, strides = (cgutils.pack_array(builder, [value]) for value in (values[1], itemsize))
        populate_array(made, data=values[0], shape=shape, strides=strides, itemsize=itemsize, meminfo=None)
        return made._getvalue()

    return array(pointer, size), generate


_array: Any = intrinsic(_as_array)


def machine_code(
    name: str, source: str, arguments: tuple[str, ...], returns: str, scope: Mapping[str, Callable[..., Any]]
) -> tuple[str, bytes]:
    """Compile; see `native.load`.

    Returns:
        The function's symbol, and relocatable code for this processor that defines it.

    Raises:
        numba.core.errors.NumbaError: if the source cannot be compiled.
        ValueError: if it calls what is not machine code.
    """
    known = {
        "np": np,
        "__name__": __name__,
        **INTRINSICS,
        **{key: _callee(function) for key, function in scope.items()},
    }
    exec(compile(source, f"<kernel {name}>", "exec"), known)  # noqa: S102
    flags = compiler.Flags()
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.nrt = False
    flags.error_model = "numpy"
    target = registry.cpu_target
    target.typing_context.refresh()
    target.target_context.refresh()
    compiled = compiler.compile_extra(
        target.typing_context,
        target.target_context,
        _entry(njit(**_OPTIONS)(known[name]), arguments),
        tuple(one for code in arguments for one in _native(code)),
        _SCALARS[returns],
        flags,
        {},
    )
    _check(name, compiled.library)
    return compiled.fndesc.llvm_func_name, compiled.library.serialize_using_object_code()[2][0]


def _callee(function: Any) -> Any:
    """A plain function as one that compiled code can call, which sees the intrinsics beside its module's names."""
    plain = FunctionType(
        function.__code__, {**INTRINSICS, **function.__globals__}, function.__name__, function.__defaults__
    )
    return njit(**_OPTIONS)(plain)


def _native(code: str) -> tuple[Any, ...]:
    """An argument as it is passed: a scalar, or an array's address and size."""
    if code.endswith("[]"):
        return types.CPointer(_ELEMENTS[code[:-2]]), types.int64
    return (_SCALARS[code],)


def _entry(kernel: Any, arguments: tuple[str, ...]) -> Any:
    """A function of addresses, sizes and scalars that calls `kernel` with arrays and scalars."""
    parameters, values = [], []
    for place, code in enumerate(arguments):
        is_array = code.endswith("[]")
        parameters.append(f"p{place}, n{place}" if is_array else f"x{place}")
        values.append(f"array(p{place}, n{place})" if is_array else f"x{place}")
    known = {"kernel": kernel, "array": _array, "__name__": __name__}
    text = f"def entry({', '.join(parameters)}):\n    return kernel({', '.join(values)})\n"
    exec(compile(text, "<entry>", "exec"), known)  # noqa: S102
    return known["entry"]


def _check(name: str, library: Any) -> None:
    """Refuse code that calls functions of numba's or Python's: a process that only loads it might not have them."""
    declared = [function.name for function in library._final_module.functions if function.is_declaration]
    foreign = [symbol for symbol in declared if not symbol.startswith("llvm.")]
    if foreign:
        raise ValueError(f"kernel {name} calls {', '.join(foreign)}; it may compute with numbers and arrays alone")
