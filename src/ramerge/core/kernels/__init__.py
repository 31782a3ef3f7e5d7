"""Compiled loops over arrays. They know neither files nor tensor names nor threads; every kernel releases the GIL.

Between the engine and methods:

piece            `Piece`, one block of all inputs as methods see it: calls kernels, rounds and counts; the format for
                 computing, and `rounding_counts`, the array that counts effects of rounding

Loops, each filled in from a template and called with arrays:

elementwise      applies a method's formula to every element: for `methods/formula`; histograms of magnitudes, for
                 methods that need thresholds; `Inputs`, the inputs of a loop; `Drop`, random dropping
ram              RAM's loops: for `methods/ram`
sums             sums of terms and of products over segments: for `methods/sums`
fixed            sums of floats as integers, in any order: for `methods/sums` and analysis
weighted         weighted means of many models: for `tensors/weighted` and `methods/formula`
lowrank          products of thin matrices, and norms, for LoRA and DoRA: for `tensors/lowrank`
convert          converts between floating-point formats, for every room; counts NaN, Inf and negative values
dequantize       turns codes and scales into float32; `Grid`, the layout of scales: for `tensors/scaled` and encodings
quantize         turns float32 into codes and scales: for `tensors/scaled`

Rounding of results, called by `piece`:

rounding         counts the updates that rounding erases, over all elements; counters for `elementwise` and `ram`
effect           measures on a sample what rounding does to an agent's update; figures for `engine/warn`
stochastic       stochastic rounding
threefry         random draws and their keys, for `stochastic`, `elementwise`, DELLA and `linalg/core_coefficients`

How a loop becomes machine code:

element_formats  how floats are packed (`Words`), and the formats that a loop reads and writes (`Loop`)
native           loads a kernel from the cache, a bundle or the compiler; fills templates; detects the processor
bundle           machine code that is shipped in a wheel: for `native`
compiler         compiles source to machine code with numba: for `native`
intrinsics       bit operations in LLVM code: for `compiler`
"""
