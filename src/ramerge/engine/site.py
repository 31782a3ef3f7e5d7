"""Where a plan is carried out: the folder that is built, the journal, and the other ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path

from ramerge.checkpoint.outputs import Out
from ramerge.checkpoint.relay import Relay, apart, joined, made_at, work_of
from ramerge.checkpoint.stage import Stage, gathered, hidden_folder
from ramerge.checkpoint.storage.destination import Destination
from ramerge.checkpoint.write import Writer
from ramerge.engine.facts import facts_of
from ramerge.engine.journal import Journal
from ramerge.engine.ranks import Rank, Team
from ramerge.engine.sending import Relayed
from ramerge.engine.sinks import Shards, all_shards
from ramerge.foundation.errors import PlanError
from ramerge.planning.model import Plan

_WHO = "what does the work (one process, or ranks with a folder each)"


class Site:
    """The folder that is built, and what is known of earlier runs and other ranks.

    Attributes:
        journal: the journal.
        leads: whether this process writes what is written once, and puts the output in its place.
    """

    def __init__(self, work: Path, journal: Journal, team: Team | None, stage: Callable[[], Stage]) -> None:
        self.journal = journal
        self.leads = team is None or team.number == 0
        self._work = work
        self._team = team
        self._made_stage = stage

    @cached_property
    def stage(self) -> Stage:
        """The folder that is built. It is there when the ranks have found each other."""
        return self._made_stage()

    def shards(self, plan: Plan) -> Shards:
        """The output's files. From then on all ranks work."""
        if not self.leads:
            self.begin()
        stage = self.stage
        writer = Writer(stage, all_shards(plan), self.journal.before_sync)
        shards = Relayed(plan, writer, stage, self._team) if isinstance(stage, Relay) else Shards(plan, writer)
        try:
            if self.leads:
                self.begin()
        except BaseException:
            shards.close()
            raise
        return shards

    def begin(self) -> None:
        """Find the other ranks, and open the journal.

        Raises:
            PlanError: another rank has another plan.
            RankError: a rank does not come in time.
        """
        team, journal = self._team, self.journal
        if team is not None and self.leads:
            journal.open(self._work, team)
            team.lead(journal.session)
        elif team is not None:
            journal.session = team.join()
            if (other := journal.disagreement(self._work)) is not None:
                raise PlanError(
                    f"rank {team.number} does not do the same work as rank 0: not the same is: {other}; inputs must be "
                    "the same files, or copies with the same time of the last write (cp -a, rsync -t)"
                )
            journal.open(self._work, team)
        else:
            journal.open(self._work)

    def written(self) -> None:
        """Called when everything that this process writes into the large files is on the disk."""
        if self._team is not None:
            self._team.written()
            if not self.leads:
                self._team.wait_for_output()


@contextmanager
def building(plan: Plan, rank: Rank | None, *, fresh: bool) -> Iterator[Site]:
    """The site of a plan with an output folder, which is in its place when the `with` block ends.

    Args:
        plan: the plan.
        rank: this process, if several carry out the plan.
        fresh: whether what earlier runs have done is not used.
    """
    assert plan.out is not None
    files = {} if plan.below is not None else {shard.name: shard.file_bytes for shard in all_shards(plan)}
    out, number = plan.out, rank.number if rank is not None else 0
    several = rank is not None and rank.world > 1
    carries = out if several and isinstance(out, Destination) and out.carries else None
    facts = facts_of(plan) | {_WHO: "ranks with a folder each" if carries else "one folder"}
    journal = Journal(facts, files, plan.bytes_read, fresh=fresh, apart=carries is not None)
    work = hidden_folder(out) if isinstance(out, Path) else work_of(out, number)
    own_folder = apart(carries, number) if number and carries else nullcontext()
    with own_folder, _together(rank, work, out) as team, closing(journal):
        if team is not None and number:
            own = team.own
            yield Site(work, journal, team, lambda: _joined(out, work, files, own))
        else:
            made = made_at(out, overwrite=plan.overwrite, keeper=journal, shared=several)
            with made as stage, _failing(team):
                yield Site(work, journal, team, lambda: stage)


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
def meeting(plan: Plan, rank: Rank, place: Out, further: object) -> Iterator[Site]:
    """The site of a plan without an output: ranks meet at `place`. Begun when the `with` block begins."""
    own_folder: AbstractContextManager[None] = nullcontext()
    if isinstance(place, Path):
        work = hidden_folder(place / "ranks")
    else:
        work = work_of(place, rank.number)
        own_folder = apart(place, rank.number) if rank.number else own_folder
    journal = Journal(facts_of(plan, further), {}, plan.bytes_read, apart=not isinstance(place, Path))
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
