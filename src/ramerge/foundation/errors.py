"""Everything that `ramerge` raises on purpose.

    RamergeError                 exit code 1
    ├── InputError               exit code 2: what the user gave cannot be merged
    │   ├── RecipeError          the recipe, its parameters, the command line
    │   ├── CheckpointError      a file, a header, an index, a companion
    │   ├── PlanError            inputs that do not fit each other, the output or the machine
    │   ├── WeightsError         values found while reading: NaN, Inf, overflow, unequal integer tensors
    │   └── EvaluationError      a benchmark's data or settings, a results folder, a missing package or sandbox
    ├── EndpointError            exit code 1: a model's endpoint gave no usable answer
    └── OutputError              exit code 1: the output could not be written (full disk, I/O error)

    StoppedError                 no Exception: a signal asked the process to end; exit code 128 and the signal's number
    OutputWarning                a warning: what else was found or left beside an output that was written

Every error of the first tree carries a tuple of problems, and all that are known are reported at once.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from itertools import islice
from typing import ClassVar

from ramerge.foundation.text import message

_MOST_PROBLEMS = 1000


class RamergeError(Exception):
    """The root of the tree. `problems` holds one sentence for each thing that is wrong, fit to be shown.

    Of more than a thousand problems the last entry says how many more there are.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, problems: str | Iterable[str]) -> None:
        found = iter((problems,) if isinstance(problems, str) else problems)
        kept = tuple(map(message, islice(found, _MOST_PROBLEMS)))
        more = sum(1 for _ in found)
        self.problems = (*kept, f"and {more:,} more") if more else kept
        super().__init__("\n".join(self.problems))


class StoppedError(BaseException):
    """A signal asked the process to end.

    Attributes:
        finished: all folders and files that this process has put in their places, in order, as keys.
        kept: says what is left of what it was doing.
    """

    finished: ClassVar[dict[str, None]] = {}

    def __init__(self, number: int) -> None:
        self.number = number
        done = list(self.finished)
        names = ", ".join(done[:3]) + (f" and {len(done) - 3} more" if len(done) > 3 else "")
        self.kept = f"written before that, and complete: {names}" if done else "nothing was kept"


class OutputWarning(UserWarning):
    """What else was found or left beside an output, which the user should know of."""


def reason(error: OSError) -> str:
    """What the operating system says, and what to do about it where that is not in its words."""
    said = error.strerror or str(error)
    if error.errno == errno.EMFILE:
        return f"{said}; raise the limit of open files (ulimit -n)"
    return said


class InputError(RamergeError):
    """What the user gave cannot be merged."""

    exit_code = 2


class RecipeError(InputError):
    """The recipe, its parameters or the command line are wrong."""


class CheckpointError(InputError):
    """A checkpoint cannot be read, or is not what it says it is."""


class PlanError(InputError):
    """The inputs do not fit each other, the output, or the memory and disk at hand."""


class WeightsError(InputError):
    """The weights hold values that cannot be merged."""


class EvaluationError(InputError):
    """A benchmark's data, its settings, a results folder or what a suite needs on this machine is wrong or absent."""


class EndpointError(RamergeError):
    """A model's endpoint cannot be reached, or gave no usable answer."""


class OutputError(RamergeError):
    """The output could not be written."""
