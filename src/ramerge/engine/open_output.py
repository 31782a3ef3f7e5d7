"""An output that is being built: its folder, and the journal of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ramerge.engine.journal import Journal
from ramerge.output.outputs import Out
from ramerge.output.remote_output import made_at, work_of
from ramerge.output.stage import SPOOL, Stage, hidden_folder


@dataclass(frozen=True)
class OpenOutput:
    """The folder that is built, and what earlier runs have done for it.

    Attributes:
        stage: the folder.
        journal: the journal, opened.
        spool_folder: of what is spooled before the files are made of it.
    """

    stage: Stage
    journal: Journal
    spool_folder: Path


@dataclass(frozen=True)
class OutputSpec:
    """What is built.

    Attributes:
        out: the output folder, local or remote.
        overwrite: whether what is there is replaced.
        fingerprint: everything that the work depends on, by a name for people.
        total: bytes of work in all passes.
        files: names and sizes of the large files.
        spooled: names and sizes of spooled files.
    """

    out: Out
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
    journal = Journal(what.fingerprint, what.files, what.total, metadata_folder=spool, fresh=fresh)
    work = hidden_folder(what.out) if isinstance(what.out, Path) else work_of(what.out)
    with closing(journal), made_at(what.out, overwrite=what.overwrite, keeper=journal) as stage:
        journal.open(work)
        yield OpenOutput(stage, journal, work / SPOOL)
