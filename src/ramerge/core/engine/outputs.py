"""Outputs: what a merge can be written as, and the folder that is built for it, with its journal.

The core writes checkpoints; wings add kinds of output, which are found by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ramerge.core.engine.journal import Journal
from ramerge.core.engine.reads import Passes
from ramerge.core.engine.record import Record
from ramerge.core.output.build import build_output, hidden_folder_of
from ramerge.core.output.staging import SPOOL, StagingDir
from ramerge.core.output.targets import OutputTarget
from ramerge.core.planning.model import MergePlan
from ramerge.core.registry import Registry


@dataclass(frozen=True)
class OpenOutput:
    """The folder that is built, and what earlier runs have done for it.

    Attributes:
        staging: the folder.
        journal: the journal, opened.
        spool_folder: of what is spooled before the files are made of it.
    """

    staging: StagingDir
    journal: Journal
    spool_folder: Path


@dataclass(frozen=True)
class OutputSpec:
    """Kind and place of an output to build.

    Attributes:
        out: the output folder, local or remote.
        overwrite: whether what is there is replaced.
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
        fresh: whether what earlier runs have done is not used.
    """
    spool = {f"{SPOOL}/{name}": size for name, size in what.spooled.items()}
    journal = Journal(what.fingerprint, what.files, what.total, spooled=spool, fresh=fresh)
    work = hidden_folder_of(what.out)
    with closing(journal), build_output(what.out, overwrite=what.overwrite, policy=journal) as staging:
        journal.open(work)
        yield OpenOutput(staging, journal, work / SPOOL)


@dataclass(frozen=True)
class OutputKind:
    """A kind of output.

    Attributes:
        spec: what is built for a plan with an output folder.
        write: takes the plan, its passes, what `spec` describes (opened), warnings from before the first pass, and when
            the run began, on the monotonic clock. Runs the passes, writes everything into the folder that is open, and
            returns a record for each point.
    """

    spec: Callable[[MergePlan], OutputSpec]
    write: Callable[[MergePlan, Passes, OpenOutput, Sequence[str], float], tuple[Record, ...]]


OUTPUT_KINDS: Registry[OutputKind] = Registry("ramerge.outputs", OutputKind, versioned=False)
"""The kinds by name: `checkpoint`, and `delta` and `adapter` of the wing of deltas."""


def kind_of(plan: MergePlan) -> OutputKind:
    """The kind that a plan is written as."""
    return OUTPUT_KINDS["adapter" if plan.adapter is not None else "checkpoint" if plan.below is None else "delta"]
