"""Bit operations for compiled code, as numba intrinsics; imported only when something must be compiled.

numba promotes 32-bit integers to 64 bits, which halves the vector width, and supports neither bfloat16 nor rotations.
Functions that begin with an underscore emit LLVM code; the table at the end gives them names and types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()

INTRINSICS: dict[str, Any] = {}
"""All intrinsics by name."""


def _int32_constant(value: int) -> ir.Constant:
    return ir.Constant(I32, value)


# --- bfloat16: the upper half of a float32 --------------------------------------------------------------------------


def _bf16_from_bits(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Round float32 bits to bfloat16, ties to even, in the upper half of the result. NaN stays NaN."""
    odd = b.and_(b.lshr(bits, _int32_constant(16)), _int32_constant(1))
    rounded_bits = b.add(b.add(bits, _int32_constant(0x7FFF)), odd)
    is_nan = b.icmp_unsigned(">", b.and_(bits, _int32_constant(0x7FFFFFFF)), _int32_constant(0x7F800000))
    is_empty_payload = b.icmp_unsigned("==", b.and_(bits, _int32_constant(0x007F0000)), _int32_constant(0))
    quiet = b.or_(bits, b.select(is_empty_payload, _int32_constant(0x00400000), _int32_constant(0)))
    return b.select(is_nan, quiet, rounded_bits)


def _bf16_pack(b: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    low_bits = b.lshr(_bf16_from_bits(b, b.bitcast(low, I32)), _int32_constant(16))
    return b.or_(low_bits, b.and_(_bf16_from_bits(b, b.bitcast(high, I32)), _int32_constant(0xFFFF0000)))


# --- float16: by bit operations, since not every processor converts it ----------------------------------------------


def _f16_to_f32(b: ir.IRBuilder, half: ir.Value) -> ir.Value:
    """Widen float16 exactly. Multiplying by 2^112 adjusts the exponent and makes subnormal halves normal."""
    magnitude = b.shl(b.and_(half, _int32_constant(0x7FFF)), _int32_constant(13))
    scaled_bits = b.bitcast(b.fmul(b.bitcast(magnitude, F32), ir.Constant(F32, 2.0**112)), I32)
    special = b.icmp_unsigned(">=", magnitude, _int32_constant(0x7C00 << 13))
    finite_or_special = b.select(special, b.or_(magnitude, _int32_constant(0x7F800000)), scaled_bits)
    return b.bitcast(b.or_(finite_or_special, b.shl(b.and_(half, _int32_constant(0x8000)), _int32_constant(16))), F32)


def _f16_from_bits(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Round float32 bits to the nearest float16, ties to even, in the lower half of the result. NaN stays NaN."""
    sign = b.and_(b.lshr(bits, _int32_constant(16)), _int32_constant(0x8000))
    magnitude = b.and_(bits, _int32_constant(0x7FFFFFFF))
    # below 2^-14: adding 2^-1 makes the hardware round at the last place of a subnormal half
    magic = ir.Constant(F32, 0.5)
    subnormal = b.sub(b.bitcast(b.fadd(b.bitcast(magnitude, F32), magic), I32), _int32_constant(0x3F000000))
    odd = b.and_(b.lshr(magnitude, _int32_constant(13)), _int32_constant(1))
    rebiased = b.add(b.add(magnitude, _int32_constant((-112 << 23) & 0xFFFFFFFF)), b.add(_int32_constant(0xFFF), odd))
    normal = b.lshr(rebiased, _int32_constant(13))
    finite = b.select(b.icmp_unsigned("<", magnitude, _int32_constant(113 << 23)), subnormal, normal)
    overflows = b.icmp_unsigned(">=", magnitude, _int32_constant(0x47800000))
    payload = b.and_(b.lshr(magnitude, _int32_constant(13)), _int32_constant(0x3FF))
    payload = b.select(b.icmp_unsigned("==", payload, _int32_constant(0)), _int32_constant(0x200), payload)
    is_nan = b.icmp_unsigned(">", magnitude, _int32_constant(0x7F800000))
    special = b.or_(_int32_constant(0x7C00), b.select(is_nan, payload, _int32_constant(0)))
    return b.or_(sign, b.select(overflows, special, finite))


def _f16_pack(b: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    high_bits = b.shl(_f16_from_bits(b, b.bitcast(high, I32)), _int32_constant(16))
    return b.or_(_f16_from_bits(b, b.bitcast(low, I32)), high_bits)


# --- float8, float4 and powers of two: codes of quantized weights ---------------------------------------------------


def _small_float(b: ir.IRBuilder, code: ir.Value, mantissa: int, bias: int, infinity: int | None) -> ir.Value:
    """Widen an 8-bit code exactly: sign, exponent, and `mantissa` bits.

    Magnitudes above `infinity` are NaN; in a format without infinity, only the largest magnitude is NaN. Subnormal
    codes are converted as integers, because arithmetic on subnormal float32 numbers is slow.
    """
    bits = b.zext(code, I32)
    magnitude = b.and_(bits, _int32_constant(0x7F))
    normal = b.add(b.shl(magnitude, _int32_constant(23 - mantissa)), _int32_constant((127 - bias) << 23))
    unit = ir.Constant(F32, 2.0 ** (1 - bias - mantissa))
    subnormal = b.bitcast(b.fmul(b.sitofp(magnitude, F32), unit), I32)
    finite = b.select(b.icmp_unsigned("<", magnitude, _int32_constant(1 << mantissa)), subnormal, normal)
    if infinity is not None:
        finite = b.select(
            b.icmp_unsigned("==", magnitude, _int32_constant(infinity)), _int32_constant(0x7F800000), finite
        )
    largest = _int32_constant(0x7E if infinity is None else infinity)
    value = b.select(b.icmp_unsigned(">", magnitude, largest), _int32_constant(0x7FC00000), finite)
    return b.bitcast(b.or_(value, b.shl(b.and_(bits, _int32_constant(0x80)), _int32_constant(24))), F32)


def _widen_e2m1(b: ir.IRBuilder, nibble: ir.Value) -> ir.Value:
    """Widen a float4 (e2m1) code: the lower three bits select 0, 0.5, 1, 1.5, 2, 3, 4 or 6; the fourth is the sign."""
    place = b.shl(b.and_(nibble, _int32_constant(7)), _int32_constant(2))
    double = b.and_(b.lshr(_int32_constant(0xC8643210), place), _int32_constant(15))
    value = b.bitcast(b.fmul(b.sitofp(double, F32), ir.Constant(F32, 0.5)), I32)
    return b.bitcast(b.or_(value, b.shl(b.and_(nibble, _int32_constant(8)), _int32_constant(28))), F32)


def _widen_e8m0(b: ir.IRBuilder, code: ir.Value) -> ir.Value:
    """Widen an e8m0 code to 2^(code - 127); 255 is NaN."""
    bits = b.zext(code, I32)
    smallest = b.select(
        b.icmp_unsigned("==", bits, _int32_constant(0)), _int32_constant(0x00400000), b.shl(bits, _int32_constant(23))
    )
    return b.bitcast(
        b.select(b.icmp_unsigned("==", bits, _int32_constant(255)), _int32_constant(0x7FC00000), smallest), F32
    )


def _round_to_small_float(b: ir.IRBuilder, value: ir.Value, mantissa: int, bias: int) -> ir.Value:
    """Round a float32 within the format's range to the nearest 8-bit code, ties to even. NaN stays NaN."""
    bits = b.bitcast(value, I32)
    magnitude = b.and_(bits, _int32_constant(0x7FFFFFFF))
    drop = 23 - mantissa
    odd = b.and_(b.lshr(magnitude, _int32_constant(drop)), _int32_constant(1))
    rounded_bits = b.lshr(b.add(b.add(magnitude, _int32_constant((1 << (drop - 1)) - 1)), odd), _int32_constant(drop))
    normal = b.sub(rounded_bits, _int32_constant((127 - bias) << mantissa))
    # below the smallest normal number: the sum makes the hardware round at the last place of a subnormal code
    magic = 2.0 ** (24 - bias - mantissa)
    sum = b.bitcast(b.fadd(b.bitcast(magnitude, F32), ir.Constant(F32, magic)), I32)
    subnormal = b.sub(sum, b.bitcast(ir.Constant(F32, magic), I32))
    least = _int32_constant((128 - bias) << 23)
    code = b.select(b.icmp_unsigned("<", magnitude, least), subnormal, normal)
    code = b.select(b.icmp_unsigned(">", magnitude, _int32_constant(0x7F800000)), _int32_constant(0x7F), code)
    return b.trunc(b.or_(code, b.and_(b.lshr(bits, _int32_constant(24)), _int32_constant(0x80))), I8)


def _round_up_to_e8m0(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Round a positive number of at most 2^127 up to a power of two, as an e8m0 code."""
    bits = b.bitcast(value, I32)
    up = b.lshr(b.add(bits, _int32_constant(0x7FFFFF)), _int32_constant(23))
    tiny = b.icmp_unsigned("<=", bits, _int32_constant(0x00400000))
    return b.trunc(b.select(tiny, _int32_constant(0), up), I8)


# --- float64 to shorter formats, and stochastic rounding ------------------------------------------------------------


def _sticky_f32(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Round float64 to float32 towards zero, with the last bit set if anything was lost ("round to odd").

    Rounding the result to a shorter format then gives the same as rounding the float64 directly.
    """
    nearest = b.fptrunc(value, F32)
    wide = b.fpext(nearest, F64)
    magnitude = b.and_(b.bitcast(wide, I64), ir.Constant(I64, 2**63 - 1))
    exact = b.and_(b.bitcast(value, I64), ir.Constant(I64, 2**63 - 1))
    bits = b.bitcast(nearest, I32)
    away = b.icmp_unsigned(">", magnitude, exact)
    towards_zero = b.select(away, b.sub(bits, _int32_constant(1)), bits)
    inexact = b.icmp_unsigned("!=", magnitude, exact)
    odd = b.or_(towards_zero, b.zext(inexact, I32))
    ordinary = b.fcmp_ordered("ord", value, value)
    return b.bitcast(b.select(ordinary, odd, bits), F32)


@dataclass(frozen=True)
class _FloatLayout:
    """A floating-point format: bits of the mantissa, the exponent's bias, and the total number of bits."""

    mantissa: int
    bias: int
    width: int


_BFLOAT16, _FLOAT16 = _FloatLayout(7, 127, 16), _FloatLayout(10, 15, 16)
_FLOAT32, _FLOAT64 = _FloatLayout(23, 127, 32), _FloatLayout(52, 1023, 64)


def _round_by_draw(
    b: ir.IRBuilder, value: ir.Value, draw: ir.Value, of: _FloatLayout, to: _FloatLayout, draw_bits: int
) -> ir.Value:
    """Round `value` to the neighbor in a shorter format that a random draw chooses, as `kernels.stochastic` defines.

    Correct for finite numbers whose upper neighbor is finite. The draw has the integer type of the value's bits.
    """
    kind, real = (I32, F32) if of.width == 32 else (I64, F64)

    def number(value: int) -> ir.Constant:
        return ir.Constant(kind, value)

    bits = b.bitcast(value, kind)
    magnitude = b.and_(bits, number((1 << (of.width - 1)) - 1))
    drop = of.mantissa - to.mantissa
    sum_bits = b.lshr(b.add(magnitude, b.lshr(draw, number(draw_bits - drop))), number(drop))
    result = b.sub(sum_bits, number((of.bias - to.bias) << to.mantissa))
    if of.bias != to.bias:  # numbers that are subnormal in the shorter format, in its smallest steps
        steps = b.fmul(b.bitcast(magnitude, real), ir.Constant(real, 2.0 ** (to.bias - 1 + to.mantissa)))
        whole = b.fptoui(steps, kind)
        share = b.fptoui(b.fmul(b.fsub(steps, b.uitofp(whole, real)), ir.Constant(real, 2.0**draw_bits)), kind)
        up = b.zext(b.icmp_unsigned(">", share, b.not_(draw)), kind)
        subnormal = b.icmp_unsigned("<", magnitude, number((of.bias - to.bias + 1) << of.mantissa))
        result = b.select(subnormal, b.add(whole, up), result)
    sign = b.shl(b.lshr(bits, number(of.width - 1)), number(to.width - 1))
    return b.trunc(b.or_(result, sign), I16 if to.width == 16 else I32)


# --- calls and comparisons ------------------------------------------------------------------------------------------


def _larger_magnitude(b: ir.IRBuilder, peak: ir.Value, value: ir.Value) -> ir.Value:
    """Return the larger of `peak` and the bits of |value|; NaN is above infinity, and infinity above every number."""
    kind = peak.type
    magnitude = b.and_(b.bitcast(value, kind), ir.Constant(kind, 2 ** (kind.width - 1) - 1))
    return b.select(b.icmp_unsigned(">", magnitude, peak), magnitude, peak)


def _call_intrinsic(b: ir.IRBuilder, name: str, *values: ir.Value) -> ir.Value:
    kind = values[0].type
    function = b.module.declare_intrinsic(name, [kind], ir.FunctionType(kind, [kind] * len(values)))
    return b.call(function, values)


# --- 64 words at once -----------------------------------------------------------------------------------------------


def _array_intrinsic(**options: Any) -> Callable[[Any], Any]:
    """Register an intrinsic on arrays under the function's name without the underscore."""

    def enter(typing: Any) -> Any:
        INTRINSICS[typing.__name__[1:]] = intrinsic(**options)(typing) if options else intrinsic(typing)
        return typing

    return enter


def _address_of(context: Any, b: ir.IRBuilder, kind: Any, array: ir.Value, at: ir.Value) -> ir.Value:
    return b.gep(context.make_array(kind)(context, b, array).data, [at])


def _address_of_64_elements(context: Any, b: ir.IRBuilder, kind: Any, array: ir.Value, start: ir.Value) -> ir.Value:
    vector = ir.VectorType(ir.IntType(kind.dtype.bitwidth), 64)
    return b.bitcast(_address_of(context, b, kind, array, start), vector.as_pointer())


def _load_64_elements(context: Any, b: ir.IRBuilder, kind: Any, array: ir.Value, start: ir.Value) -> ir.Value:
    return b.load(_address_of_64_elements(context, b, kind, array, start), align=kind.dtype.bitwidth // 8)


def _store_where(b: ir.IRBuilder, vector: ir.Value, place: ir.Value, bits: ir.Value) -> None:
    """Store the elements of a vector of 64 integers whose bits are set contiguously, starting at `place`."""
    kind = ir.FunctionType(ir.VoidType(), [vector.type, place.type, bits.type])
    name = f"llvm.masked.compressstore.v64i{vector.type.element.width}"
    b.call(b.module.declare_intrinsic(name, (), kind), [vector, place, bits])


@_array_intrinsic()
def _word_at(_typing: Any, data: Any, start: Any) -> Any:
    """Load 8 bytes of a byte array at any index `start`, as an integer in the processor's byte order."""

    def generate(context: Any, b: ir.IRBuilder, signature: Any, values: Sequence[ir.Value]) -> ir.Value:
        place = _address_of(context, b, signature.args[0], *values)
        return b.load(b.bitcast(place, I64.as_pointer()), align=1)

    return types.uint64(data, types.uint64), generate


@_array_intrinsic()
def _differing(_typing: Any, base: Any, other: Any, start: Any) -> Any:
    """Compare 64 elements of two arrays, from `start` on: bit i of the result is set if elements i differ.

    Compilers do not derive these instructions from a loop.
    """

    def generate(context: Any, b: ir.IRBuilder, signature: Any, values: Sequence[ir.Value]) -> ir.Value:
        old, new = (_load_64_elements(context, b, signature.args[k], values[k], values[2]) for k in range(2))
        return b.bitcast(b.icmp_unsigned("!=", old, new), I64)

    return types.uint64(base, other, types.uint64), generate


@_array_intrinsic()
def _not_zero(_typing: Any, array: Any, start: Any) -> Any:
    """Test 64 elements of an integer array, from `start` on: bit i of the result is set if element i is not 0."""

    def generate(context: Any, b: ir.IRBuilder, signature: Any, values: Sequence[ir.Value]) -> ir.Value:
        vector = _load_64_elements(context, b, signature.args[0], *values)
        return b.bitcast(b.icmp_unsigned("!=", vector, ir.Constant(vector.type, None)), I64)

    return types.uint64(array, types.uint64), generate


@_array_intrinsic()
def _compress(_typing: Any, source: Any, target: Any, place: Any) -> Any:
    """Store the elements that 64 bits select contiguously in another array of the same type.

    In `compress(source, target, place)`, `place` is a tuple: the index of the first of 64 elements in `source`, the
    first index in `target`, and the bits. Only fast on processors that can compress vectors.
    """

    def generate(context: Any, b: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> ir.Value:
        start, first, mask = (b.extract_value(arguments[2], index) for index in range(3))
        vector = _load_64_elements(context, b, signature.args[0], arguments[0], start)
        pointer = _address_of(context, b, signature.args[1], arguments[1], first)
        _store_where(b, vector, pointer, b.bitcast(mask, ir.VectorType(I1, 64)))
        return mask

    return types.uint64(source, target, place), generate


# --- by name --------------------------------------------------------------------------------------------------------

_u8, _u16, _u32, _u64 = types.uint8, types.uint16, types.uint32, types.uint64
_f32, _f64 = types.float32, types.float64
_BITS, _TWICE = (_u32, _u32), (_u32, _u32, _u32)

# Types of the result and the arguments, and the code generator. Names with `low` and `high` extract an element of a
# word with two elements, names with `whole` the element of a word with one; `pack` and `round` are the inverse.
_TABLE: dict[str, tuple[tuple[Any, ...], Callable[..., Any]]] = {
    "bf16_low": ((_f32, _u32), lambda b, word: b.bitcast(b.shl(word, _int32_constant(16)), F32)),
    "bf16_high": ((_f32, _u32), lambda b, word: b.bitcast(b.and_(word, _int32_constant(0xFFFF0000)), F32)),
    "bf16_pack": ((_u32, _f32, _f32), _bf16_pack),
    "bf16_whole": ((_f32, _u16), lambda b, word: b.bitcast(b.shl(b.zext(word, I32), _int32_constant(16)), F32)),
    "bf16_round": (
        (_u16, _f32),
        lambda b, value: b.trunc(b.lshr(_bf16_from_bits(b, b.bitcast(value, I32)), _int32_constant(16)), I16),
    ),
    "bf16_bytes": (
        (_f32, _u8, _u8),
        lambda b, low, high: b.bitcast(
            b.or_(b.shl(b.zext(low, I32), _int32_constant(16)), b.shl(b.zext(high, I32), _int32_constant(24))), F32
        ),
    ),
    "f16_low": ((_f32, _u32), lambda b, word: _f16_to_f32(b, b.and_(word, _int32_constant(0xFFFF)))),
    "f16_high": ((_f32, _u32), lambda b, word: _f16_to_f32(b, b.lshr(word, _int32_constant(16)))),
    "f16_pack": ((_u32, _f32, _f32), _f16_pack),
    "f16_whole": ((_f32, _u16), lambda b, word: _f16_to_f32(b, b.zext(word, I32))),
    "f16_round": ((_u16, _f32), lambda b, value: b.trunc(_f16_from_bits(b, b.bitcast(value, I32)), I16)),
    "f32_whole": ((_f32, _u32), lambda b, word: b.bitcast(word, F32)),
    "f32_pack": ((_u32, _f32), lambda b, value: b.bitcast(value, I32)),
    "f64_whole": ((_f64, _u64), lambda b, word: b.bitcast(word, F64)),
    "f64_pack": ((_u64, _f64), lambda b, value: b.bitcast(value, I64)),
    "sticky_f32": ((_f32, _f64), _sticky_f32),
    # without infinities: only 0x7F and 0xFF are not numbers
    "e4m3": ((_f32, _u8), lambda b, code: _small_float(b, code, 3, 7, None)),
    "e5m2": ((_f32, _u8), lambda b, code: _small_float(b, code, 2, 15, 0x7C)),
    "e2m1_low": ((_f32, _u8), lambda b, pair: _widen_e2m1(b, b.zext(pair, I32))),
    "e2m1_high": ((_f32, _u8), lambda b, pair: _widen_e2m1(b, b.lshr(b.zext(pair, I32), _int32_constant(4)))),
    "e8m0": ((_f32, _u8), _widen_e8m0),
    "to_e4m3": ((_u8, _f32), lambda b, value: _round_to_small_float(b, value, 3, 7)),
    "to_e5m2": ((_u8, _f32), lambda b, value: _round_to_small_float(b, value, 2, 15)),
    "to_e8m0": ((_u8, _f32), _round_up_to_e8m0),
    "bf16_drawn_f32": (
        (_u16, _f32, _u16),
        lambda b, value, draw: _round_by_draw(b, value, b.zext(draw, I32), _FLOAT32, _BFLOAT16, 16),
    ),
    "f16_drawn_f32": (
        (_u16, _f32, _u32),
        lambda b, value, draw: _round_by_draw(b, value, draw, _FLOAT32, _FLOAT16, 32),
    ),
    "bf16_drawn_f64": (
        (_u16, _f64, _u64),
        lambda b, value, draw: _round_by_draw(b, value, draw, _FLOAT64, _BFLOAT16, 64),
    ),
    "f16_drawn_f64": (
        (_u16, _f64, _u64),
        lambda b, value, draw: _round_by_draw(b, value, draw, _FLOAT64, _FLOAT16, 64),
    ),
    "f32_drawn_f64": (
        (_u32, _f64, _u64),
        lambda b, value, draw: _round_by_draw(b, value, draw, _FLOAT64, _FLOAT32, 64),
    ),
    "add32": (_TWICE, lambda b, x, y: b.add(x, y)),
    "or32": (_TWICE, lambda b, x, y: b.or_(x, y)),
    "xor32": (_TWICE, lambda b, x, y: b.xor(x, y)),
    "rotl32": (_TWICE, lambda b, x, by: _call_intrinsic(b, "llvm.fshl", x, x, by)),
    "double32": (_BITS, lambda b, x: b.shl(x, _int32_constant(1))),
    "without_lowest_bit": (_BITS, lambda b, x: b.and_(x, b.sub(x, _int32_constant(1)))),
    "peak_f32": ((_u32, _u32, _f32), _larger_magnitude),
    "peak_f64": ((_u64, _u64, _f64), _larger_magnitude),
    # sums whose terms may be added in any order, so that a loop of them can be vectorized
    "plus": ((_f64, _f64, _f64), lambda b, x, y: b.fadd(x, y, flags=("reassoc",))),
    "plus_f32": ((_f32, _f32, _f32), lambda b, x, y: b.fadd(x, y, flags=("reassoc",))),
    # x * y + z, rounded once: exact on every processor, in one instruction where the processor has it
    "fused": ((_f32, _f32, _f32, _f32), lambda b, x, y, z: _call_intrinsic(b, "llvm.fma", x, y, z)),
    # as an instruction: NumPy's square root is a function of the C library
    "root_f32": ((_f32, _f32), lambda b, x: _call_intrinsic(b, "llvm.sqrt", x)),
    "root_f64": ((_f64, _f64), lambda b, x: _call_intrinsic(b, "llvm.sqrt", x)),
    # of numbers that are not 0
    "trailing_zeros": ((_u64, _u64), lambda b, x: b.cttz(x, ir.Constant(I1, 1))),
    "leading_zeros": ((_u64, _u64), lambda b, x: b.ctlz(x, ir.Constant(I1, 1))),
    # how many bits are set
    "ones": ((_u64, _u64), lambda b, x: b.ctpop(x)),
}


def _scalar_intrinsic(name: str, signature: tuple[Any, ...], emit: Callable[..., Any]) -> Any:
    def generate(_context: Any, b: ir.IRBuilder, _signature: Any, values: Sequence[ir.Value]) -> ir.Value:
        return emit(b, *values)

    definition = signature[0](*signature[1:]), generate
    # numba reads the number of arguments off the typing function
    typing: Any = (lambda _, x: definition, lambda _, x, y: definition, lambda _, x, y, z: definition)[
        len(signature) - 2
    ]
    typing.__name__ = name
    return intrinsic(typing)


INTRINSICS.update({name: _scalar_intrinsic(name, *row) for name, row in _TABLE.items()})
