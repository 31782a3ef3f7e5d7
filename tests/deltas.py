"""Deltas for tests: made, opened and applied as the commands do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ramerge
from ramerge.checkpoint import patched
from ramerge.checkpoint.delta import apply as apply_module
from ramerge.checkpoint.delta import codec, collect, layout, progress, spool, write
from ramerge.checkpoint.foreign import convert
from ramerge.checkpoint.model import Checkpoint
from ramerge.checkpoint.open import open_checkpoint
from ramerge.checkpoint.stage import staged
from ramerge.deltas import make
from ramerge.engine import patches


def blocks_of_elements(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks be so small that tensors of tests have several.

    In all modules that know the size: one that is first imported meanwhile would keep the small one for ever.
    """
    for module in (codec, collect, layout, progress, spool, write, patched, make, apply_module, convert, patches):
        monkeypatch.setattr(module, "BLOCK", size)


def write_delta(out: Path, base: Path, agent: Path, **options: Any) -> Path:
    """The delta of two folders."""
    ramerge.delta(base, agent, out, **options)
    return out


def opened(base: Path, *deltas: Path) -> Checkpoint:
    """Deltas over their base, in order."""
    model = open_checkpoint(base)
    for delta in deltas:
        model = open_checkpoint(delta, base=model)
    return model


def apply(out: Path, base: Path, *deltas: Path) -> Path:
    """The agent that deltas give."""
    with staged(out, overwrite=False) as stage:
        apply_module.write_agent(opened(base, *deltas), stage)
    return out
