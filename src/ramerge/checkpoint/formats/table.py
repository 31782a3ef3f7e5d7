"""All formats, in the order in which a folder is tried. To add a format, write a file and add its row here."""

from __future__ import annotations

from ramerge.checkpoint.foreign import grail, skyrl, slime
from ramerge.checkpoint.foreign.unpack import format_of
from ramerge.checkpoint.formats import adapter, dcp, deepspeed, delta, fsdp, megatron, pickled, safetensors
from ramerge.checkpoint.formats.format import Format

FORMATS: tuple[Format, ...] = (
    delta.FORMAT,  # before safetensors, whose files it has
    format_of(slime.LAYOUT),  # before safetensors, whose names it has
    format_of(skyrl.LAYOUT),
    format_of(grail.LAYOUT),
    safetensors.FORMAT,
    adapter.FORMAT,
    pickled.FORMAT,
    fsdp.FORMAT,
    megatron.FORMAT,  # before dcp, whose files it has
    dcp.FORMAT,
    deepspeed.FORMAT,
)
