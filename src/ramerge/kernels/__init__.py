"""Compiled loops over arrays. They know no files, no names and no threads; every kernel releases the GIL.

formats, convert, intrinsics     how numbers lie in words
piece                            one block of all inputs, as methods see it
dequantise, quantise             codes and scales of quantised weights
ram, elementwise, wudi           the loops of methods; `threefry`: coins
spectral, curvature, work        singular vectors, polar factors, and WUDI's objective by its spectrum
lowrank                          products of thin matrices, and norms: LoRA and DoRA
anatomy, rounding                the loops of analyses, and what rounding erases
sums, fixed                      sums of products over segments; sums of floats that no order of adding changes
native, compiler                 machine code, compiled once and kept
"""
