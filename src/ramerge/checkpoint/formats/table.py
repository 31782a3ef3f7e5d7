"""All formats, in the order in which a folder is tried. To add a format, write a file and add its row here."""

from __future__ import annotations

from ramerge.checkpoint.formats import adapter, dcp, deepspeed, delta, fsdp, megatron, pickled, safetensors
from ramerge.checkpoint.formats.format import Format

FORMATS: tuple[Format, ...] = (
    delta.FORMAT,  # before safetensors, whose files it has
    safetensors.FORMAT,
    adapter.FORMAT,
    pickled.FORMAT,
    fsdp.FORMAT,
    megatron.FORMAT,  # before dcp, whose files it has
    dcp.FORMAT,
    deepspeed.FORMAT,
)
