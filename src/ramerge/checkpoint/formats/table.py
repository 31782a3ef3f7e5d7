"""All formats, in the order in which a folder is tried. To add a format, write a file and add its row here."""

from __future__ import annotations

from ramerge.checkpoint.formats import adapter, dcp, fsdp, pickled, safetensors
from ramerge.checkpoint.formats.format import Format

FORMATS: tuple[Format, ...] = (safetensors.FORMAT, adapter.FORMAT, pickled.FORMAT, fsdp.FORMAT, dcp.FORMAT)
