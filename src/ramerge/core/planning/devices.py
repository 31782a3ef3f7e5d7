"""Chooses the device that solves for whole matrices: a GPU on request, or if the matrices are large."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ramerge.core.foundation.devices import choose_device, device_name, may_have_gpu, read_device
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.linalg.solver import SIDE_BY_SIDE, is_slow_in_float64, is_sound
from ramerge.core.planning.findings import PlanFinding, note, problem, warning
from ramerge.core.planning.model import Resources, TensorPlan, matrices_of, needed_by
from ramerge.core.recipe.points import Point

LARGE = 10**11
"""Multiply-adds from which `auto` looks for a GPU: a plan's whole matrices, each times its own transpose, once.

Torch takes several seconds to start. The matrices of a model of 0.5B parameters have 3 x 10^11, and methods take 20
seconds to three minutes for these on two cores.
"""
_SHARE = 0.9  # of a device's free memory


def place_matrices(
    text: str, points: Sequence[Point], tensors: Sequence[TensorPlan], agents: int, resources: Resources
) -> tuple[Resources, list[PlanFinding]]:
    """The resources with the device that `text` names."""
    read_device(text)
    matrices = matrices_of(points, tensors)
    large = len(points) * sum(_operations(each.matrix) for each in matrices) >= LARGE
    if text == "cpu" or not matrices or (text == "auto" and not (large and may_have_gpu())):
        return resources, []
    try:
        device = choose_device(text)
    except RecipeError as error:
        return resources, [problem(str(error))]
    if device.type == "cpu" or (text == "auto" and device.type != "cuda"):
        return resources, []
    if not is_sound(str(device)):
        text = f"{device_name(device)} does not compute as the CPU does; the CPU solves for all matrices"
        return resources, [warning(text)]
    room = _room(str(device))
    needs = [needed_by(points, each, agents) for each in matrices]
    too_large = sum(need > room for need in needs)
    text = (
        f"{too_large} of {len(needs)} matrices need more than the {room / 1e9:.1f} GB that {device} has for one; "
        "the CPU solves for them"
    )
    precision = ", large matrices refined from float32" if is_slow_in_float64(str(device)) else ""
    resources_on_device = replace(
        resources, device=str(device), device_name=device_name(device) + precision, device_bytes=room
    )
    return resources_on_device, [note(text)] if too_large else []


def _room(device: str) -> int:
    """Bytes of a device for one matrix, with several on it at a time."""
    import torch

    free = torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else torch.mps.recommended_max_memory()
    return int(_SHARE * free / SIDE_BY_SIDE)


def _operations(shape: Sequence[int]) -> int:
    """Multiply-adds of a matrix times its own transpose, the smaller of both products."""
    short, long = sorted((math.prod(shape[:-1]), shape[-1]))
    return short * short * long
