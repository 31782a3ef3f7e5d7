"""Replies of tied candidates themselves: half the share that is right, half mass decides between them.

Own replies to a few prompts are a noisy score, so they never decide alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

from ramerge import Plan
from ramerge.calibration.exchanges import Exchange, read_exchanges, to_lines
from ramerge.calibration.live_base import LiveBase
from ramerge.calibration.prompts import Prompt, halves
from ramerge.calibration.record import CalibrationSettings
from ramerge.calibration.rewards import reward_of
from ramerge.scoring.scores import Measure
from ramerge.sdk.tensors import state_of
from ramerge.sdk.text import dumped
from ramerge.searches import evidence
from ramerge.searches.contest import Contest
from ramerge.searches.trials import Trial

_MOST_CANDIDATES = 5
_FOLDER = "replies"
Shares = Mapping[int, Mapping[str, float]]
"""By trial and agent, the share of held-out prompts to which a candidate's own reply is right."""


@dataclass(frozen=True)
class OwnReplies:
    """Asks candidates for replies to the held-out prompts.

    Attributes:
        live: the model.
        prompts: of each agent.
        settings: how agents were asked, and the reward function.
        least: the least reward of a right reply.
        folder: of the search; replies are kept in it, and are not asked for again when it resumes.
    """

    live: LiveBase
    prompts: Mapping[str, Sequence[Prompt]]
    settings: CalibrationSettings
    least: float
    folder: Path

    def choose(self, contest: Contest, listen: Callable[[int, int], None]) -> tuple[Trial | None, Shares]:
        """The best of the candidates that mass does not separate, and the shares of their right replies.

        Args:
            contest: by mass, with all trials.
            listen: called with the number of candidates that have replied, and of all.
        """
        best = contest.best()
        if best is None:
            return None, {}
        objective, figures = contest.objectives[0], contest.figures(best)
        ranked = sorted(contest.complete(), key=contest.gains, reverse=True)
        tied = [
            trial
            for trial in ranked
            if trial is best or evidence.difference(objective, contest.figures(trial), figures).holds_0
        ][:_MOST_CANDIDATES]
        if len(tied) < 2:
            return best, {}
        shares: dict[int, dict[str, float]] = {}
        for place, trial in enumerate(tied):
            listen(place, len(tied))
            shares[trial.number] = self._shares(contest.candidates.plan(trial.point), trial.number, figures)
        listen(len(tied), len(tied))

        def worth(trial: Trial) -> float:
            right = {name: Measure(share) for name, share in shares[trial.number].items()}
            return objective.value(right) + contest.values(trial)[0]

        return max(tied, key=worth), shares

    def _shares(self, plan: Plan, number: int, names: Iterable[str]) -> dict[str, float]:
        held_out = {name: halves(self.prompts[name], self.settings.prompt_seed)[1] for name in names}
        made_of = [plan.recipe.to_yaml(), state_of(plan.details.inputs.files), asdict(self.settings)]
        fingerprint = hashlib.sha256(dumped(made_of).encode()).hexdigest()[:12]  # replies belong to no other merge
        paths = {name: self.folder / _FOLDER / f"{number}-{fingerprint}" / f"{name}.jsonl" for name in held_out}
        known = {name: _known(path) for name, path in paths.items()}
        if any(prompt.key not in known[name] for name, prompts in held_out.items() for prompt in prompts):
            self.live.put(plan)
        return {
            name: fmean(
                (each.reward or 0.0) >= self.least for each in self._replies(name, prompts, known[name], paths[name])
            )
            for name, prompts in held_out.items()
        }

    def _replies(
        self, name: str, prompts: Sequence[Prompt], known: Mapping[str, Exchange], path: Path
    ) -> Sequence[Exchange]:
        """Greedy replies of the model in memory to the prompts of an agent, which are encoded as for that agent."""
        if all(prompt.key in known for prompt in prompts):
            return [known[prompt.key] for prompt in prompts]
        gathering: Any = import_module("ramerge.calibration.gather")  # torch takes seconds
        speaking: Any = import_module("ramerge.calibration.speaker")
        speaker = speaking.Speaker(name, self.live.live, self.live.tokenizer_of(name), self.settings.max_new)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:  # written again: a kill may have left half a line

            def keep(exchanges: Sequence[Exchange]) -> None:
                file.write(to_lines(exchanges))
                file.flush()

            keep(list(known.values()))
            asked = [replace(prompt, replies=()) for prompt in prompts]
            replies: list[Exchange] = gathering.exchanges_of(
                speaker, asked, known, self.settings.batch, reward_of(self.settings.reward), keep
            )
        return replies


def _known(path: Path) -> dict[str, Exchange]:
    return {each.key: each for each in read_exchanges(path, partial=True)} if path.exists() else {}
