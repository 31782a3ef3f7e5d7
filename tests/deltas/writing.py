"""Deltas for tests: made, opened and applied as the commands do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ramerge
from ramerge.core.formats.open import open_checkpoint
from ramerge.core.output.lifecycle import build_output
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.deltas import codec, collect, delta_output, index, patched, spool, write
from ramerge.deltas import rebuild as apply_module
from ramerge.deltas.trainers import convert


def blocks_of_elements(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks be so small that tensors of tests have several.

    In all modules that know the size: one that is first imported meanwhile would keep the small one for ever.
    """
    for module in (codec, collect, index, spool, write, patched, apply_module, convert, delta_output):
        monkeypatch.setattr(module, "BLOCK", size)


def write_delta(out: Path, base: Path, agent: Path, **options: Any) -> Path:
    """The delta of two folders."""
    compression = options.pop("compression", "none")
    ramerge.delta(base, agent, out, compression=compression, options=ramerge.Options(**options))
    return out


def opened(base: Path, *deltas: Path) -> Checkpoint:
    """Deltas over their base, in order."""
    model = open_checkpoint(base)
    for delta in deltas:
        model = open_checkpoint(delta, base=model)
    return model


def apply(out: Path, base: Path, *deltas: Path) -> Path:
    """The agent that deltas give."""
    with build_output(out, overwrite=False) as stage:
        apply_module.write_agent(opened(base, *deltas), stage)
    return out
