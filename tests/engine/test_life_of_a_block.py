"""A block passes few functions, and they are those that the page names."""

from __future__ import annotations

import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

import ramerge
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.tensors import reader
from tests.checkpoints import recipe, write_simple

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "life-of-a-block.md"
MOST = 16


def frames() -> list[str]:
    """The functions of ramerge that are being called now, the outermost first."""
    stack = traceback.walk_stack(sys._getframe(2))
    ours = [frame.f_code for frame, _ in stack if f"{os.sep}ramerge{os.sep}" in frame.f_code.co_filename]
    return [f"{Path(code.co_filename).stem}.{code.co_name}" for code in reversed(ours)]


def test_the_way_from_merge_to_preadv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = recipe(tmp_path, write_simple(tmp_path), method="ram")
    read, real, ran, began = list[list[str]](), reader.read_into, ThreadExecutor.run, list[list[str]]()

    def preadv(*arguments: Any) -> int:
        read.append(frames())
        return real(*arguments)

    def run(*arguments: Any) -> Any:
        began.append([*frames(), "threads.run"])
        return ran(*arguments)

    monkeypatch.setattr(reader, "read_into", preadv)
    monkeypatch.setattr(ThreadExecutor, "run", run)
    ramerge.merge(source, tmp_path / "out", options=ramerge.Options(cache=False))
    ways = {tuple(began[-1] + way) for way in read if "passes.process" in way}
    (way,) = ways
    assert len(way) <= MOST, way
    named = re.findall(r"^\| \d+ \| `(\w+\.\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert list(way) == named
