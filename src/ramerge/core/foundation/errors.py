"""All errors that `ramerge` raises on purpose.

    RamergeError                 exit code 1
    ├── InputError               exit code 2: the input cannot be merged
    │   ├── RecipeError          the recipe, its parameters, the command line
    │   ├── CheckpointError      a file, a header, an index, a companion
    │   ├── PlanError            inputs that do not fit each other, the output or the machine
    │   ├── PluginError          a plug-in that cannot be imported, does not fit, or has a name that is taken
    │   ├── WeightsError         values found while reading: NaN, Inf, overflow, unequal integer tensors
    │   └── EvaluationError      a benchmark's data or settings, a results folder, a missing package or sandbox
    ├── EndpointError            exit code 1: a model's endpoint gave no usable answer
    ├── RayError                 exit code 1: a Ray cluster cannot be reached, or cannot do the work
    └── OutputError              exit code 1: the output could not be written (full disk, I/O error)
        └── SendError            the remote location fails, or denies access

    StoppedError                 not an Exception: a signal asked the process to end; exit code 128 + signal number
    OutputWarning                a warning: something else was found or left next to an output that was written
    ├── ContinueNote             not a fault: an interrupted run is resumed
    └── DownloadNote             not a fault: a model is downloaded before anything else happens
    PluginWarning                a warning: a plug-in is left out of a list, because it cannot be used

Every `RamergeError` carries a tuple of problems, because all known problems are reported at once.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import ClassVar

from ramerge.core.foundation.text import message
from ramerge.core.options import in_python

AGAIN = "copy or download it again"
"""The remedy for a damaged file, for messages."""

_MOST_PROBLEMS = 1000


class RamergeError(Exception):
    """The base class of ramerge's errors. `problems` holds one printable sentence for each problem.

    If there are more than a thousand problems, the last entry gives the number of the others. `messages` holds the same
    sentences for the command line: with flags, such as `--overwrite`, in place of keywords.

    Example:
        >>> try:
        ...     ramerge.merge({"base": "base", "agents": {"code": "nowhere"}, "dtype": "wide"}, "merged")
        ... except ramerge.RamergeError as error:
        ...     print(error.exit_code, len(error.problems))
        2 2
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, problems: str | Iterable[str]) -> None:
        texts = iter((problems,) if isinstance(problems, str) else problems)
        first_texts = tuple(map(message, islice(texts, _MOST_PROBLEMS)))
        more = sum(1 for _ in texts)
        self.messages: tuple[str, ...] = (*first_texts, f"and {more:,} more") if more else first_texts
        super().__init__("\n".join(self.problems))

    @property
    def problems(self) -> tuple[str, ...]:
        """The messages, with keywords of the Python API in place of flags."""
        return tuple(map(in_python, self.messages))

    def __reduce__(self) -> tuple[object, ...]:
        return _restore_error, (type(self), self.messages, self.__dict__)


def _restore_error(kind: type[RamergeError], messages: tuple[str, ...], state: dict[str, object]) -> RamergeError:
    """Restore an error that was pickled in another process."""
    error = kind.__new__(kind)
    Exception.__init__(error, "\n".join(map(in_python, messages)))
    error.__dict__.update(state)
    return error


class StoppedError(BaseException):
    """A signal asked the process to end.

    Attributes:
        number: the signal's number.
        finished: all folders and files that this process has completed and moved into place, as keys in order.
        kept: a phrase that names the complete outputs.
    """

    finished: ClassVar[dict[str, None]] = {}

    def __init__(self, number: int) -> None:
        self.number = number
        outputs = list(self.finished)
        names = ", ".join(outputs[:3]) + (f" and {len(outputs) - 3} more" if len(outputs) > 3 else "")
        self.kept: str = f"these outputs are complete: {names}" if outputs else "nothing was kept"


class OutputWarning(UserWarning):
    """A warning that something else was found or left next to an output."""


class ContinueNote(OutputWarning):
    """A note that an interrupted run is resumed."""


class DownloadNote(OutputWarning):
    """A note that a whole model of the Hub is downloaded, because it cannot be read by range."""


class PluginWarning(UserWarning):
    """A warning that a plug-in cannot be used, so it is left out of a list."""


# Remedies for errors of the operating system, whose messages have none.
_ADVICE = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EBADF: "it is closed; send it to a file, or to /dev/null",
    errno.EACCES: "change the permissions of the file or of its folder, or choose another place",
    errno.EPERM: "change the permissions of the file or of its folder, or choose another place",
    errno.EROFS: "choose a place that can be written to",
    errno.EEXIST: "a file has the name of a folder that is needed; choose another path",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another path",
    errno.EISDIR: "a folder has this name; choose another path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "links lead in a circle, or are not followed here; name the file itself",
    errno.ENOSPC: "free some disk, or choose another place",
    errno.EDQUOT: "free some of your share of the disk, or choose another place",
}


def reason(error: OSError, where: str = "") -> str:
    """Return the operating system's message, followed by `where` and, if known, a remedy."""
    description = f"{error.strerror or error}{where}"
    advice = _ADVICE.get(error.errno) if error.errno is not None else None
    return f"{description}; {advice}" if advice else description


class InputError(RamergeError):
    """The user's input cannot be merged.

    Example:
        >>> try:
        ...     ramerge.plan({"agents": {}})
        ... except ramerge.InputError as error:
        ...     print(type(error).__name__)
        RecipeError
    """

    exit_code = 2


class RecipeError(InputError):
    """The recipe, its parameters or the command line are wrong.

    Example:
        >>> ramerge.plan({"base": "base", "agents": {"code": "coder"}, "methud": "ram"})
        Traceback (most recent call last):
            ...
        ramerge.core.foundation.errors.RecipeError: ...
    """


class CheckpointError(InputError):
    """A checkpoint cannot be read, or its files contradict each other or their format.

    Example:
        >>> ramerge.delta("base", "nowhere", "delta")
        Traceback (most recent call last):
            ...
        ramerge.core.foundation.errors.CheckpointError: ...
    """


@contextmanager
def collect(problems: list[str]) -> Iterator[None]:
    """Within the block, add a `CheckpointError` to `problems` instead of raising it, so that checks continue."""
    try:
        yield
    except CheckpointError as error:
        problems += error.messages


@contextmanager
def readable(path: object) -> Iterator[None]:
    """Within the block, turn errors of the operating system into errors that name the file.

    Raises:
        CheckpointError: instead of OSError.
    """
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {reason(error)}") from error


class PlanError(InputError):
    """The inputs do not fit each other, the output, or the memory and disk at hand.

    Example:
        >>> ramerge.merge("recipe.yaml", "base")
        Traceback (most recent call last):
            ...
        ramerge.core.foundation.errors.PlanError: ...
    """


class PluginError(InputError):
    """A plug-in cannot be imported or compiled, is written for another interface, or has a name that is taken."""


class WeightsError(InputError):
    """The weights hold values that cannot be merged.

    Example:
        >>> try:
        ...     record = ramerge.merge("recipe.yaml", "merged")
        ... except ramerge.WeightsError as error:  # NaN, Inf or overflow, with tensor, agent and count
        ...     print(error)
    """


class EvaluationError(InputError):
    """A benchmark's data or settings, a results folder, or a suite's needs on this machine are wrong or missing.

    Example:
        >>> try:
        ...     ramerge.search("recipe.yaml", "found")  # neither prompts nor a score
        ... except ramerge.EvaluationError as error:
        ...     print(error)
        no score: give prompts for each agent ...
    """


class EndpointError(RamergeError):
    """A model's endpoint cannot be reached, or gave no usable answer.

    Example:
        >>> access = ramerge.ModelAccess(endpoint="http://127.0.0.1:9/v1")  # no server listens there
        >>> try:
        ...     access.check_reachable()
        ... except ramerge.EndpointError:
        ...     print("start a server first")
        start a server first
    """


class RayError(RamergeError):
    """A Ray cluster cannot be reached, or cannot do the work. The next run resumes.

    Example:
        >>> options = ramerge.Options(ray=ramerge.Ray(address="127.0.0.1:1"))
        >>> try:
        ...     ramerge.merge("recipe.yaml", "merged", options=options)
        ... except ramerge.RayError as error:
        ...     print(error.resumable)
        True
    """

    resumable: ClassVar[bool] = True


class OutputError(RamergeError):
    """The output could not be written.

    Example:
        >>> try:
        ...     record = ramerge.merge("recipe.yaml", "merged")
        ... except ramerge.OutputError as error:  # such as a full disk
        ...     print(error)
    """


class SendError(OutputError):
    """The output could not be uploaded. Repeating the command resumes from the finished work."""

    resumable: ClassVar[bool] = True
