"""Loads kernels: functions written in a subset of Python, compiled once, and loaded as machine code after that.

Importing numba and loading its cached code takes most of a second (see "Machine code of kernels" in
benchmarks/README.md). So a kernel is stored as an object file, which LLVM can load and ctypes can call. numba is
imported only to compile a kernel that is not stored yet. `compiler` compiles the code, `store` holds it, and a wheel
comes with a `bundle` of it.
"""

from __future__ import annotations

import ctypes
import hashlib
import linecache
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dis import get_instructions
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any
from warnings import warn

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from ramerge.core.foundation import store
from ramerge.core.foundation.errors import PluginError, RamergeError, reason
from ramerge.core.kernels import bundle
from ramerge.core.registry import plugin_of

Kernel = Callable[..., Any]

_SCALARS: dict[str, Any] = {
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "i64": ctypes.c_int64,
}
_DTYPES = {f"{code}[]": np.dtype(f"{code[0]}{int(code[1:]) // 8}") for code in (*_SCALARS, "u8", "u16")}

# The source of the compiler's own modules, read on import, so that it is the source of the running code.
_TOOLS = [(Path(__file__).parent / f"{name}.py").read_bytes() for name in ("native", "compiler", "intrinsics")]

FORMULAS = (
    "a formula may use numbers, comparisons, conditions, loops over agents, abs, min, max, scalar functions of NumPy "
    'such as np.sqrt, and functions and constants of its own module; see the guide "Write your own method"'
)

_lock = threading.Lock()
_listeners = threading.local()
_kernels: dict[bytes, tuple[KernelSource, Kernel]] = {}
# The owners of the machine code's memory: LLVM's engines, and numba's functions.
_owners: list[Any] = []


@dataclass(frozen=True)
class KernelSource:
    """Source and types of a kernel that `load` compiles."""

    name: str
    text: str
    arguments: tuple[str, ...]
    returns: str
    scope: Mapping[str, Callable[..., Any]]

    @property
    def key(self) -> bytes:
        """The SHA-256 of everything that the machine code depends on."""
        callees = sorted((name, _describe_function(function, _code_fields)) for name, function in self.scope.items())
        parts = (_compiler_description(), self.name, self.text, self.arguments, self.returns, callees)
        return hashlib.sha256(repr(parts).encode()).digest()

    @property
    def portable_key(self) -> str | None:
        """The SHA-256 of the source, independent of the compiler; None if it calls functions that no bundle covers."""
        try:
            callees = sorted((name, _describe_function(function, _code_place)) for name, function in self.scope.items())
        except ValueError:
            return None
        parts = (self.name, self.text, self.arguments, self.returns, callees)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def load(
    name: str,
    source: str,
    arguments: tuple[str, ...],
    returns: str,
    scope: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> Kernel:
    """Return the function `name` that `source` defines, compiled for this processor.

    Args:
        name: the function's name.
        source: Python that numba can compile. It sees `np`, everything in `intrinsics` and `scope`, and nothing else.
            It must not allocate or raise, because it is called as a C function.
        arguments: types of the arguments: `u8[]`, `u16[]`, `u32[]`, `u64[]`, `i64[]`, `f32[]`, `f64[]` for contiguous
            arrays, which the source sees with one dimension; `u32`, `u64`, `i64`, `f32`, `f64` for numbers.
        returns: type of the result.
        scope: functions that the source may call, by name, which are compiled with it. They see the intrinsics, and the
            modules, types, numbers, strings and other plain functions of their own module.

    Returns:
        A function that takes arrays and numbers, releases the GIL, and returns an int or a float. It raises TypeError
            for an array of another type or layout, and ValueError for a wrong number of arguments.

    Raises:
        PluginError: a plug-in's function in `scope`, or something that it uses, cannot be compiled.
        TypeError: the same for one of ramerge's functions.
        numba.core.errors.NumbaError: the source cannot be compiled.
        RamergeError: files of numba cannot be read.

    Warns:
        RuntimeWarning: the machine code cannot be stored, so every process compiles it again.
    """
    kernel_source = KernelSource(name, source, arguments, returns, scope)
    try:
        key = kernel_source.key
        with _lock:
            if key not in _kernels:
                code = store.read("kernels", key) or _bundled_code(kernel_source)
                _kernels[key] = (
                    kernel_source,
                    _wrap_address(kernel_source, _compile(key, kernel_source) if code is None else _link_code(code)),
                )
            return _kernels[key][1]
    except OSError as error:  # a caller that writes files would take it for an error of its own files
        what = f"kernel {name} cannot be compiled or loaded: {reason(error)}"
        raise RamergeError(f"{what}: {error.filename}" if error.filename else what) from error
    except RamergeError:
        raise
    except Exception as error:  # numba raises many kinds, also outside of its own hierarchy
        for function in scope.values():
            if getattr(function, "__module__", "").partition(".")[0] != "ramerge":
                raise PluginError(_compile_error_message(function, error)) from error
        raise


def _compile_error_message(function: Any, error: Exception) -> str:
    """Return a message that names a plug-in's function, the line and the reason, and what functions may use."""
    code: CodeType | None = getattr(function, "__code__", None)
    lines = [line.strip() for line in re.sub(r"\x1b\[\d*m", "", str(error)).splitlines()]
    telling = [line for line in lines if line and not line.startswith(("Failed in nopython", "During: "))]
    why = " ".join(telling[: 2 if telling and telling[0].endswith("signature:") else 1]).partition(": %")[0]
    why = "it needs memory, as lists and arrays do" if why.startswith("NRT required") else why or type(error).__name__
    place = ""
    if code is not None:
        path, name = re.escape(code.co_filename), re.escape(Path(code.co_filename).name)
        match = re.search(rf'{path} \((\d+)\)|{name}", line (\d+)', "\n".join(lines))
        number = int(match[1] or match[2]) if match else _line_with_words(code, re.findall(r"'(\w+)", why))
        place = f"{code.co_filename}, line {number}: {linecache.getline(code.co_filename, number).strip()}: "
    author = plugin_of(function.__module__) or f"module {function.__module__}"
    return f"{author}: {function.__name__} cannot be compiled: {place}{why[:300]}; {FORMULAS}"


def _line_with_words(code: CodeType, words: Sequence[str]) -> int:
    """Return the first line of a function that has the last of some words; by default, the line where it begins."""
    last = max(line for *_, line in code.co_lines() if line is not None)
    texts = {line: linecache.getline(code.co_filename, line) for line in range(code.co_firstlineno, last + 1)}
    lines = (line for word in reversed(words) for line, text in texts.items() if re.search(rf"\b{word}\b", text))
    return next(lines, code.co_firstlineno)


def loaded_sources() -> list[KernelSource]:
    """Return the sources of all kernels that this process has loaded."""
    with _lock:
        return [source for source, _ in _kernels.values()]


def fill(template: str, /, **parts: str | float | Sequence[str]) -> str:
    """Fill in the fields `{name}` of a template.

    Args:
        template: the template.
        parts: text or numbers for fields within a line; a sequence of lines, which may be empty, for a field that is
            alone on its line, whose indent they get.
    """
    lines: list[str] = []
    for line in template.strip("\n").splitlines():
        part = parts.get(line.strip()[1:-1])
        if line.lstrip().startswith("{") and isinstance(part, Sequence) and not isinstance(part, str):
            indent = line[: len(line) - len(line.lstrip())]
            lines += [indent + each for each in part]
        else:
            lines.append(line.format(**parts))
    return "\n".join(lines)


def deferred_kernel(
    name: str, source: str, arguments: tuple[str, ...], scope: Mapping[str, Callable[..., Any]] = MappingProxyType({})
) -> Kernel:
    """Return a kernel with an int64 result that is loaded on its first call; arguments are as for `load`."""

    @cache
    def kernel() -> Kernel:
        return load(name, source, arguments, "i64", scope)

    return lambda *values: kernel()(*values)


@contextmanager
def notifying_compilation(notify: Callable[[bool], None]) -> Iterator[None]:
    """Within the block, call `notify` with False before and True after each kernel that this thread compiles.

    Compiling takes seconds, and other threads may wait for it.
    """
    _listeners.notify = notify
    try:
        yield
    finally:
        del _listeners.notify


def _compile(key: bytes, source: KernelSource) -> int:
    """Compile a kernel, store its machine code for later processes, and return the function's address."""
    notify = getattr(_listeners, "notify", lambda _done: None)
    notify(False)
    dispatcher, code = compile_source(source)
    notify(True)
    if code is None:
        text = f"numba {version('numba')} makes code of kernel {source.name} that cannot be kept for later processes"
        warn(text, RuntimeWarning, stacklevel=3)
    else:
        store.write("kernels", key, code)
    _owners.append(dispatcher)
    return int(dispatcher.address)


def compile_source(source: KernelSource) -> tuple[Any, bytes | None]:
    """Compile a kernel with numba, for this processor or the processor in numba's settings.

    Returns:
        numba's function, and the code that another process can link: the symbol, a zero byte and an object file; None
        if there is no such code.
    """
    from ramerge.core.kernels.compiler import compile_kernel, object_code

    processor, features = _target_processor()
    dispatcher = compile_kernel(source, features)
    code = object_code(dispatcher, processor, features)
    return dispatcher, None if code is None else dispatcher.native_name.encode("ascii") + b"\0" + code


def _bundled_code(source: KernelSource) -> bytes | None:
    """Return the machine code from the installation's bundle, unless numba's environment variables are set."""
    key = None if _numba_settings() else source.portable_key
    return bundle.find(key, llvm.get_process_triple(), _target_processor()[1]) if key else None


def _link_code(payload: bytes) -> int:
    symbol, _, code = payload.partition(b"\0")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _owners.append(engine)
    return int(engine.get_function_address(symbol.decode("ascii")))


def _wrap_address(source: KernelSource, address: int) -> Kernel:
    """Wrap the C function at an address for Python; it takes an address and a size for each array, and numbers."""
    native: list[Any] = []
    for code in source.arguments:
        native += [ctypes.c_void_p, ctypes.c_int64] if code in _DTYPES else [_SCALARS[code]]
    function = ctypes.CFUNCTYPE(_SCALARS[source.returns], *native)(address)
    dtypes = [_DTYPES.get(code) for code in source.arguments]
    converters = [float if code[0] == "f" else int for code in source.arguments]

    def kernel(*values: Any) -> Any:
        arguments: list[Any] = []
        for value, dtype, convert in zip(values, dtypes, converters, strict=True):
            if dtype is None:
                arguments.append(convert(value))
            elif value.dtype == dtype:
                arguments += (_array_address(value), value.size)
            else:
                raise TypeError(f"{source.name} takes an array of {dtype}, not of {value.dtype}")
        return function(*arguments)

    return kernel


def _array_address(array: Any, addressof: Any = ctypes.addressof, first: Any = ctypes.c_char.from_buffer) -> int:
    flags = array.flags
    if flags.carray and array.size:
        return int(addressof(first(array)))
    if not (flags.c_contiguous and flags.aligned):
        raise TypeError(f"an array with strides {array.strides} is not contiguous, or is not aligned")
    # slower, but only for arrays that are empty or not writable
    return int(array.ctypes.data)


# --- dependencies of a kernel ----------------------------------------------------------------------------------------


@cache
def _compiler_description() -> str:
    """Describe compiler and processor. numba's version is read without the import, which would take too long."""
    versions = (version("numba"), llvmlite.__version__, np.__version__, sys.version)
    return repr((_TOOLS, versions, _numba_settings(), llvm.get_process_triple(), _target_processor()))


def _numba_settings() -> list[tuple[str, str]]:
    return sorted(item for item in os.environ.items() if item[0].startswith("NUMBA_"))


def _target_processor() -> tuple[str, str]:
    """Return LLVM's name and features of the processor to compile for; numba's settings take precedence."""
    try:
        features = str(llvm.get_host_cpu_features().flatten())
    except RuntimeError:  # LLVM does not have them for every processor
        features = ""
    return os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name(), os.environ.get("NUMBA_CPU_FEATURES", features)


def can_expand() -> bool:
    """Whether kernels are compiled for a processor with an instruction to expand bytes into a vector by a mask."""
    return "+avx512vbmi2" in _target_processor()[1]


def _describe_function(function: Any, say: Callable[[CodeType], object]) -> str:
    """Describe a function as text: its code, and the values that it uses from its module.

    The module's file would not do, because it may have changed since the import. `say` returns a value that represents
    the code.
    """
    if not isinstance(function, FunctionType) or function.__closure__:
        raise TypeError(f"{function!r} is not a plain function of a module")
    code = function.__code__
    values = function.__globals__
    constants = {name: _describe_constant(name, values[name], say) for name in _global_names(code) if name in values}
    return repr((say(code), function.__defaults__, sorted(constants.items())))


def _global_names(code: CodeType) -> set[str]:
    """Return the names of all globals in code and its nested functions."""
    own = {str(step.argval) for step in get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return own.union(*[_global_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)])


def _code_fields(code: CodeType) -> tuple[Any, ...]:
    constants = [_code_fields(constant) if isinstance(constant, CodeType) else constant for constant in code.co_consts]
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_argcount, code.co_flags


def _code_place(code: CodeType) -> tuple[str, str, int]:
    """Return the position of code in the sources that bundles cover."""
    path = Path(code.co_filename).relative_to(bundle.PACKAGE)
    if path.parts[0] not in bundle.SOURCES:
        raise ValueError(path)
    return path.as_posix(), code.co_name, code.co_firstlineno


def _describe_constant(name: str, value: object, say: Callable[[CodeType], object]) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, (bool, int, float, str, np.generic, type)):
        return f"{type(value)} {value!r}"
    if isinstance(value, FunctionType):
        return _describe_function(value, say)
    raise TypeError(f"a compiled function cannot use {name}, a {type(value).__name__}")
