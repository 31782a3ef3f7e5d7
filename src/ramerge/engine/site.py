"""Where work is done: the folder that is built, the journal, and the other ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ramerge.checkpoint.delta.spool import Slots, Spool
from ramerge.checkpoint.outputs import Out
from ramerge.checkpoint.relay import apart, joined, made_at, work_of
from ramerge.checkpoint.stage import SPOOL, Stage, gathered, hidden_folder
from ramerge.checkpoint.storage.destination import Destination
from ramerge.checkpoint.write import Writer
from ramerge.engine.journal import Journal
from ramerge.engine.ranks import Rank, Team
from ramerge.foundation.errors import OutputError, PlanError, StoppedError, reason

_WHO = "what does the work (one process, or ranks with a folder each)"
# A delta's blocks are soon in its files. Short work never brings them to the disk first.
_SECONDS_BETWEEN_SYNCS = 5.0


class _Closes(Protocol):
    def close(self) -> None: ...


Opened = TypeVar("Opened", bound=_Closes)


class Site:
    """The folder that is built, and what is known of earlier runs and other ranks.

    Attributes:
        journal: the journal.
        team: the ranks, if there are several.
        leads: whether this process writes what is written once, and puts the output in its place.
    """

    def __init__(
        self, work: Path, journal: Journal, team: Team | None, stage: Callable[[], Stage], slots: Slots | None = None
    ) -> None:
        self.journal = journal
        self._slots = slots
        self.leads = team is None or team.number == 0
        self._work = work
        self.team = team
        self._made_stage = stage

    @cached_property
    def stage(self) -> Stage:
        """The folder that is built. It is there when the ranks have found each other."""
        return self._made_stage()

    def spool(self) -> Spool:
        """The blocks of a delta."""
        assert self._slots is not None
        file, folder = self._slots.file, self._work / SPOOL
        stage = Stage(folder, [file.name] if (folder / file.name).exists() else [], reserves=False)
        return Spool(self._slots, Writer(stage, [file], self.journal.before_sync, _SECONDS_BETWEEN_SYNCS))

    def opened(self, make: Callable[[], Opened]) -> Opened:
        """Large files, which rank 0 makes before the other ranks open them. From then on all ranks work.

        Args:
            make: makes or opens them.

        Raises:
            PlanError, RankError: as for `begin`.
        """
        if not self.leads:
            self.begin()
        made = make()
        try:
            if self.leads:
                self.begin()
        except BaseException:
            made.close()
            raise
        return made

    def begin(self) -> None:
        """Find the other ranks, and open the journal.

        Raises:
            PlanError: another rank has another plan.
            RankError: a rank does not come in time.
        """
        team, journal = self.team, self.journal
        if team is not None and self.leads:
            journal.open(self._work, team)
            team.lead(journal.session)
        elif team is not None:
            journal.session = team.join()
            if (other := journal.disagreement(self._work)) is not None:
                raise PlanError(f"rank {team.number} does not do the same work as rank 0: not the same is: {other}")
            journal.open(self._work, team)
        else:
            journal.open(self._work)

    def written(self, finish: Callable[[], None] = lambda: None) -> Any:
        """Called when this process has done its work.

        Args:
            finish: called first if there are other ranks: brings to the disk what this process has written for them.

        Returns:
            Of other ranks than rank 0, when the output is in its place: what rank 0 has said of it (`say`).
        """
        if self.team is None:
            return None
        finish()
        self.team.written()
        return None if self.leads else self.team.wait_for_output()

    def say(self, result: Any) -> None:
        """As rank 0: tell the others what only rank 0 knows of the output, as plain values."""
        if self.team is not None:
            self.team.say_result(result)


@dataclass(frozen=True)
class Building:
    """What is built.

    Attributes:
        out: the output folder, here or elsewhere.
        overwrite: whether what is there is replaced.
        facts: everything that the work depends on, by a name for people.
        total: bytes of work in all passes.
        files: names and sizes of the files that all ranks fill.
        slots: of a delta, in place of such files. Rank 0 makes the output from them.
    """

    out: Out
    overwrite: bool
    facts: Mapping[str, str]
    total: int
    files: Mapping[str, int] = field(default_factory=dict)
    slots: Slots | None = None


@contextmanager
def building(what: Building, rank: Rank | None, *, fresh: bool) -> Iterator[Site]:
    """The site of an output, which is in its place when the `with` block ends.

    Args:
        what: the output.
        rank: this process, if several do the work.
        fresh: whether what earlier runs have done is not used.
    """
    out, number, files = what.out, rank.number if rank is not None else 0, what.files
    # what rank 0 makes a delta from is in a folder that all ranks see, also where the output is elsewhere
    several = rank is not None and rank.world > 1 and what.slots is None
    carries = out if several and isinstance(out, Destination) and out.carries else None
    facts = {**what.facts, _WHO: "ranks with a folder each" if carries else "one folder"}
    beside = {f"{SPOOL}/{what.slots.file.name}": what.slots.file.file_bytes} if what.slots is not None else {}
    journal = Journal(facts, files, what.total, beside=beside, fresh=fresh, apart=carries is not None)
    work = hidden_folder(out) if isinstance(out, Path) else work_of(out, number if carries else 0)
    own_folder = apart(carries, number) if number and carries else nullcontext()
    with own_folder, _together(rank, work, out if several else None) as team, closing(journal):
        if team is not None and number:
            own = team.own
            with _as_helper(out, number):
                yield Site(work, journal, team, lambda: _joined(out, work, files, own), what.slots)
        else:
            made = made_at(out, overwrite=what.overwrite, keeper=journal, shared=several)
            with made as stage, _failing(team):
                yield Site(work, journal, team, lambda: stage, what.slots)


@contextmanager
def _as_helper(out: Out, number: int) -> Iterator[None]:
    """The errors of another rank than rank 0, which knows of the output what it does itself."""
    try:
        yield
    except StoppedError as stop:
        stop.kept = "rank 0 says what is kept"
        raise
    except OSError as error:
        raise OutputError(f"{out}: rank {number} cannot write there: {reason(error)}") from error


def _joined(out: Out, work: Path, files: Collection[str], own: str) -> Stage:
    """The same folder of another process, or this one's own."""
    return Stage(work / "new", files) if isinstance(out, Path) else joined(out, files, work, own)


@contextmanager
def _failing(team: Team | None) -> Iterator[None]:
    """Tells the other ranks of an error before what they have written or sent is removed."""
    try:
        yield
    except BaseException as failure:
        if team is not None:
            team.fail(failure)
        raise


@contextmanager
def meeting(facts: Mapping[str, str], total: int, rank: Rank, place: Out) -> Iterator[Site]:
    """The site of work without an output. Begun when the `with` block begins.

    Args:
        facts: everything that the work depends on, by a name for people.
        total: bytes of work in all passes.
        rank: this process.
        place: where ranks meet.
    """
    own_folder: AbstractContextManager[None] = nullcontext()
    if isinstance(place, Path):
        work = hidden_folder(place / "ranks")
    else:
        work = work_of(place, rank.number)
        own_folder = apart(place, rank.number) if rank.number else own_folder
    journal = Journal(facts, {}, total, apart=not isinstance(place, Path))
    with own_folder, _together(rank, work, place) as team, closing(journal):
        site = Site(work, journal, team, lambda: Stage(work / "new"))
        if site.leads:
            with gathered(work, journal):
                site.begin()
                yield site
                site.written()  # all have read what they need
        else:
            site.begin()
            yield site
            site.written()


@contextmanager
def _together(rank: Rank | None, work: Path, out: Out | None = None) -> Iterator[Team | None]:
    """The other ranks; they are told how the `with` block ends."""
    if rank is None:
        yield None
        return
    elsewhere = out if isinstance(out, Destination) and rank.world > 1 else None
    team = Team(rank, work, lambda own: elsewhere.board(work, own, rank.world) if elsewhere is not None else None)
    try:
        yield team
    except BaseException as failure:
        team.end(failure)
        raise
    team.end(None)
