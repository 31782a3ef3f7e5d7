"""What a person sees of a merge that runs: kernels that are compiled, and figures only where they mean something."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable

import pytest

from ramerge.cli import progress
from ramerge.core.foundation.progress import Progress

GB = 10**9


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def heard(stream: io.StringIO, clock: Clock, events: list[tuple[float, Progress]], patch: pytest.MonkeyPatch) -> str:
    patch.setattr(sys, "stderr", stream)
    patch.setenv("COLUMNS", "120")
    with progress.shown(quiet=False) as listen:
        for second, event in events:
            clock.now = 100.0 + second
            listen(event)
    return stream.getvalue()


def test_lines_are_rare_and_their_figures_mean_something(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    # five seconds of compiling, then a gigabyte a second
    events = [(0.0, Progress("counting", 0, 101 * GB))]
    events += [(5.0 + second, Progress("counting", (1 + second) * GB, 101 * GB)) for second in range(101)]
    lines = heard(io.StringIO(), clock, events, monkeypatch).splitlines()
    assert lines == [
        "counting: 26.0 GB of 101.0 GB, 1.0 GB/s, 75 s left",
        "counting: 56.0 GB of 101.0 GB, 1.0 GB/s, 45 s left",
        "counting: 86.0 GB of 101.0 GB, 1.0 GB/s, 15 s left",
        "counting: 101.0 GB of 101.0 GB, 1.0 GB/s",
    ]


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_short_stage_has_no_rate(
    stream: Callable[[], io.StringIO], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [(0.0, Progress("merging", 0, 4)), (0.1, Progress("merging", 1, 4)), (0.2, Progress("merging", 4, 4))]
    text = heard(stream(), clock, events, monkeypatch)
    assert "4 bytes of 4 bytes" in text and "/s" not in text and "left" not in text


@pytest.mark.parametrize(("total", "left"), [(100, "90 s left"), (1000, "16 min left"), (10_000, "3 h left"), (10, "")])
def test_time_left_has_the_unit_that_suits(total: int, left: str, clock: Clock) -> None:
    figures = progress._StageFigures()
    figures(Progress("merging", 1, total))
    clock.now += 9
    assert figures(Progress("merging", 10, total)).endswith(left)


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_kernels_never_look_finished(
    stream: Callable[[], io.StringIO], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [
        (0.0, Progress("compiling kernels", done, max(1, done), "kernels", f"{method}, 3 agents"))
        for method in ("ram+", "ties")
        for done in (0, 1, 1, 2)
    ]
    text = heard(stream(), clock, events, monkeypatch)
    title = "compiling kernels (ram+, 3 agents; once, some seconds)"
    if stream is Terminal:
        assert title in text and "ties" not in text and "2 done" in text and " of " not in text
    else:
        assert text.splitlines() == [title]  # once, and not for each kernel


def test_quiet_command_gives_events_as_json(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(progress.FORM, "json")
    with progress.shown(quiet=True) as listen:
        for second, event in enumerate([*(Progress("merging", done, 9) for done in range(10))]):
            clock.now = 100.0 + second * 0.04
            listen(event)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    # at most ten a second, the first and the last of them always
    assert [line["done"] for line in lines] == [0, 3, 6, 9]
    assert lines[0] == {"stage": "merging", "done": 0, "total": 9, "unit": "bytes", "note": ""}
