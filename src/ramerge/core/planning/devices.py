"""Chooses where whole matrices are solved for: on a GPU, if one is asked for, or if that pays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ramerge.core.foundation.devices import called, choose_device, may_have_gpu, read_device
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.linalg.devices import SIDE_BY_SIDE, is_slow_in_float64, is_sound
from ramerge.core.planning.findings import Findings
from ramerge.core.planning.model import Resources, TensorPlan
from ramerge.core.recipe.points import Point

PAYS = 20.0
"""Seconds of solving on the CPU from which `auto` looks for a GPU: torch alone takes several to start."""
_SHARE = 0.9  # of a device's free memory


def place(
    text: str,
    points: Sequence[Point],
    tensors: Sequence[TensorPlan],
    agents: int,
    resources: Resources,
    findings: Findings,
) -> Resources:
    """The resources with the device that `text` names, and the forecast for the CPU removed if it is another one.

    Raises:
        RecipeError: `text` names no device.
    """
    read_device(text)
    took = resources.solving_seconds
    if text == "cpu" or took is None or (text == "auto" and not (took >= PAYS and may_have_gpu())):
        return resources
    try:
        device = choose_device(text)
    except RecipeError as error:
        findings.problem(str(error))
        return resources
    if device.type == "cpu" or (text == "auto" and device.type != "cuda"):
        return resources
    if not is_sound(str(device)):
        findings.warnings.append(f"{called(device)} does not compute as the CPU does; the CPU solves for all matrices")
        return resources
    room = _room(str(device))
    needs = list(_needs(points, tensors, agents))
    too_large = sum(need > room for need in needs)
    if too_large:
        findings.notes.append(
            f"{too_large} of {len(needs)} matrices need more than the {room / 1e9:.1f} GB that {device} has for one; "
            "the CPU solves for them"
        )
    precision = ", large matrices refined from float32" if is_slow_in_float64(str(device)) else ""
    return replace(
        resources,
        device=str(device),
        device_name=called(device) + precision,
        device_bytes=room,
        solving_seconds=None,
    )


def _room(device: str) -> int:
    """Bytes for one of the matrices that are on a device at a time."""
    import torch

    free = torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else torch.mps.recommended_max_memory()
    return int(_SHARE * free / SIDE_BY_SIDE)


def _needs(points: Sequence[Point], tensors: Sequence[TensorPlan], agents: int) -> Iterator[int]:
    for tensor in tensors:
        if tensor.merged and tensor.whole:
            yield max(point.method.scratch(tensor.layer, point.parameters[tensor.rule], agents) for point in points)
