"""Loops for weighted means of models: they add up changes from one model to the next, or differences from a base."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.core.kernels import native
from ramerge.core.kernels.element_formats import ELEMENTS, ElementFormat, Words
from ramerge.core.kernels.native import Kernel

GROUP = 8
"""The most changes that a loop adds at once, with the sum in a register."""

_ADD = """
def add_changes({arguments}, weights, total):
    {weights}
    for i in range(np.uint64(total.size)):
        s, before = total[i], {lane}(x0[i])
        {add}
        total[i] = s
    return 0
"""

_SUM = """
def add_weighted({arguments}, weights, total):
    {weights}
    for i in range(np.uint64(total.size)):
        s = total[i]
        {base}
        {add}
        total[i] = s
    return 0
"""

_FINISH = """
def finish(total, out):
    for i in range(np.uint64(out.size)):
        out[i] = out[i] + total[i] if total[i] != {real}(0) else out[i]
    return 0
"""


def add_changes(format: str, models: Sequence[Words], weights: Sequence[float], total: NDArray[Any]) -> None:
    """Add each model's change from its predecessor, times the model's weight, to `total`, one after another.

    Args:
        format: format of the models.
        models: 1-D arrays of equal length: the first predecessor, then a model for each weight, at most `GROUP`.
        weights: the weight of each model after the first.
        total: float32, or float64 for F64, of the models' length.
    """
    form = ELEMENTS[format]
    words = [form.array(each, total.size) for each in models]
    _adding_kernel(form, len(weights))(*words, np.array(weights, form.real), total)


def add_weighted(
    format: str, base: Words | None, models: Sequence[Words], weights: Sequence[float], total: NDArray[Any]
) -> None:
    """Add each model's difference from the base, times the model's weight, to `total`, one after another.

    Models are 1-D; weights are rounded here to the type of `total`: float32, or float64 for F64. Without a base, the
    models themselves are added.
    """
    form = ELEMENTS[format]
    words = [form.array(each, total.size) for each in ([] if base is None else [base]) + list(models)]
    _summing_kernel(form, len(models), base is not None)(*words, np.array(weights, form.real), total)


def finish(total: NDArray[Any], out: NDArray[Any]) -> None:
    """Add the sum of changes to `out`; both have the same dtype. Where the sum is 0, `out` keeps every bit."""
    _finishing_kernel(ELEMENTS["F32" if out.itemsize == 4 else "F64"])(total, out)


@cache
def _adding_kernel(form: ElementFormat, changes: int) -> Kernel:
    lane = form.lanes[0]
    steps = [
        [f"after = {lane}(x{k}[i])", f"s = s + w{k} * (after - before)", "before = after"]
        for k in range(1, changes + 1)
    ]
    source = native.fill(
        _ADD,
        arguments=", ".join(f"x{k}" for k in range(changes + 1)),
        weights=[f"w{k} = weights[{k - 1}]" for k in range(1, changes + 1)],
        lane=lane,
        add=[line for lines in steps for line in lines],
    )
    types = (*[f"{form.word_code}[]"] * (changes + 1), f"{form.real_code}[]", f"{form.real_code}[]")
    return native.load("add_changes", source, types, "i64")


@cache
def _summing_kernel(form: ElementFormat, models: int, has_base: bool) -> Kernel:
    lane = form.lanes[0]
    origin = " - b" if has_base else ""
    source = native.fill(
        _SUM,
        arguments=", ".join([*(["base"] if has_base else []), *(f"x{k}" for k in range(models))]),
        weights=[f"w{k} = weights[{k}]" for k in range(models)],
        base=[f"b = {lane}(base[i])"] if has_base else [],
        add=[f"s = s + w{k} * ({lane}(x{k}[i]){origin})" for k in range(models)],
    )
    types = (*[f"{form.word_code}[]"] * (models + has_base), f"{form.real_code}[]", f"{form.real_code}[]")
    return native.load("add_weighted", source, types, "i64")


@cache
def _finishing_kernel(form: ElementFormat) -> Kernel:
    source = native.fill(_FINISH, real=form.real_name)
    return native.load("finish", source, (f"{form.real_code}[]",) * 2, "i64")
