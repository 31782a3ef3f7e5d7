"""Life of an output, local or remote: it is built, completed or kept for a later run, and cleaned up."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ramerge.core.foundation.errors import OutputError, OutputWarning, PlanError, StoppedError
from ramerge.core.foundation.signals import Guard, held
from ramerge.core.output.remote_output import RemoteOutputDir
from ramerge.core.output.staging import OutputDir, ResumePolicy, StagingDir
from ramerge.core.output.targets import OutputTarget


def output_dir(out: OutputTarget) -> OutputDir:
    """The folder in which an output is built, for its kind of place."""
    return OutputDir(out) if isinstance(out, Path) else RemoteOutputDir(out)


@contextmanager
def build_output(out: OutputTarget, *, overwrite: bool, policy: ResumePolicy | None = None) -> Iterator[StagingDir]:
    """Build an output in a new folder. The end of the `with` block moves or uploads it to `out`; an error removes it.

    A signal whose handler raises ends the block, but it waits while folders are moved or removed. With a policy, what
    an earlier run left may be continued, and what this one leaves may be kept.

    Args:
        out: the output.
        overwrite: whether an existing output is replaced.
        policy: decides about interrupted runs.

    Raises:
        PlanError: something is at `out` and `overwrite` is off, or it may not be replaced.
        OutputError: another process writes it, or the folder cannot be made, synchronized, moved or uploaded.

    The message says which model is at `out` afterwards.
    """
    output, guard = output_dir(out), Guard()
    failure: BaseException | None = None
    why = ""
    try:
        try:
            guard.install()
            staging = output.open(overwrite, policy)
            for note in output.opening_notes():
                warnings.warn(note, stacklevel=3)
            yield staging
            guard.hold()
            output.publish(overwrite)
        finally:
            guard.hold()
    except BaseException as error:
        failure = error
        why = output.reason(error) if isinstance(error, OSError) else ""  # before what fills the disk is removed
    output.close(failure)
    if output.is_in_place:
        StoppedError.finished[output.label] = None
    try:
        guard.release()
    except BaseException as stop:
        failure = stop
    for notice in output.notices:
        warnings.warn(notice, OutputWarning, stacklevel=3)
    if isinstance(failure, StoppedError):
        failure.kept = output.fate()
    elif isinstance(failure, OSError):
        raise OutputError(output.words(why)) from failure
    elif isinstance(failure, OutputError | PlanError) and output.is_begun:
        kind = PlanError if isinstance(failure, PlanError) else OutputError
        raise kind(f"{failure}; {output.fate()}") from failure
    if failure is not None:
        raise failure


def discard(out: OutputTarget) -> list[str]:
    """Remove the remains of interrupted runs, and put back an old output that they had moved.

    For a remote output, left-overs of other machines' runs are removed too.

    Returns:
        Sentences on the clean-up; none if nothing was there.
    """
    output = output_dir(out)
    with held():
        try:
            return output.discard()
        except OSError as error:
            raise OutputError(f"{output.label}: what is left cannot be removed: {output.reason(error)}") from error


def tidy(out: OutputTarget | None) -> None:
    """Remove the remains of a run that was killed after it had put its output in place, and warn that this is complete.

    Called where the next run is refused because of that output. Remote outputs are left alone, because nothing is ever
    at the path next to their hidden folder.
    """
    if out is None:
        return
    with suppress(OSError, ValueError, OutputError):  # none is left, it lives, or another user's folder is there
        if output_dir(out).is_left_complete():
            discard(out)
            note = f"{out}: is complete; leftovers of the killed run that wrote it were removed"
            warnings.warn(note, OutputWarning, stacklevel=3)
