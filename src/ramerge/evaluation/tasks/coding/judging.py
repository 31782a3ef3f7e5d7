"""Runs programs on tests, each pair once."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ramerge.evaluation.sandbox.watch import Limits
from ramerge.evaluation.tasks.coding.places import Programs
from ramerge.evaluation.tasks.coding.problems import Case, Problem
from ramerge.evaluation.tasks.coding.scores import Table

# CURE lets programs use these without importing them
_TYPING = re.compile(r"\b(?:List|Optional|Tuple)\b")
_IMPORT = "from typing import List, Optional, Tuple\n"
_DIALOGUE = Path(__file__).with_name("dialogue.py").read_text(encoding="utf-8")
_LONGEST_REASON = 200
_LIMITS = ("time", "memory", "output")


@dataclass
class Judge:
    """Runs the programs of one problem in a sandbox.

    Attributes:
        limits: of each run.
        outcomes: how many runs ended how, in the sandbox's words; one whose assertions do not hold is an `error`.
        reasons: how often assertions failed for which reason, where no limit was met.
    """

    sandbox: Programs
    problem: Problem
    limits: Limits
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    async def table(self, programs: Sequence[str | None], cases: Sequence[Case | None]) -> Table:
        """Which programs pass which tests; None passes nothing."""
        runs: dict[_Run, set[Case]] = {}
        for program in programs:
            for case in cases:
                if program is not None and case is not None:
                    runs.setdefault(_Run(program, case.assertions, case.stdin), set()).add(case)
        passed = dict(zip(runs, await asyncio.gather(*(self._passed(*run) for run in runs.items())), strict=True))
        return [
            [
                program is not None and case is not None and case in passed[_Run(program, case.assertions, case.stdin)]
                for case in cases
            ]
            for program in programs
        ]

    async def _passed(self, run: _Run, cases: set[Case]) -> set[Case]:
        """The cases, all of one run, that a program passes. Its output may be large and is not kept."""
        if run.assertions:
            return cases if await self._hold(run) else set()
        outcome = await self.sandbox.run(run.text(), run.stdin, limits=self.limits)
        self.outcomes[outcome.status] += 1
        if outcome.status != "ok":
            return set()
        printed = outcome.stdout.split()  # only the words count, as in CURE
        return {case for case in cases if case.expected.split() == printed}

    async def _hold(self, run: _Run) -> bool:
        """Whether the assertions hold, which another process says than the one that runs the program."""
        given, function = self.problem.given, self.problem.function
        asking = f"{_DIALOGUE}\n\njudge({given!r}, {run.assertions!r}, {function!r})\n"
        answering = f"{_DIALOGUE}\n\nanswer({given!r}, {run.text()!r}, {function!r})\n"
        asked, answered = await self.sandbox.converse(asking, answering, limits=self.limits)
        met = [each.status for each in (answered, asked) if each.status in _LIMITS]
        status = "ok" if asked.status == "ok" else met[0] if met else "error"
        self.outcomes[status] += 1
        if status == "error":
            self.reasons[asked.stderr.rstrip().rpartition("\n")[2][:_LONGEST_REASON]] += 1
        return status == "ok"


class _Run(NamedTuple):
    program: str
    assertions: str
    stdin: str

    def text(self) -> str:
        """The program as it is run."""
        needs_typing = _TYPING.search(self.program) and "from __future__" not in self.program
        return f"{_IMPORT if needs_typing else ''}{self.program}"
