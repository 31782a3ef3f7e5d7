"""Scorers by Python functions: given by name and run in a separate process, or given as objects and run in this
process.

The separate process scores all points, because importing torch takes seconds. Each model has a time limit: a process
that hangs or dies is replaced for the next point.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ramerge import EvaluationError
from ramerge.core.foundation.signals import raise_dropped
from ramerge.scoring.children import start, stop
from ramerge.scoring.functions import NoFunctionError, describe_error
from ramerge.scoring.scores import ScoreFailedError, Scorer, Scores, Split, read_scores
from ramerge.sdk.text import shown
from ramerge.searches.child import refuse_reward, scores_in_parts, takes_split

_MOST_BYTES = 1 << 26
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SECONDS_TO_START = 300.0  # importing torch from a slow disk
_LOOK_SECONDS = 1.0


class FunctionScorer(Scorer):
    """Scorer by `module:function` or `file.py:function`, in a process that `close` ends.

    Args:
        spec: the function's name.
        log: receives what the function prints.
        seconds: the time limit for scoring a model.
        on_load: called when the first process starts, and every second until it has loaded the function.
    """

    def __init__(self, spec: str, log: Path, seconds: float, on_load: Callable[[], None] = lambda: None) -> None:
        self._spec = spec
        self._log = log
        self._seconds = seconds
        self._process: _FunctionProcess | None = None
        try:
            ready = self._running_process(on_load).ready
        except ScoreFailedError as error:
            if str(log) not in str(error):  # the error says all of it
                log.unlink(missing_ok=True)
            raise EvaluationError(f"--score {spec}: {error}") from error
        self.splits: bool = bool(ready.get("splits"))
        self.in_parts: bool = bool(ready.get("in_parts"))
        self._digest = str(ready.get("digest"))

    def parts(self, model: Path, split: Split) -> Generator[Scores, None, None]:
        process = self._running_process()
        until = time.monotonic() + self._seconds
        is_idle = False
        try:
            answer = process.ask({"model": str(model), "split": split}, until)
            while "part" in answer:
                going_on = False
                try:
                    yield read_scores(answer["part"])
                    going_on = True
                finally:
                    answer = process.ask({"more": going_on}, until)
                    is_idle = not going_on
            is_idle = True
            if "error" in answer:
                raise ScoreFailedError(str(answer["error"]))
        finally:
            if not is_idle:
                self.close()

    def about(self) -> Mapping[str, object]:
        """Return the function's name, and the digest of its file and of the imported modules in its folder, whatever
        path leads to it.
        """
        return {"function": self._spec.rpartition(":")[2], "digest": self._digest}

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def _running_process(self, on_load: Callable[[], None] = lambda: None) -> _FunctionProcess:
        if self._process is None:
            self._process = _FunctionProcess(self._spec, self._log, self._seconds, on_load)
        return self._process


class CallableScorer(Scorer):
    """Scorer by a function in this process. A function that hangs is not stopped.

    Args:
        function: the function.
        log: receives the tracebacks of its errors.

    Raises:
        EvaluationError: the function is a reward function.
    """

    def __init__(self, function: Callable[..., object], log: Path) -> None:
        self._function, self._log = function, log
        try:
            refuse_reward(function, f"FILE.py:{getattr(function, '__name__', 'FUNCTION')}")
        except NoFunctionError as error:
            raise EvaluationError(f"score: {error}") from error
        self.splits: bool = takes_split(function)
        self.in_parts: bool = inspect.isgeneratorfunction(function)

    def parts(self, model: Path, split: Split) -> Generator[Scores, None, None]:
        try:
            for part in scores_in_parts(self._function, model, split):
                yield read_scores(part)
        except ScoreFailedError:
            raise
        except Exception as error:
            with self._log.open("a", encoding="utf-8") as log:
                traceback.print_exception(error, file=log)
            raise ScoreFailedError(describe_error(error)) from error

    def about(self) -> Mapping[str, object]:
        """Return the function's name, and the digest of its source and of the values that it holds."""
        function: Any = self._function
        values: list[Any] = []
        while isinstance(function, partial):
            values += [function.args, function.keywords]
            function = function.func
        subject = function if hasattr(function, "__qualname__") else type(function)
        if hasattr(function, "__code__"):
            values += [function.__defaults__, function.__kwdefaults__]
            values += [cell.cell_contents for cell in function.__closure__ or ()]
        else:
            values.append(getattr(function, "__dict__", None))
        text = _ADDRESS.sub("", repr(values)) + _function_source(subject)
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        return {"function": f"{subject.__module__}:{subject.__qualname__}", "digest": digest}


def _function_source(subject: Any) -> str:
    """Return the source of a function, or its compiled code if there is no source, as in an interactive session."""
    with suppress(OSError, TypeError):
        return inspect.getsource(subject)
    code = getattr(subject, "__code__", None)
    return "" if code is None else f"{code.co_code.hex()} {_ADDRESS.sub('', repr(code.co_consts))} {code.co_names}"


def place_of(spec: str) -> str:
    """Return the module or file of a score function named `module:function` or `file.py:function`."""
    return spec.rpartition(":")[0]


class _FunctionProcess:
    def __init__(self, spec: str, log: Path, seconds: float, on_load: Callable[[], None]) -> None:
        self._log = log
        self._seconds = seconds
        self._buffer = b""
        self._answers, theirs = os.pipe()
        try:
            with log.open("ab") as output:
                command = [sys.executable, "-m", "ramerge.searches.child", spec, str(theirs)]
                self._process = start(command, stdin=subprocess.PIPE, output=output, pass_fds=[theirs])
        finally:
            os.close(theirs)
        try:
            most = max(seconds, _SECONDS_TO_START)
            late = (
                f"{place_of(spec)} did not load within {most:g} seconds: see what it does at its import, and what "
                f"it printed in {log}; a --score-timeout of more seconds waits longer"
            )
            self.ready = self._read_line(time.monotonic() + most, late, on_load)
            if "error" in self.ready:
                raise ScoreFailedError(str(self.ready["error"]))
        except BaseException:
            self.close()
            raise

    def ask(self, values: Mapping[str, object], until: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, which reading says
            self._process.stdin.write(json.dumps(values).encode() + b"\n")
            self._process.stdin.flush()
        return self._read_line(until, f"did not end within {self._seconds:g} seconds (--score-timeout)")

    def _read_line(self, until: float, late: str, on_wait: Callable[[], None] = lambda: None) -> dict[str, object]:
        while b"\n" not in self._buffer:
            raise_dropped()
            on_wait()
            left = until - time.monotonic()
            if not select.select([self._answers], [], [], min(max(0.0, left), _LOOK_SECONDS))[0]:
                if left > 0:
                    continue
                raise ScoreFailedError(late)
            data = os.read(self._answers, 1 << 16)
            if not data:
                lines: list[str] = []
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(5)
                with suppress(OSError):
                    lines = self._log.read_bytes()[-4000:].decode("utf-8", "replace").splitlines()
                ending = f"exit code {self._process.returncode}" + (f": {shown(lines[-1])}" if lines else "")
                raise ScoreFailedError(f"its process ended with {ending}; all that it printed is in {self._log}")
            self._buffer += data
            if len(self._buffer) > _MOST_BYTES:
                raise ScoreFailedError(f"returned more than {_MOST_BYTES:,} bytes")
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, object] = json.loads(line)
        return answer

    def close(self) -> None:
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        stop(self._process)
        os.close(self._answers)
