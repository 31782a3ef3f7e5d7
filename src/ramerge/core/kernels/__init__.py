"""Compiled loops over arrays, without files, names or threads; every kernel releases the GIL.

Between the engine and methods:

piece            one block of all inputs as methods see it, and the result of merging it: calls kernels, rounds, counts;
                 in which format blocks are computed, and `rounding_counts`, the array in which rounding is counted

Loops, each made of a template and called with arrays:

elementwise      a method's formula for every element: for `methods/formula`; histograms of magnitudes, for methods that
                 look for thresholds; `Inputs`, the inputs of a loop; `Drop`, which drops elements at random
ram              RAM's loops: for `methods/ram`
sums             sums of terms and of products over segments: for `methods/sums`
fixed            sums of floats as integers, in any order: for `methods/sums` and analysis
weighted         weighted means of many models: for `tensors/weighted` and `methods/formula`
lowrank          products of thin matrices, and norms, for LoRA and DoRA: for `tensors/lowrank`
convert          one format of floats to another, for every room; counts of values that are NaN, Inf or negative
dequantize       codes and scales to float32, and `Grid`, where scales belong: for `tensors/scaled` and encodings
quantize         float32 to codes and scales: for `tensors/scaled`

Rounding of results, called by `piece`:

rounding         how many updates rounding erases, of all elements; source of counters, for `elementwise` and `ram`
effect           what rounding does to an agent's update, of a sample; its figures, for `engine/warn`
stochastic       stochastic rounding
threefry         random draws, for `stochastic`, `elementwise`, DELLA and `linalg/core_coefficients`; their keys

How a loop becomes machine code:

element_formats  how floats are packed (`Words`), and which formats a loop reads and writes (`Loop`): for all templates
native           loads a kernel: from the cache, a bundle or the compiler; fills templates; knows the processor
bundle           machine code that a wheel brings along: for `native`
compiler         source to machine code, with numba: for `native`
intrinsics       bit operations in LLVM code: for `compiler`
"""
