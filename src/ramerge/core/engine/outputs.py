"""Kinds of output, and the folder that is built for one, with its journal.

The core writes checkpoints; features and plug-ins add kinds of output, which are found by name.
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
from ramerge.core.foundation.text import unknown
from ramerge.core.output.lifecycle import build_output, output_dir
from ramerge.core.output.staging import SPOOL, StagingDir
from ramerge.core.output.targets import OutputTarget
from ramerge.core.planning.kinds import PlannedKind
from ramerge.core.planning.model import MergePlan
from ramerge.core.registry import Registry


@dataclass(frozen=True)
class OpenOutput:
    """The folder that is built, and what earlier runs have done for it.

    Attributes:
        staging: the folder.
        journal: the journal, opened.
        spool_folder: the folder of spooled data, from which the files are made.
    """

    staging: StagingDir
    journal: Journal
    spool_folder: Path


@dataclass(frozen=True)
class OutputSpec:
    """Kind and place of an output to build.

    Attributes:
        out: the output folder, local or remote.
        overwrite: whether an existing output is replaced.
        fingerprint: everything that the work depends on, by a name for people.
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
    """The folder and journal of an output, which is in its place when the `with` block ends.

    Args:
        what: the output.
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

    A subclass is a frozen dataclass; its fields are the settings of the kind, which the command line takes as options
    where they have `options.about`. An instance with the default settings is found by its entry point in the group
    `ramerge.outputs`, whose name, such as `delta`, makes the flag `--as-delta`.

    Attributes:
        help: of the flag.
    """

    help: ClassVar[str] = ""

    @abstractmethod
    def spec(self, plan: MergePlan) -> OutputSpec:
        """The files to build for a plan with an output folder."""

    @abstractmethod
    def write(
        self, plan: MergePlan, passes: Passes, output: OpenOutput, warnings: Sequence[str], start: float
    ) -> tuple[Record, ...]:
        """Run the passes and write everything into the folder.

        Args:
            plan: the plan; `plan.output.details` is the return value of `details`.
            passes: of the plan.
            output: the output that `spec` describes, opened.
            warnings: warnings from before the first pass.
            start: when the run began, on the monotonic clock.

        Returns:
            A record for each point.
        """


OUTPUT_KINDS: Registry[OutputKind] = Registry("ramerge.outputs", OutputKind, versioned=False)
"""The kinds by name."""
CHECKPOINT = "checkpoint"
"""The usual kind."""


def output_kind(kind: str | OutputKind) -> OutputKind:
    """A kind of output by its name, or itself."""
    if isinstance(kind, OutputKind):
        return kind
    if kind not in OUTPUT_KINDS:
        raise RecipeError(f"kind: {unknown('kind of output', kind, sorted(OUTPUT_KINDS), few=True)}")
    return OUTPUT_KINDS[kind]
