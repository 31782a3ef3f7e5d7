"""All formats, in the order in which a folder is tried. To add a format, write a file and add its row here."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from ramerge.checkpoint.formats.format import Format

_FILES = (
    "formats.delta",  # before safetensors, whose files it has
    "foreign.slime",  # before safetensors, whose names it has
    "foreign.skyrl",
    "foreign.grail",
    "formats.safetensors",
    "formats.adapter",
    "formats.pickled",
    "formats.fsdp",
    "formats.megatron",  # before dcp, whose files it has
    "formats.dcp",
    "formats.deepspeed",
)


def formats() -> Iterator[Format]:
    """The formats in order. A file is imported when its turn comes, so most folders do not wait for the later ones."""
    for file in _FILES:
        format: Format = import_module(f"ramerge.checkpoint.{file}").FORMAT
        yield format
