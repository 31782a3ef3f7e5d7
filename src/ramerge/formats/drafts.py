"""Safetensors files that hold a delta and are not read. Opened as a checkpoint, they would be a model of nonsense."""

from __future__ import annotations

import re

from ramerge.tensors.header import Header

_BASE = "merge the checkpoint that the trainer saves, or convert the deltas with the trainer's own tools"


def problem(header: Header) -> str | None:
    """Why a file is refused; None if it holds tensors as they are."""
    names = {entry.name for entry in header.entries}
    if names == {"__positions__", "__values__"}:
        return (
            "is a part of a weight update of slime before July 2026 (rankRRRR_flushFFFFFF.safetensors), which says "
            f"neither what it builds on nor when it is complete; {_BASE}"
        )
    if header.metadata.get("format") == "sparse_weight_patch":
        return (
            "is a draft of TRL's sparse weight updates, which has no checksum and does not say what it builds on; "
            f"{_BASE}"
        )
    if names and all(
        entry.dtype == "U8"
        and len(entry.shape) == 1
        and re.fullmatch("[0-9a-f]{8}|[0-9a-f]{32}|[0-9a-f]{64}", header.metadata.get(entry.name, ""))
        for entry in header.entries
    ):
        return "is a part of a delta of slime or miles without its index; get the whole folder"
    return None
