"""Bit operations that compiled code needs, as compiler intrinsics; imported only where something is compiled.

numba promotes 32-bit integers to 64 bits, which halves the vector width, and knows neither bfloat16 nor rotations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

I8, I16, I32, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
F32, F64 = ir.FloatType(), ir.DoubleType()

Emit = Callable[..., Any]

INTRINSICS: dict[str, Any] = {}
"""All of them by name."""


def _intrinsic(returns: types.Type, *arguments: types.Type) -> Callable[[Emit], Emit]:
    """Make of `emit(builder, *values)` a function that compiled code can call, and enter it in `INTRINSICS`."""

    def decorate(emit: Emit) -> Emit:
        def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            return emit(builder, *values)

        typed = returns(*arguments), generate
        # numba reads the number of arguments off the typing function
        typing: Any = (lambda _, x: typed, lambda _, x, y: typed, lambda _, x, y, z: typed)[len(arguments) - 1]
        typing.__name__ = emit.__name__
        INTRINSICS[emit.__name__] = intrinsic(typing)
        return emit

    return decorate


def _c(value: int) -> ir.Constant:
    return ir.Constant(I32, value)


def _select(b: Any, condition: Any, yes: Any, no: Any) -> Any:
    return b.select(condition, yes, no)


# --- bfloat16: the upper half of a float32 --------------------------------------------------------------------------


@_intrinsic(types.float32, types.uint32)
def bf16_low(b: Any, word: Any) -> Any:
    return b.bitcast(b.shl(word, _c(16)), F32)


@_intrinsic(types.float32, types.uint32)
def bf16_high(b: Any, word: Any) -> Any:
    return b.bitcast(b.and_(word, _c(0xFFFF0000)), F32)


def _bf16_from_bits(b: Any, bits: Any) -> Any:
    """Round float32 bits to nearest even; the bfloat16 lies in the upper half of the result. NaN stays NaN."""
    odd = b.and_(b.lshr(bits, _c(16)), _c(1))
    rounded = b.add(b.add(bits, _c(0x7FFF)), odd)
    is_nan = b.icmp_unsigned(">", b.and_(bits, _c(0x7FFFFFFF)), _c(0x7F800000))
    payload_gone = b.icmp_unsigned("==", b.and_(bits, _c(0x007F0000)), _c(0))
    quiet = b.or_(bits, _select(b, payload_gone, _c(0x00400000), _c(0)))
    return _select(b, is_nan, quiet, rounded)


@_intrinsic(types.uint32, types.float32, types.float32)
def bf16_pack(b: Any, low: Any, high: Any) -> Any:
    low_bits = b.lshr(_bf16_from_bits(b, b.bitcast(low, I32)), _c(16))
    return b.or_(low_bits, b.and_(_bf16_from_bits(b, b.bitcast(high, I32)), _c(0xFFFF0000)))


@_intrinsic(types.float32, types.uint16)
def bf16_whole(b: Any, word: Any) -> Any:
    return b.bitcast(b.shl(b.zext(word, I32), _c(16)), F32)


@_intrinsic(types.uint16, types.float32)
def bf16_round(b: Any, value: Any) -> Any:
    return b.trunc(b.lshr(_bf16_from_bits(b, b.bitcast(value, I32)), _c(16)), I16)


# --- float16: by bit operations, since not every processor converts it ----------------------------------------------


def _f16_to_f32(b: Any, half: Any) -> Any:
    """Widen exactly. The product with 2^112 moves the exponent and makes subnormal halves normal."""
    magnitude = b.shl(b.and_(half, _c(0x7FFF)), _c(13))
    scaled = b.bitcast(b.fmul(b.bitcast(magnitude, F32), ir.Constant(F32, 2.0**112)), I32)
    special = b.icmp_unsigned(">=", magnitude, _c(0x7C00 << 13))
    finite_or_special = _select(b, special, b.or_(magnitude, _c(0x7F800000)), scaled)
    return b.bitcast(b.or_(finite_or_special, b.shl(b.and_(half, _c(0x8000)), _c(16))), F32)


def _f16_from_bits(b: Any, bits: Any) -> Any:
    """Round float32 bits to the nearest float16, ties to even, in the lower half of the result. NaN stays NaN."""
    sign = b.and_(b.lshr(bits, _c(16)), _c(0x8000))
    magnitude = b.and_(bits, _c(0x7FFFFFFF))
    # below 2^-14: adding 2^-1 makes the hardware round at the last place of a subnormal half
    magic = ir.Constant(F32, 0.5)
    subnormal = b.sub(b.bitcast(b.fadd(b.bitcast(magnitude, F32), magic), I32), _c(0x3F000000))
    odd = b.and_(b.lshr(magnitude, _c(13)), _c(1))
    rebiased = b.add(b.add(magnitude, _c((-112 << 23) & 0xFFFFFFFF)), b.add(_c(0xFFF), odd))
    normal = b.lshr(rebiased, _c(13))
    finite = _select(b, b.icmp_unsigned("<", magnitude, _c(113 << 23)), subnormal, normal)
    overflows = b.icmp_unsigned(">=", magnitude, _c(0x47800000))
    payload = b.and_(b.lshr(magnitude, _c(13)), _c(0x3FF))
    payload = _select(b, b.icmp_unsigned("==", payload, _c(0)), _c(0x200), payload)
    is_nan = b.icmp_unsigned(">", magnitude, _c(0x7F800000))
    special = b.or_(_c(0x7C00), _select(b, is_nan, payload, _c(0)))
    return b.or_(sign, _select(b, overflows, special, finite))


@_intrinsic(types.float32, types.uint32)
def f16_low(b: Any, word: Any) -> Any:
    return _f16_to_f32(b, b.and_(word, _c(0xFFFF)))


@_intrinsic(types.float32, types.uint32)
def f16_high(b: Any, word: Any) -> Any:
    return _f16_to_f32(b, b.lshr(word, _c(16)))


@_intrinsic(types.uint32, types.float32, types.float32)
def f16_pack(b: Any, low: Any, high: Any) -> Any:
    high_bits = b.shl(_f16_from_bits(b, b.bitcast(high, I32)), _c(16))
    return b.or_(_f16_from_bits(b, b.bitcast(low, I32)), high_bits)


@_intrinsic(types.float32, types.uint16)
def f16_whole(b: Any, word: Any) -> Any:
    return _f16_to_f32(b, b.zext(word, I32))


@_intrinsic(types.uint16, types.float32)
def f16_round(b: Any, value: Any) -> Any:
    return b.trunc(_f16_from_bits(b, b.bitcast(value, I32)), I16)


# --- float8, float4 and powers of two: codes of quantised weights ---------------------------------------------------


def _small_float(b: Any, code: Any, mantissa: int, bias: int, infinity: int | None) -> Any:
    """Widen a code of 8 bits exactly: sign, exponent, `mantissa` bits. Magnitudes above `infinity` are NaN; without
    infinity only the largest is.

    Subnormal codes are converted as integers, because arithmetic on subnormal float32 numbers is slow.
    """
    bits = b.zext(code, I32)
    magnitude = b.and_(bits, _c(0x7F))
    normal = b.add(b.shl(magnitude, _c(23 - mantissa)), _c((127 - bias) << 23))
    unit = ir.Constant(F32, 2.0 ** (1 - bias - mantissa))
    subnormal = b.bitcast(b.fmul(b.sitofp(magnitude, F32), unit), I32)
    finite = _select(b, b.icmp_unsigned("<", magnitude, _c(1 << mantissa)), subnormal, normal)
    if infinity is not None:
        finite = _select(b, b.icmp_unsigned("==", magnitude, _c(infinity)), _c(0x7F800000), finite)
    largest = _c(0x7E if infinity is None else infinity)
    value = _select(b, b.icmp_unsigned(">", magnitude, largest), _c(0x7FC00000), finite)
    return b.bitcast(b.or_(value, b.shl(b.and_(bits, _c(0x80)), _c(24))), F32)


@_intrinsic(types.float32, types.uint8)
def e4m3(b: Any, code: Any) -> Any:
    """F8_E4M3 without infinities: only 0x7F and 0xFF are not numbers."""
    return _small_float(b, code, 3, 7, None)


@_intrinsic(types.float32, types.uint8)
def e5m2(b: Any, code: Any) -> Any:
    """F8_E5M2, with infinities."""
    return _small_float(b, code, 2, 15, 0x7C)


def _e2m1(b: Any, nibble: Any) -> Any:
    """One of 0, 0.5, 1, 1.5, 2, 3, 4, 6 by the lower three bits; the fourth is the sign."""
    place = b.shl(b.and_(nibble, _c(7)), _c(2))
    doubled = b.and_(b.lshr(_c(0xC8643210), place), _c(15))
    value = b.bitcast(b.fmul(b.sitofp(doubled, F32), ir.Constant(F32, 0.5)), I32)
    return b.bitcast(b.or_(value, b.shl(b.and_(nibble, _c(8)), _c(28))), F32)


@_intrinsic(types.float32, types.uint8)
def e2m1_low(b: Any, pair: Any) -> Any:
    return _e2m1(b, b.zext(pair, I32))


@_intrinsic(types.float32, types.uint8)
def e2m1_high(b: Any, pair: Any) -> Any:
    return _e2m1(b, b.lshr(b.zext(pair, I32), _c(4)))


@_intrinsic(types.float32, types.uint8)
def e8m0(b: Any, code: Any) -> Any:
    """2^(code - 127); 255 is NaN."""
    bits = b.zext(code, I32)
    smallest = _select(b, b.icmp_unsigned("==", bits, _c(0)), _c(0x00400000), b.shl(bits, _c(23)))
    return b.bitcast(_select(b, b.icmp_unsigned("==", bits, _c(255)), _c(0x7FC00000), smallest), F32)


@_intrinsic(types.float32, types.uint8, types.uint8)
def bf16_bytes(b: Any, low: Any, high: Any) -> Any:
    word = b.or_(b.shl(b.zext(low, I32), _c(16)), b.shl(b.zext(high, I32), _c(24)))
    return b.bitcast(word, F32)


def _to_small_float(b: Any, value: Any, mantissa: int, bias: int) -> Any:
    """The code of 8 bits nearest to a float32 in the format's range, ties to even. NaN stays NaN."""
    bits = b.bitcast(value, I32)
    magnitude = b.and_(bits, _c(0x7FFFFFFF))
    drop = 23 - mantissa
    odd = b.and_(b.lshr(magnitude, _c(drop)), _c(1))
    rounded = b.lshr(b.add(b.add(magnitude, _c((1 << (drop - 1)) - 1)), odd), _c(drop))
    normal = b.sub(rounded, _c((127 - bias) << mantissa))
    # below the smallest normal number: the sum makes the hardware round at the last place of a subnormal code
    magic = 2.0 ** (24 - bias - mantissa)
    sum = b.bitcast(b.fadd(b.bitcast(magnitude, F32), ir.Constant(F32, magic)), I32)
    subnormal = b.sub(sum, b.bitcast(ir.Constant(F32, magic), I32))
    least = _c((128 - bias) << 23)
    code = _select(b, b.icmp_unsigned("<", magnitude, least), subnormal, normal)
    code = _select(b, b.icmp_unsigned(">", magnitude, _c(0x7F800000)), _c(0x7F), code)
    return b.trunc(b.or_(code, b.and_(b.lshr(bits, _c(24)), _c(0x80))), I8)


@_intrinsic(types.uint8, types.float32)
def to_e4m3(b: Any, value: Any) -> Any:
    return _to_small_float(b, value, 3, 7)


@_intrinsic(types.uint8, types.float32)
def to_e5m2(b: Any, value: Any) -> Any:
    return _to_small_float(b, value, 2, 15)


@_intrinsic(types.uint8, types.float32)
def to_e8m0(b: Any, value: Any) -> Any:
    """The exponent of the smallest power of two that is not below a positive number of at most 2^127."""
    bits = b.bitcast(value, I32)
    up = b.lshr(b.add(bits, _c(0x7FFFFF)), _c(23))
    tiny = b.icmp_unsigned("<=", bits, _c(0x00400000))
    return b.trunc(_select(b, tiny, _c(0), up), I8)


# --- float32 and float64: a word is a number ------------------------------------------------------------------------


@_intrinsic(types.float32, types.uint32)
def f32_whole(b: Any, word: Any) -> Any:
    return b.bitcast(word, F32)


@_intrinsic(types.uint32, types.float32)
def f32_pack(b: Any, value: Any) -> Any:
    return b.bitcast(value, I32)


@_intrinsic(types.float64, types.uint64)
def f64_whole(b: Any, word: Any) -> Any:
    return b.bitcast(word, F64)


@_intrinsic(types.uint64, types.float64)
def f64_pack(b: Any, value: Any) -> Any:
    return b.bitcast(value, I64)


@_intrinsic(types.float32, types.float64)
def sticky_f32(b: Any, value: Any) -> Any:
    """Round float64 to float32 towards zero, with the last bit set if anything was lost ("round to odd").

    A further rounding to a shorter format then gives what rounding the float64 once would have given.
    """
    nearest = b.fptrunc(value, F32)
    widened = b.fpext(nearest, F64)
    magnitude = b.and_(b.bitcast(widened, I64), ir.Constant(I64, 2**63 - 1))
    wanted = b.and_(b.bitcast(value, I64), ir.Constant(I64, 2**63 - 1))
    bits = b.bitcast(nearest, I32)
    away = b.icmp_unsigned(">", magnitude, wanted)
    towards_zero = _select(b, away, b.sub(bits, _c(1)), bits)
    inexact = b.icmp_unsigned("!=", magnitude, wanted)
    odd = b.or_(towards_zero, b.zext(inexact, I32))
    ordinary = b.fcmp_ordered("ord", value, value)
    return b.bitcast(_select(b, ordinary, odd, bits), F32)


# --- stochastic rounding: a coin decides between the two neighbours ---------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    """The bits of a floating-point format: of the mantissa, the exponent's bias, of the number in all."""

    mantissa: int
    bias: int
    width: int


_BFLOAT16, _FLOAT16 = _Layout(7, 127, 16), _Layout(10, 15, 16)
_FLOAT32, _FLOAT64 = _Layout(23, 127, 32), _Layout(52, 1023, 64)


def _tossed(b: Any, value: Any, coin: Any, of: _Layout, to: _Layout, coin_bits: int) -> Any:
    """The neighbour of `value` in a shorter format that a coin chooses, as `kernels.stochastic` has it.

    Right for finite numbers whose upper neighbour is finite. The coin has the type of the value's bits.
    """
    kind, real = (I32, F32) if of.width == 32 else (I64, F64)

    def number(value: int) -> ir.Constant:
        return ir.Constant(kind, value)

    bits = b.bitcast(value, kind)
    magnitude = b.and_(bits, number((1 << (of.width - 1)) - 1))
    drop = of.mantissa - to.mantissa
    carried = b.lshr(b.add(magnitude, b.lshr(coin, number(coin_bits - drop))), number(drop))
    chosen = b.sub(carried, number((of.bias - to.bias) << to.mantissa))
    if of.bias != to.bias:  # numbers that are subnormal in the shorter format, in its smallest steps
        steps = b.fmul(b.bitcast(magnitude, real), ir.Constant(real, 2.0 ** (to.bias - 1 + to.mantissa)))
        whole = b.fptoui(steps, kind)
        share = b.fptoui(b.fmul(b.fsub(steps, b.uitofp(whole, real)), ir.Constant(real, 2.0**coin_bits)), kind)
        up = b.zext(b.icmp_unsigned(">", share, b.not_(coin)), kind)
        subnormal = b.icmp_unsigned("<", magnitude, number((of.bias - to.bias + 1) << of.mantissa))
        chosen = _select(b, subnormal, b.add(whole, up), chosen)
    sign = b.shl(b.lshr(bits, number(of.width - 1)), number(to.width - 1))
    return b.trunc(b.or_(chosen, sign), I16 if to.width == 16 else I32)


@_intrinsic(types.uint16, types.float32, types.uint16)
def bf16_tossed_f32(b: Any, value: Any, coin: Any) -> Any:
    return _tossed(b, value, b.zext(coin, I32), _FLOAT32, _BFLOAT16, 16)


@_intrinsic(types.uint16, types.float32, types.uint32)
def f16_tossed_f32(b: Any, value: Any, coin: Any) -> Any:
    return _tossed(b, value, coin, _FLOAT32, _FLOAT16, 32)


@_intrinsic(types.uint16, types.float64, types.uint64)
def bf16_tossed_f64(b: Any, value: Any, coin: Any) -> Any:
    return _tossed(b, value, coin, _FLOAT64, _BFLOAT16, 64)


@_intrinsic(types.uint16, types.float64, types.uint64)
def f16_tossed_f64(b: Any, value: Any, coin: Any) -> Any:
    return _tossed(b, value, coin, _FLOAT64, _FLOAT16, 64)


@_intrinsic(types.uint32, types.float64, types.uint64)
def f32_tossed_f64(b: Any, value: Any, coin: Any) -> Any:
    return _tossed(b, value, coin, _FLOAT64, _FLOAT32, 64)


@_intrinsic(types.uint32, types.uint32, types.uint32)
def add32(b: Any, x: Any, y: Any) -> Any:
    return b.add(x, y)


@_intrinsic(types.uint32, types.uint32, types.uint32)
def or32(b: Any, x: Any, y: Any) -> Any:
    return b.or_(x, y)


@_intrinsic(types.uint32, types.uint32, types.uint32)
def xor32(b: Any, x: Any, y: Any) -> Any:
    return b.xor(x, y)


@_intrinsic(types.uint32, types.uint32, types.uint32)
def rotl32(b: Any, x: Any, by: Any) -> Any:
    """Rotate `x` to the left by `by` bits, modulo 32."""
    funnel_shift = b.module.declare_intrinsic("llvm.fshl", [I32], ir.FunctionType(I32, [I32, I32, I32]))
    return b.call(funnel_shift, [x, x, by])


@_intrinsic(types.boolean, types.uint32, types.uint32)
def below32(b: Any, x: Any, y: Any) -> Any:
    return b.icmp_unsigned("<", x, y)


@_intrinsic(types.uint32, types.uint32)
def double32(b: Any, x: Any) -> Any:
    return b.shl(x, _c(1))


@_intrinsic(types.uint32, types.uint32)
def without_lowest_bit(b: Any, x: Any) -> Any:
    return b.and_(x, b.sub(x, _c(1)))


@_intrinsic(types.uint32, types.uint32, types.float32)
def peak_f32(b: Any, peak: Any, value: Any) -> Any:
    """The larger of `peak` and the bits of |value|; NaN lies above infinity, and infinity above every number."""
    magnitude = b.and_(b.bitcast(value, I32), _c(0x7FFFFFFF))
    return _select(b, b.icmp_unsigned(">", magnitude, peak), magnitude, peak)


@_intrinsic(types.uint64, types.uint64, types.float64)
def peak_f64(b: Any, peak: Any, value: Any) -> Any:
    magnitude = b.and_(b.bitcast(value, I64), ir.Constant(I64, 2**63 - 1))
    return _select(b, b.icmp_unsigned(">", magnitude, peak), magnitude, peak)


@_intrinsic(types.float64, types.float64, types.float64)
def plus(b: Any, x: Any, y: Any) -> Any:
    """A sum whose terms may be added in any order, so that a loop of it can be vectorised."""
    return b.fadd(x, y, flags=("reassoc",))


@_intrinsic(types.float32, types.float32, types.float32)
def plus_f32(b: Any, x: Any, y: Any) -> Any:
    return b.fadd(x, y, flags=("reassoc",))


@_intrinsic(types.float32, types.float32, types.float32, types.float32)
def fused(b: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once: exact on every processor, in one instruction where the processor has it."""
    multiply_add = b.module.declare_intrinsic("llvm.fma", [F32], ir.FunctionType(F32, [F32, F32, F32]))
    return b.call(multiply_add, [x, y, z])


def _root(b: Any, x: Any) -> Any:
    """The square root, as an instruction: that of NumPy is a function of the C library."""
    square_root = b.module.declare_intrinsic("llvm.sqrt", [x.type], ir.FunctionType(x.type, [x.type]))
    return b.call(square_root, [x])


@_intrinsic(types.float32, types.float32)
def root_f32(b: Any, x: Any) -> Any:
    return _root(b, x)


@_intrinsic(types.float64, types.float64)
def root_f64(b: Any, x: Any) -> Any:
    return _root(b, x)


# --- sets of bits ---------------------------------------------------------------------------------------------------


@_intrinsic(types.uint64, types.uint64)
def trailing_zeros(b: Any, x: Any) -> Any:
    """The number of the lowest bit that is set; `x` is not 0."""
    return b.cttz(x, ir.Constant(ir.IntType(1), 1))


@_intrinsic(types.uint64, types.uint64)
def leading_zeros(b: Any, x: Any) -> Any:
    """How many bits are above the highest one that is set; `x` is not 0."""
    return b.ctlz(x, ir.Constant(ir.IntType(1), 1))


@_intrinsic(types.uint64, types.uint64)
def ones(b: Any, x: Any) -> Any:
    """How many bits are set."""
    return b.ctpop(x)


def _loaded_64(context: Any, builder: Any, kind: Any, array: Any, start: Any) -> Any:
    """A vector of the 64 elements from `start` on of an array of integers."""
    vector = ir.VectorType(ir.IntType(kind.dtype.bitwidth), 64)
    place = builder.gep(context.make_array(kind)(context, builder, array).data, [start])
    return builder.load(builder.bitcast(place, vector.as_pointer()), align=kind.dtype.bitwidth // 8)


def _word_at(_typing: Any, data: Any, start: Any) -> Any:
    """The 8 bytes from `start` on of an array of bytes, as a number of the processor's order; at any place."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, values[0])
        place = builder.gep(array.data, [values[1]])
        return builder.load(builder.bitcast(place, I64.as_pointer()), align=1)

    return types.uint64(data, types.uint64), generate


INTRINSICS["word_at"] = intrinsic(_word_at)


def _differing(_typing: Any, base: Any, other: Any, start: Any) -> Any:
    """Which of the 64 elements from `start` on differ between two arrays of a type: bit i is set where element i does.

    Compilers do not find these instructions in a loop.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pair = (
            _loaded_64(context, builder, kind, array, values[2])
            for kind, array in zip(signature.args[:2], values[:2], strict=True)
        )
        return builder.bitcast(builder.icmp_unsigned("!=", *pair), I64)

    return types.uint64(base, other, types.uint64), generate


INTRINSICS["differing"] = intrinsic(_differing)


def _not_zero(_typing: Any, array: Any, start: Any) -> Any:
    """Which of the 64 elements from `start` on of an array of integers are not 0, as `differing` says it."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        vector = _loaded_64(context, builder, signature.args[0], *values)
        return builder.bitcast(builder.icmp_unsigned("!=", vector, ir.Constant(vector.type, None)), I64)

    return types.uint64(array, types.uint64), generate


INTRINSICS["not_zero"] = intrinsic(_not_zero)


def _store_compressed(builder: Any, vector: Any, place: Any, bits: Any) -> None:
    """Store those elements of a vector of 64 integers whose bits are set, one after the other, from `place` on."""
    kind = ir.FunctionType(ir.VoidType(), [vector.type, place.type, bits.type])
    name = f"llvm.masked.compressstore.v64i{vector.type.element.width}"
    builder.call(builder.module.declare_intrinsic(name, (), kind), [vector, place, bits])


def _compared(_typing: Any, base: Any, other: Any, values: Any, place: Any) -> Any:
    """As `differing`, and stores the xors of the words that differ: `compared(base, other, values, place)`.

    `place` holds the index of the first of the 64 words, and that of the first value. Only processors that compress
    vectors do this fast.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lane = ir.IntType(base.dtype.bitwidth)
        word = ir.VectorType(lane, 64)
        start, first = (builder.extract_value(arguments[3], index) for index in range(2))

        def pointer(index: int, at: Any, kind: Any) -> Any:
            array = context.make_array(signature.args[index])(context, builder, arguments[index])
            return builder.bitcast(builder.gep(array.data, [at]), kind.as_pointer())

        old, new = (builder.load(pointer(index, start, word), align=base.dtype.bitwidth // 8) for index in range(2))
        differs = builder.icmp_unsigned("!=", old, new)
        _store_compressed(builder, builder.xor(old, new), pointer(2, first, lane), differs)
        return builder.bitcast(differs, I64)

    return types.uint64(base, other, values, place), generate


INTRINSICS["compared"] = intrinsic(_compared)


def _compressed(_typing: Any, source: Any, target: Any, place: Any) -> Any:
    """Store those of 64 elements of an array that a set of bits names, one after the other, in another of its type.

    `compressed(source, target, place)`; `place` holds the index of the first of the 64, the first index in `target`,
    and the set. Only processors that compress vectors do this fast.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start, first, mask = (builder.extract_value(arguments[2], index) for index in range(3))
        vector = _loaded_64(context, builder, signature.args[0], arguments[0], start)
        stored = context.make_array(signature.args[1])(context, builder, arguments[1]).data
        bits = builder.bitcast(mask, ir.VectorType(ir.IntType(1), 64))
        _store_compressed(builder, vector, builder.gep(stored, [first]), bits)
        return mask

    return types.uint64(source, target, place), generate


INTRINSICS["compressed"] = intrinsic(_compressed)


def _patched(_typing: Any, base: Any, values: Any, out: Any, planes: Any, place: Any) -> Any:
    """Patch 64 words at once, of which a set of bits says which change: `patched(base, values, out, planes, place)`.

    `place` holds the index of the first word, the set, the index of the first value, and how far planes are apart.
    Gives the set of those that change and have the value 0. Only processors that expand vectors do this fast.
    """
    width, count = base.dtype.bitwidth, planes.literal_value
    word, octet = ir.VectorType(ir.IntType(width), 64), ir.VectorType(I8, 64)
    bits = ir.VectorType(ir.IntType(1), 64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def pointer(index: int, at: Any, kind: Any) -> Any:
            array = context.make_array(signature.args[index])(context, builder, arguments[index])
            return builder.bitcast(builder.gep(array.data, [at]), kind.as_pointer())

        start, mask, first, apart = (builder.extract_value(arguments[4], index) for index in range(4))
        moved = builder.bitcast(mask, bits)
        expand = builder.module.declare_intrinsic(
            "llvm.masked.expandload.v64i8", (), ir.FunctionType(octet, [I8.as_pointer(), bits, octet])
        )
        value = ir.Constant(word, None)
        for plane in range(count):
            found = builder.call(expand, [pointer(1, first, I8), moved, ir.Constant(octet, None)])
            wide = found if width == 8 else builder.zext(found, word)
            value = builder.or_(value, builder.shl(wide, ir.Constant(word, [8 * plane] * 64)))
            first = builder.add(first, apart)
        old = builder.load(pointer(0, start, word), align=width // 8)
        builder.store(builder.xor(old, value), pointer(2, start, word), align=width // 8)
        zero = builder.bitcast(builder.icmp_unsigned("==", value, ir.Constant(word, None)), I64)
        return builder.and_(zero, mask)

    return types.uint64(base, values, out, planes, place), generate


INTRINSICS["patched"] = intrinsic(prefer_literal=True)(_patched)
