"""Compiled loops over arrays, without files, names or threads; every kernel releases the GIL.

element_formats, convert, intrinsics    how numbers are packed into words
piece                                   one block of all inputs, as methods see it
dequantize, quantize                    codes and scales of quantized weights
ram, elementwise                        the loops of methods; `threefry`: random draws
lowrank                                 products of thin matrices, and norms: LoRA and DoRA
rounding, effect, stochastic            what rounding erases, and stochastic rounding
sums, fixed                             sums of products over segments; sums of floats that no order of adding changes
weighted                                weighted means, and changes on them
native, compiler, bundle                machine code, compiled once and cached, from templates; what a wheel brings
"""
