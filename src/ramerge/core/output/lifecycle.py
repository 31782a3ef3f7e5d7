"""The life of an output, local or remote: it is built, completed or kept for a later run, and cleaned up."""

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
    """The `OutputDir` for a local output, or the `RemoteOutputDir` for a remote one."""
    return OutputDir(out) if isinstance(out, Path) else RemoteOutputDir(out)


@contextmanager
def build_output(out: OutputTarget, *, overwrite: bool, policy: ResumePolicy | None = None) -> Iterator[StagingDir]:
    """Build an output in a new folder. The end of the `with` block moves or uploads it to `out`; an error removes it.

    A signal whose handler raises ends the block, but not while folders are being moved or removed. With a policy, an
    interrupted run may be resumed, and the files of this run may be kept if it is interrupted.

    Args:
        out: the output.
        overwrite: whether an existing output is replaced.
        policy: decides whether interrupted runs are resumed and kept.

    Raises:
        PlanError: `out` exists and `overwrite` is off, or it may not be replaced.
        OutputError: another process is writing to `out`, or the folder cannot be made, synchronized, moved or uploaded.

    The message of an error says which model is at `out` afterwards.
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
        why = output.reason(error) if isinstance(error, OSError) else ""  # before the files that fill the disk are gone
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


def clean_up_interrupted(out: OutputTarget) -> list[str]:
    """Remove the remains of interrupted runs, and move back an old output that they had moved away.

    For a remote output, the remains of runs on other machines are removed, too.

    Returns:
        Sentences about what was removed; empty if there was nothing to clean up.
    """
    output = output_dir(out)
    with held():
        try:
            return output.clean_up_interrupted()
        except OSError as error:
            raise OutputError(f"{output.label}: what is left cannot be removed: {output.reason(error)}") from error


def tidy(out: OutputTarget | None) -> None:
    """If a run was killed after it had moved its output to `out`, remove its remains, and warn that `out` is complete.

    Called when a new run is refused because `out` exists. Does nothing for remote outputs, because no output is ever
    next to their hidden folder.
    """
    if out is None:
        return
    with suppress(OSError, ValueError, OutputError):  # no remains, the run is alive, or the folder is another user's
        if output_dir(out).was_killed_after_commit():
            clean_up_interrupted(out)
            note = f"{out}: is complete; leftovers of the killed run that wrote it were removed"
            warnings.warn(note, OutputWarning, stacklevel=3)
