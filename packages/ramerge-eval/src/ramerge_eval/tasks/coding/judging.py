"""Runs programs against tests: each pair once, in bubblewrap or in any other sandbox of Inspect."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from inspect_ai.util import OutputLimitExceededError, SandboxEnvironment, sandbox

from ramerge import EvaluationError
from ramerge_eval.sandbox.execution import Outcome
from ramerge_eval.sandbox.provider import BubblewrapSandbox
from ramerge_eval.sandbox.watch import Limits
from ramerge_eval.tasks.coding.problems import Case, Problem
from ramerge_eval.tasks.coding.scores import Table

# CURE lets programs use these without importing them
_TYPING = re.compile(r"\b(?:List|Optional|Tuple)\b")
_IMPORT = "from typing import List, Optional, Tuple\n"
_DIALOGUE, _PAIR = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("dialogue.py", "pair.py"))
_LONGEST_REASON = 200
_LIMITS = ("time", "memory", "output")
_NO_START = 125  # of `pair`


class Programs(Protocol):
    """Runner of Python programs in a sandbox: `BubblewrapSandbox`, or another sandbox of Inspect."""

    async def run(self, program: str, stdin: str = "", limits: Limits | None = None) -> Outcome:
        """Run a Python program in the sandbox to its end or to a limit."""

    async def converse(self, asking: str, answering: str, limits: Limits | None = None) -> tuple[Outcome, Outcome]:
        """Run two Python programs in the sandbox, each of which reads what the other prints."""


def programs() -> Programs:
    """Return the runner of programs for the sample being scored."""
    environment = sandbox()
    try:
        return environment.as_type(BubblewrapSandbox)  # Inspect wraps it
    except TypeError:
        return _OtherSandbox(environment)


class _Run(NamedTuple):
    program: str
    assertions: str
    stdin: str

    def text(self) -> str:
        """Return the text of the program to run."""
        needs_typing = _TYPING.search(self.program) and "from __future__" not in self.program
        return f"{_IMPORT if needs_typing else ''}{self.program}"


@dataclass
class Judge:
    """Judge of the programs of one problem, which it runs in a sandbox.

    Attributes:
        limits: the limits of each run.
        outcomes: the number of runs by the sandbox's status; a run whose assertions fail is an `error`.
        reasons: the number of failed assertions by reason, if no limit was reached.
    """

    sandbox: Programs
    problem: Problem
    limits: Limits
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    async def table(self, programs: Sequence[str | None], cases: Sequence[Case | None]) -> Table:
        """Run programs on tests, and return which pass; a missing program or test (None) passes nothing."""
        runs: dict[_Run, set[Case]] = {}
        for program in programs:
            for case in cases:
                if program is not None and case is not None:
                    runs.setdefault(_Run(program, case.assertions, case.stdin), set()).add(case)
        passes = dict(zip(runs, await asyncio.gather(*(self._passes(*run) for run in runs.items())), strict=True))
        return [
            [
                program is not None and case is not None and case in passes[_Run(program, case.assertions, case.stdin)]
                for case in cases
            ]
            for program in programs
        ]

    async def _passes(self, run: _Run, cases: set[Case]) -> set[Case]:
        """Return the cases of a run that a program passes. Its output may be large and is not kept."""
        if not run.assertions:
            outcome = await self.sandbox.run(run.text(), run.stdin, limits=self.limits)
            self.outcomes[outcome.status] += 1
            words = outcome.stdout.split()  # only the words count, as in CURE
            return {case for case in cases if outcome.status == "ok" and case.output.split() == words}
        # whether assertions hold, another process says than the one that runs the program
        preamble, function = self.problem.preamble, self.problem.function
        asking = f"{_DIALOGUE}\n\njudge({preamble!r}, {run.assertions!r}, {function!r})\n"
        answering = f"{_DIALOGUE}\n\nanswer({preamble!r}, {run.text()!r}, {function!r})\n"
        asker, answerer = await self.sandbox.converse(asking, answering, limits=self.limits)
        limits = [each.status for each in (answerer, asker) if each.status in _LIMITS]
        status = "ok" if asker.status == "ok" else limits[0] if limits else "error"
        self.outcomes[status] += 1
        if status == "error":
            self.reasons[asker.stderr.rstrip().rpartition("\n")[2][:_LONGEST_REASON]] += 1
        return cases if status == "ok" else set()


class _OtherSandbox:
    """Programs in docker, or another sandbox of the user's choice, with its own limits besides the time limit."""

    def __init__(self, environment: SandboxEnvironment) -> None:
        self._environment = environment

    async def run(self, program: str, stdin: str = "", limits: Limits | None = None) -> Outcome:
        return await self._execute([program], stdin, limits or Limits())

    async def converse(self, asking: str, answering: str, limits: Limits | None = None) -> tuple[Outcome, Outcome]:
        # both are in one container; where that is root's, the second one becomes another user
        outcome = await self._execute([_PAIR, asking, answering], "", limits or Limits())
        if outcome.code == _NO_START:
            raise EvaluationError(
                "the sandbox's python3 cannot be run by an unprivileged user, who runs the function where root runs "
                "the assertions; choose another image, or --sandbox bubblewrap"
            )
        return outcome, Outcome("ok", 0, "", "")

    async def _execute(self, programs: Sequence[str], stdin: str, limits: Limits) -> Outcome:
        """Run the first program with the files of the others as its arguments; return its outcome."""
        files = [f"{uuid.uuid4().hex}.py" for _ in programs]
        for file, program in zip(files, programs, strict=True):
            await self._environment.write_file(file, program.encode("utf-8", errors="surrogatepass"))
        try:
            result = await self._environment.exec(
                ["python3", *files], input=stdin, timeout=max(1, round(limits.seconds)), timeout_retry=False
            )
        except TimeoutError:
            return Outcome("time", None, "", "")
        except OutputLimitExceededError:
            return Outcome("output", None, "", "")
        except UnicodeDecodeError as error:
            return Outcome("error", None, "", str(error))
        return Outcome("ok" if result.success else "error", result.returncode, result.stdout, result.stderr)
