"""Compiles source to machine code with numba; imported only when something must be compiled.

A kernel becomes a C function (`numba.cfunc`), which this process can call at once. numba also returns the LLVM code
(`inspect_llvm`), which `object_code` turns into an object file that a later process loads without numba. Both are
public API of numba. `_uncounted_array`, which makes an array from an address and a size without reference counting,
uses private API: numba's `carray` calls functions of numba, which an object file cannot do.
"""

from __future__ import annotations

import ast
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import cfunc, config, njit, types
from numba.extending import intrinsic

from ramerge.core.foundation.errors import RamergeError
from ramerge.core.kernels.intrinsics import INTRINSICS
from ramerge.core.kernels.native import KernelSource

_SCALARS = {"f32": types.float32, "f64": types.float64, "u32": types.uint32, "u64": types.uint64, "i64": types.int64}
_ELEMENTS = {**_SCALARS, "u8": types.uint8, "u16": types.uint16}
# Kernels allocate nothing. Without `_nrt`, numba does not first insert reference counting and then remove it.
_OPTIONS = {"error_model": "numpy", "boundscheck": False, "forceinline": True, "_nrt": False}
# callees are compiled into a kernel; only the kernel is called from outside
_INSIDE = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def _uncounted_array(_typing: Any, pointer: Any, size: Any) -> Any:
    """`carray` without reference counting."""
    array = types.Array(pointer.dtype, 1, "C")

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        from numba.core.cgutils import pack_array
        from numba.np.arrayobj import make_array, populate_array

        itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array.dtype)))
        result = make_array(array)(context, builder)
        shape, strides = (pack_array(builder, [value]) for value in (values[1], itemsize))
        populate_array(result, data=values[0], shape=shape, strides=strides, itemsize=itemsize, meminfo=None)
        return result._getvalue()  # noqa: SLF001  # as numba's own array constructors do

    return array(pointer, size), generate


_array: Any = intrinsic(_uncounted_array)


def _use_widest_vectors(_typing: Any) -> Any:
    """Let LLVM use the processor's widest vectors in the function that calls this intrinsic.

    For most processors with 512-bit vectors, LLVM uses 256 bits, because the first of these processors (Skylake) ran
    at a lower clock with 512. llvmlite does not know this attribute, but writes out everything in the set.
    """

    def generate(context: Any, builder: Any, _signature: Any, _values: Any) -> Any:
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), generate


_widest: Any = intrinsic(_use_widest_vectors)


def _print_values(*values: Any) -> None:
    """Print for debugging: `numba.cfunc` can compile `print` only in a called function."""
    print(*values)


_print: Any = njit(_nrt=True)(_print_values)
_NAMES = {"np": np, "in_widest": _widest, "array_of": _array, "print": _print, "__name__": __name__, **INTRINSICS}


def compile_kernel(source: KernelSource, features: str) -> Any:
    """Compile a kernel for `native.load`.

    Returns:
        numba's `CFunc`. Its code stays at `address` while the object is referenced. The function takes an address and a
        size for each array, and numbers.
    """
    if config.DISABLE_JIT:  # functions that a kernel calls would stay plain Python
        raise RamergeError(
            "NUMBA_DISABLE_JIT: switches numba off, but merging needs kernels that numba compiles; unset it"
        )
    callees = {name: _compile_callee(function) for name, function in source.scope.items()}
    names = _NAMES | callees
    code = ast.parse(source.text)
    function = code.body[0]
    assert isinstance(function, ast.FunctionDef)
    _take_addresses(function, source.arguments)
    if "+avx512vbmi2" in features:  # only newer processors, which do not slow down
        function.body[:0] = ast.parse("in_widest()").body
    exec(compile(code, f"<kernel {source.name}>", "exec"), names)  # noqa: S102 - source of our own
    signature = _SCALARS[source.returns](*[part for code in source.arguments for part in _native_types(code)])
    return cfunc(signature, **_OPTIONS)(names[source.name])


def object_code(dispatcher: Any, processor: str, features: str) -> bytes | None:
    """Return an object file for a processor that defines the function `dispatcher.native_name`.

    None if the code calls functions of numba or Python, which a process that loads it may lack, or if LLVM cannot parse
    numba's code.
    """
    try:
        module = llvm.parse_assembly(dispatcher.inspect_llvm())
    except RuntimeError:
        return None
    declarations = [function.name for function in module.functions if function.is_declaration]
    if not all(name.startswith("llvm.") for name in declarations):
        return None
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(processor, features, opt=3, codemodel="jitdefault", jit=True)
    code: bytes = machine.emit_object(module)
    return code


def _compile_callee(function: Any) -> Any:
    """Compile a plain function, and the functions of its module that it calls, so that compiled code can call it.

    The functions see the intrinsics and the names of their module.
    """
    names = function.__globals__
    callees = {
        name: _compile_callee(names[name])
        for name in function.__code__.co_names
        if isinstance(names.get(name), FunctionType)
    }
    plain = FunctionType(
        function.__code__, {**INTRINSICS, **names, **callees}, function.__name__, function.__defaults__
    )
    return njit(**_INSIDE)(plain)


def _native_types(code: str) -> tuple[Any, ...]:
    if code.endswith("[]"):
        return types.CPointer(_ELEMENTS[code[:-2]]), types.int64
    return (_SCALARS[code],)


def _take_addresses(function: ast.FunctionDef, arguments: tuple[str, ...]) -> None:
    """Replace each array parameter of a kernel by an address and a size, from which the body first makes an array."""
    names, arrays = [], []
    for name, code in zip([parameter.arg for parameter in function.args.args], arguments, strict=True):
        if code.endswith("[]"):
            address, size = f"_address_of_{name}", f"_size_of_{name}"
            names += [address, size]
            arrays.append(f"{name} = array_of({address}, {size})")
        else:
            names.append(name)
    function.args.args = [ast.arg(name, lineno=1, col_offset=0) for name in names]
    function.body[:0] = ast.parse("\n".join(arrays)).body
