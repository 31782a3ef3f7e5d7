"""Own replies of the best candidates: the mean of mass and of the share of right replies decides between tied
candidates.

Own replies to a few prompts are a noisy score, so they never decide alone. They also tell whether the best merge is
right as often as its agents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ramerge import EndpointError
from ramerge.calibration.agreement import ReplySet
from ramerge.calibration.exchanges import Exchange, read_exchanges, to_lines
from ramerge.calibration.live_base import LiveBase
from ramerge.calibration.prompts import Prompt, halves
from ramerge.calibration.record import CalibrationSettings
from ramerge.scoring.scores import Measure, Scores, of_items
from ramerge.scoring.serving import ModelServer
from ramerge.sdk.text import dumped
from ramerge.searches import evidence
from ramerge.searches.contest import Contest
from ramerge.searches.folder import Folder
from ramerge.searches.repliers import Keep, LiveReplier, Replier, ServedReplier
from ramerge.searches.trials import Trial

MOST_CANDIDATES = 5
_GIVEN = (
    "the agents' replies came with their prompts, and the best reply to each prompt counts: they may be right more "
    "often than a single reply of the agents would be"
)


@dataclass(frozen=True)
class Choice:
    """The choice between candidates that mass cannot distinguish.

    Attributes:
        best: the best trial; None if no candidate got a score.
        right: by trial and agent, the share of held-out prompts with a right reply by the candidate; empty if mass
            alone chose.
        agents: the same share for each agent, on its own prompts; empty if mass alone chose.
        notes: notes for the user.
    """

    best: Trial | None
    right: Mapping[int, Scores] = field(default_factory=dict)
    agents: Scores = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class OwnReplies:
    """Asks candidates for replies to the held-out prompts.

    Attributes:
        live: the model.
        prompts: the prompts of each agent.
        settings: the settings of the agents' replies, and the reward function.
        replies: the agents' replies, with the least reward of a right reply.
        generate: whether candidates generate; None: they do not, but all stored replies count.
        folder: the folder of the search; it stores replies, which are not generated again when the search resumes.
        server: the server for the candidates; None for the model in memory.
        concurrency: the number of concurrent requests.
    """

    live: LiveBase
    prompts: Mapping[str, Sequence[Prompt]]
    settings: CalibrationSettings
    replies: ReplySet
    generate: bool | None
    folder: Folder
    server: ModelServer | None = None
    concurrency: int = 8

    def choose(self, contest: Contest, listen: Callable[[int, int], None]) -> Choice:
        """Choose between the candidates that mass cannot distinguish; if mass is enough, only the best replies.

        Args:
            contest: a contest by mass, with all trials.
            listen: called with the number of candidates that have replied, and the number of all.

        Raises:
            EndpointError: the server does not start, or gives no reply. Replies so far are stored.
        """
        best = contest.best()
        if best is None:
            return Choice(None)
        objective, figures = contest.objectives[0], contest.figures(best)
        by_gain = sorted(contest.complete(), key=contest.gains, reverse=True)
        ties = [
            trial
            for trial in by_gain
            if trial is best or evidence.difference(objective, contest.figures(trial), figures).holds_0
        ][:MOST_CANDIDATES]
        held_out = {name: self._held_out_prompts(name) for name in figures}
        if not self.generate and (self.generate is False or self._lacks_replies(ties, held_out)):
            return Choice(best, notes=self._note_unused())
        right: dict[int, Scores] = {}
        with closing(self._make_replier(held_out)) as replier:
            for place, trial in enumerate(ties):
                listen(place, len(ties))
                right[trial.number] = self._reply_scores(replier, contest, trial, held_out)
        listen(len(ties), len(ties))

        def worth(trial: Trial) -> float:
            return objective.value(right[trial.number]) + contest.values(trial)[0]

        notes = () if all(each.generated for name in held_out for each in self.replies.exchanges[name]) else (_GIVEN,)
        return Choice(max(ties, key=worth), right, self._scores_of_agents(held_out), notes)

    def _lacks_replies(self, ties: Sequence[Trial], held_out: Mapping[str, Sequence[Prompt]]) -> bool:
        """Whether a candidate lacks a stored reply to one of the prompts."""
        return any(
            journal.without_reply(held_out[name])
            for trial in ties
            for name, journal in self._reply_journals(trial, held_out).items()
        )

    def _note_unused(self) -> tuple[str, ...]:
        """Return a note on replies of an earlier run that do not count; empty without such replies."""
        folder = self.folder.replies
        if not any(folder.glob("*/*.jsonl")):
            return ()
        why = "a tied candidate has none, as with a larger --trials or another --serve; --generate asks for them"
        why = "--no-generate" if self.generate is False else why
        return (f"the choice is by mass alone: own replies of an earlier run, in {folder}, do not count ({why})",)

    def _held_out_prompts(self, agent: str) -> list[Prompt]:
        """Return the prompts of an agent that no statistic uses, without the replies that came with them."""
        _, prompts = halves(self.prompts[agent], self.settings.prompt_seed)
        return [replace(prompt, replies=()) for prompt in prompts]

    def _make_replier(self, prompts: Mapping[str, Sequence[Prompt]]) -> Replier:
        if self.server is None:
            return LiveReplier(self.live, self.settings)
        return ServedReplier(self.live, self.settings, prompts, self.server, self.concurrency, self.folder)

    def _reply_journals(self, trial: Trial, agents: Iterable[str]) -> dict[str, ReplyJournal]:
        """Return the stored replies of a candidate, by agent."""
        server = (self.server.kind, *self.server.arguments) if self.server is not None else ()
        fingerprint = hashlib.sha256(dumped([trial.point, server]).encode()).hexdigest()[:12]
        folder = self.folder.replies / f"{trial.number}-{fingerprint}"
        return {name: ReplyJournal.read(folder / f"{name}.jsonl") for name in agents}

    def _scores_of_agents(self, held_out: Mapping[str, Sequence[Prompt]]) -> Scores:
        """Return, for each agent, which of its own replies are right, by prompt."""
        keys = {name: {exchange.key for exchange in self.replies.exchanges[name]} for name in held_out}
        return {
            name: _share_of_right(prompt.key in keys[name] for prompt in prompts) for name, prompts in held_out.items()
        }

    def _reply_scores(
        self, replier: Replier, contest: Contest, trial: Trial, held_out: Mapping[str, Sequence[Prompt]]
    ) -> Scores:
        """Return, for each agent's prompts, which of a candidate's own replies are right."""
        least = self.replies.least
        assert least is not None  # else nothing tells which are right
        journals = self._reply_journals(trial, held_out)
        missing = {name: journals[name].without_reply(prompts) for name, prompts in held_out.items()}
        if any(missing.values()):
            try:
                replier.put(contest.candidates.plan(trial.point))
                for name, prompts in missing.items():
                    if prompts:
                        with journals[name].writing() as keep:
                            replier.ask(name, prompts, keep)
            except EndpointError as error:
                raise EndpointError(
                    f"{error}; all scores and replies so far are kept in {self.folder.root}, and the same command "
                    "resumes from there (--no-generate chooses by mass alone)"
                ) from error
        return {
            name: _share_of_right((journals[name].replies[prompt.key].reward or 0.0) >= least for prompt in prompts)
            for name, prompts in held_out.items()
        }


def _share_of_right(is_right: Iterable[bool]) -> Measure:
    return of_items(np.array([(float(each), 1.0) for each in is_right]))


@dataclass(frozen=True)
class ReplyJournal:
    """The replies of a candidate to the held-out prompts of an agent, in a file.

    Attributes:
        path: the file.
        replies: replies by key of the prompt.
    """

    path: Path
    replies: dict[str, Exchange]

    @classmethod
    def read(cls, path: Path) -> ReplyJournal:
        """Read the journal in a file, which may be missing."""
        return cls(path, {each.key: each for each in read_exchanges(path, partial=True)} if path.exists() else {})

    def without_reply(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Return the prompts without a reply so far."""
        return [prompt for prompt in prompts if prompt.key not in self.replies]

    @contextmanager
    def writing(self) -> Iterator[Keep]:
        """A context with a function that stores further replies."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", encoding="utf-8") as file:  # written again: a kill may have left half a line

            def keep(replies: Sequence[Exchange]) -> None:
                held_out = [replace(each, held_out=True) for each in replies]
                self.replies.update((each.key, each) for each in held_out)
                file.write(to_lines(held_out))
                file.flush()

            keep(list(self.replies.values()))
            yield keep
