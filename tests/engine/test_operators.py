"""Operators that threads share, and the reading of recorded inputs."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

from ramerge.core.engine.operators import Operators, read_rows
from ramerge.core.engine.passes import interleave_operators
from ramerge.core.formats.open import open_checkpoint
from ramerge.core.foundation.errors import WeightsError
from ramerge.core.methods.base import RecordedRows
from ramerge.core.planning.model import InputRecord
from ramerge.core.tensors.reader import Files, Reader
from tests.checkpoints import floats, write_checkpoint
from tests.messages import Messages


def test_an_operator_is_made_once_for_all_threads() -> None:
    operators, made = Operators(2), []
    begin = threading.Barrier(8)

    def make() -> object:
        made.append(threading.get_ident())
        return object()

    found: list[object] = []

    def ask() -> None:
        begin.wait(10)
        found.append(operators.get("key", make))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(made) == 1
    assert len(found) == 8 and all(each is found[0] for each in found)


def test_those_that_were_used_last_are_kept() -> None:
    operators, made = Operators(2), []

    def get(key: str) -> str:
        return str(operators.get(key, lambda: made.append(key) or key))

    assert [get(key) for key in "abacab"] == list("abacab")
    assert made == ["a", "b", "c", "b"]  # b was used longest ago when c came


def test_a_failure_is_not_kept() -> None:
    operators = Operators(1)
    with pytest.raises(ZeroDivisionError):
        operators.get("key", lambda: 1 / 0)
    assert operators.get("key", lambda: 3) == 3


def test_operators_take_turns_on_workers() -> None:
    runs = ["a1", "a2", "-1", "b1", "a3", "c1", "c2", "-2"]
    found = list(interleave_operators(runs, lambda run: run[0].strip("-"), 2))
    assert found == ["a1", "-1", "a2", "b1", "a3", "c1", "-2", "c2"]
    assert list(interleave_operators(runs, lambda run: "", 3)) == runs


def test_they_arrive_empty_in_another_process() -> None:
    operators = Operators(1)
    operators.get("key", lambda: 3)
    assert pickle.loads(pickle.dumps(operators)).get("key", lambda: 4) == 4  # noqa: S301


def read(folder: Path, rows: object, weights: object, dtype: str = "BF16") -> RecordedRows:
    opened = open_checkpoint(write_checkpoint(folder, {"r": floats(rows, dtype), "w": floats(weights, "F32")}))
    with Files(opened.files) as files:
        return read_rows(Reader(files), InputRecord(opened.tensors["r"], opened.tensors["w"]))


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F64"])
def test_rows_of_any_dtype_are_read_unchanged(dtype: str, tmp_path: Path) -> None:
    rows = np.array([[1.5, -2.0, 0.0], [0.25, 3.0, -1.0], [7.0, 0.0, 1.0]])
    found = read(tmp_path / "m", rows, [0.5, 0.0, 0.25], dtype)
    assert found.inputs.dtype == found.weights.dtype == np.float64
    assert found.inputs.tolist() == rows.tolist()
    assert found.weights.tolist() == [0.5, 0.0, 0.25]


def test_no_rows_are_none(tmp_path: Path) -> None:
    found = read(tmp_path / "m", np.empty((0, 3)), np.empty(0))
    assert found.inputs.shape == (0, 3) and found.weights.shape == (0,)


@pytest.mark.parametrize(
    ("rows", "weights"),
    [
        ([[np.nan, 1], [1, 1]], [1, 1]),
        ([[np.inf, 1], [1, 1]], [1, 1]),
        ([[1, 1], [1, 1]], [1, np.nan]),
        ([[1, 1], [1, 1]], [1, -1]),
        ([[1, 1], [1, 1]], [0, 0]),
    ],
)
def test_numbers_that_cannot_be_are_refused(rows: object, weights: object, tmp_path: Path, messages: Messages) -> None:
    with messages.raises(WeightsError):
        read(tmp_path / "m", rows, weights)
