"""Kinds of output, and the staging directory and journal of an output that is being built.

The core writes checkpoints; features and plug-ins add further kinds of output, which are found by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ramerge.core.engine.journal import Journal
from ramerge.core.engine.reads import Passes
from ramerge.core.engine.record import Record
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.text import literal, unknown
from ramerge.core.output.lifecycle import build_output, output_dir
from ramerge.core.output.staging import SPOOL, StagingDir
from ramerge.core.output.targets import OutputTarget
from ramerge.core.planning.kinds import PlannedKind
from ramerge.core.planning.model import MergePlan
from ramerge.core.registry import Registry


@dataclass(frozen=True)
class OpenOutput:
    """An output that is being built, and its journal of finished work.

    Attributes:
        staging: the folder that is being built.
        journal: the journal, opened.
        spool_folder: the folder of spooled data, from which the files are written.
    """

    staging: StagingDir
    journal: Journal
    spool_folder: Path


@dataclass(frozen=True)
class OutputSpec:
    """Location, size and fingerprint of an output to build.

    Attributes:
        out: the output folder, local or remote.
        overwrite: whether an existing output is replaced.
        fingerprint: everything that the work depends on, by human-readable names.
        total: bytes of work in all passes.
        files: names and sizes of the large files.
        spooled: names and sizes of spooled files.
    """

    out: OutputTarget
    overwrite: bool
    fingerprint: Mapping[str, str]
    total: int
    files: Mapping[str, int] = field(default_factory=dict)
    spooled: Mapping[str, int] = field(default_factory=dict)


@contextmanager
def open_output(what: OutputSpec, *, fresh: bool) -> Iterator[OpenOutput]:
    """Open the staging directory and journal of an output; when the `with` block ends, the output moves into place.

    Args:
        what: the output to build.
        fresh: whether the work of earlier runs is ignored.
    """
    spool = {f"{SPOOL}/{name}": size for name, size in what.spooled.items()}
    journal = Journal(what.fingerprint, what.files, what.total, spooled=spool, fresh=fresh)
    work = output_dir(what.out).work
    with closing(journal), build_output(what.out, overwrite=what.overwrite, policy=journal) as staging:
        journal.open(work)
        yield OpenOutput(staging, journal, work / SPOOL)


class OutputKind(PlannedKind, ABC):
    """A kind of output, such as a checkpoint.

    A subclass is a frozen dataclass whose fields are the kind's settings; fields declared with `options.about` become
    command-line options. An entry point in the group `ramerge.outputs` refers to an instance with default settings; its
    name, such as `delta`, makes the flag `--as-delta`.

    Attributes:
        help: the flag's help text.
    """

    help: ClassVar[str] = ""

    @abstractmethod
    def spec(self, plan: MergePlan) -> OutputSpec:
        """Return location, files and fingerprint of the output to build; the plan has an output folder."""

    @abstractmethod
    def write(
        self, plan: MergePlan, passes: Passes, output: OpenOutput, warnings: Sequence[str], start: float
    ) -> tuple[Record, ...]:
        """Run the passes and write all files into the staging directory.

        Args:
            plan: the plan; `plan.output.details` is the return value of `details`.
            passes: the plan's passes, not yet run.
            output: the output that `spec` describes, opened.
            warnings: warnings from before the first pass.
            start: `time.monotonic()` when the run began.

        Returns:
            A record for each point.
        """


OUTPUT_KINDS: Registry[OutputKind] = Registry("ramerge.outputs", OutputKind, versioned=False)
"""All kinds of output by name."""
CHECKPOINT = "checkpoint"
"""The name of the default kind."""


def output_kind(kind: str | OutputKind) -> OutputKind:
    """Return the kind of output with this name; an `OutputKind` is returned as it is."""
    if isinstance(kind, OutputKind):
        return kind
    if not isinstance(kind, str):
        raise RecipeError(f'kind: must be the name of a kind of output, such as "delta", not {literal(kind)}')
    if kind not in OUTPUT_KINDS:
        raise RecipeError(f"kind: {unknown('kind of output', kind, sorted(OUTPUT_KINDS), few=True)}")
    return OUTPUT_KINDS[kind]
