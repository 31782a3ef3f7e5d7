"""Likelihood of the agents' replies under a model: two scores without generation, from one forward pass per prompt.

    agreement = mean negative log-likelihood (NLL) per token of the agent's own replies to prompts of its task
    mass = mean over prompts of exp(-NLL of the whole reply / s); a wrong reply counts 0

Lower agreement is closer to the agent. Mass is the expected share of the agent's right replies that the model gives
when it is sampled at temperature 1 (s = 1); merges are chosen by it. In a mean of NLLs, a few replies that a merge
would never give outweigh all others; in mass, each reply counts at most 1. The divisor s keeps long replies from all
rounding to 0: 2 times the least mean NLL of replies under any candidate, at least 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ramerge import InputError, Options, PlanError, Recipe, RecipeError, WeightsError, plan
from ramerge.calibration.agent_folder import read_record
from ramerge.calibration.exchanges import REPLIES, Exchange, read_exchanges
from ramerge.calibration.live_base import LiveBase, require_extras
from ramerge.calibration.record import CalibrationSettings
from ramerge.scoring.intervals import interval, ratio
from ramerge.sdk.options import check_options, check_settings
from ramerge.sdk.text import Displayed, enumerated, quantity

if TYPE_CHECKING:
    from ramerge.calibration.live import LiveModel

MORE_PROMPTS = "give more prompts of each task (up to --prompt-count of them are drawn, and half of these are scored)"
UNREWARDED = (
    "no rewards are given, so all replies count, right or wrong; with rewards only right ones do, which chooses "
    "better: give rollouts with rewards, or a reward function (ramerge search --reward FILE.py:FUNCTION)"
)
_MANY_CONFLICTS = 0.25
"""The share of an agent's replies: another agent that replies differently to so many of them is reported."""
Items = Mapping[str, NDArray[np.float64]]
"""For each agent, shape (prompts, 2): the negative log-likelihood and the number of tokens of each prompt's reply;
both 0 if the reply is wrong."""

_SETTINGS, _OPTIONS = CalibrationSettings(), Options()


@dataclass(frozen=True, repr=False)
class Agreement(Displayed):
    """The agreement of a model with an agent: how likely the agent's replies are under the model.

    Attributes:
        nll: mean negative log-likelihood per token, in nats; lower is closer to the agent.
        low, high: the 95 % interval over prompts; None with fewer than two prompts.
        prompts: the number of replies.
        tokens: the number of tokens of all replies.

    Example:
        >>> found = ramerge.agreement("base", "merged", "calibration")  # doctest: +SKIP
        >>> found["code"].nll  # doctest: +SKIP
        0.063
    """

    nll: float
    low: float | None
    high: float | None
    prompts: int
    tokens: int

    def _summary(self) -> Mapping[str, object]:
        return vars(self)


FEW = 8
"""An agent with fewer replies is unreliable: with 4 right replies, a choice was 2 points off (lab/experiments/045)."""


@dataclass(frozen=True, repr=False)
class ReplySet(Displayed):
    """The replies of a calibration on which merges are scored by agreement.

    Attributes:
        exchanges: prompts with replies, by agent.
        rewarded: whether they hold only right replies.
        notes: remarks for the user.
        counts: by agent, the number of replies to score on, and the number they were chosen from.
        least: the least reward of a right reply; None if all replies count.

    Example:
        >>> ramerge.ReplySet({}, False, ()).rewarded
        False
    """

    exchanges: Mapping[str, Sequence[Exchange]]
    rewarded: bool
    notes: tuple[str, ...]
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    least: float | None = None

    def in_parts(self, name: str, parts: int) -> list[list[Exchange | None]]:
        """Divide the replies of an agent into parts, in scoring order; each part has right and wrong replies.

        Args:
            name: the agent's name.
            parts: the number of parts; fewer if an agent has fewer right replies.

        Returns:
            Each part: right replies, then a None for each prompt whose reply is wrong.
        """
        parts = min(parts, *map(len, self.exchanges.values()))
        right, count = self.counts.get(name, (0, 0))
        wrong: list[Exchange | None] = [None] * (count - right)
        return [[*self.exchanges[name][part::parts], *wrong[part::parts]] for part in range(parts)]

    def _summary(self) -> Mapping[str, object]:
        return {"replies": {name: len(each) for name, each in self.exchanges.items()}, "rewarded": self.rewarded}


def replies_of(calibration: str | Path, names: Sequence[str] | None = None, right_at: float | None = None) -> ReplySet:
    """Read the replies of a calibration to score merges on: the held-out replies, if there are any.

    If there are rewards, only right replies count; agents without right replies are left out.

    Args:
        calibration: the folder that `calibrate` has written.
        names: agents; by default, all with a folder there.
        right_at: the least reward of a right reply; by default, the best reward of any agent.

    Raises:
        InputError: there are no replies, or a file is wrong.

    Example:
        >>> len(ramerge.replies_of("calibration").exchanges["code"])  # doctest: +SKIP
        16
    """
    calibration = Path(calibration)
    names = names or sorted(folder.name for folder in calibration.glob("*") if read_record(folder) is not None)
    if not names:
        raise InputError(f"{calibration}: holds no calibration; run `ramerge calibrate` first")
    replies = {name: read_exchanges(calibration / name / REPLIES) for name in names}
    if empty := [name for name, exchanges in replies.items() if not exchanges]:
        raise InputError(f"{calibration / name / REPLIES}: holds no replies; run calibrate again" for name in empty)
    held_out = {name: [each for each in exchanges if each.held_out] or exchanges for name, exchanges in replies.items()}
    rewards = {each.reward for exchanges in replies.values() for each in exchanges if each.reward is not None}
    if not rewards:
        return _full_reply_set(held_out, UNREWARDED)
    if right_at is None and len(rewards) == 1 and max(rewards) <= 0:
        text = f"every reply earned {max(rewards):g}, so which are right is not known, and all count"
        return _full_reply_set(
            held_out, f"{text}; check the reward function, or give prompts that the agents can answer"
        )
    least = max(rewards) if right_at is None else right_at
    right = {
        name: [each for each in exchanges if each.reward is not None and each.reward >= least]
        for name, exchanges in held_out.items()
    }
    notes = tuple(
        f"{name}: of {quantity(len(held_out[name]), 'reply', 'replies')}, none earned {least:g}, so it does not count "
        "in the choice; give more prompts, rollouts or a lower --right-at, or bring rewards of all tasks to one scale"
        for name, exchanges in right.items()
        if not exchanges
    )
    if not any(right.values()):
        text = f"no reply of any agent earned {least:g}, so all replies count; give rollouts, or a lower --right-at"
        return _full_reply_set(held_out, text)
    counts = {name: (len(exchanges), len(held_out[name])) for name, exchanges in right.items()}
    notes += few_replies(
        {name: right_count for name, (right_count, _) in counts.items() if right_count}, "right replies"
    )
    return ReplySet({name: exchanges for name, exchanges in right.items() if exchanges}, True, notes, counts, least)


def _full_reply_set(exchanges: Mapping[str, Sequence[Exchange]], note: str) -> ReplySet:
    """Score on all replies, right or wrong."""
    counts = {name: len(replies) for name, replies in exchanges.items()}
    notes = (note, *_conflict_warnings(exchanges), *few_replies(counts, "replies"))
    return ReplySet(exchanges, False, notes, {name: (count, count) for name, count in counts.items()})


def _conflict_warnings(exchanges: Mapping[str, Sequence[Exchange]]) -> Iterator[str]:
    """Yield a sentence on each two agents that reply differently to the same prompts, which no merge can repeat."""
    texts = {name: {each.key: each.text for each in replies if each.key} for name, replies in exchanges.items()}
    for (one, replies), (other, other_replies) in combinations(texts.items(), 2):
        different = sum(text != other_replies.get(key, text) for key, text in replies.items())
        if different >= _MANY_CONFLICTS * len(replies):
            yield (
                f"{one} and {other} reply differently to {quantity(different, 'common prompt')}, and a merge cannot "
                "give both replies: give a reward function (--reward), or only the better agent of each task"
            )


def few_replies(counts: Mapping[str, int], kind: str) -> tuple[str, ...]:
    """Return a sentence on agents with too few replies for a reliable choice; empty if all have enough."""
    few = [f"{name} ({count})" for name, count in counts.items() if count < FEW]
    text = f"fewer than {FEW} {kind} of {enumerated(few)}: the choice is unreliable; {MORE_PROMPTS}"
    return (text,) if few else ()


def likelihoods(live: LiveModel, replies: ReplySet, parts: int = 1) -> Iterator[dict[str, NDArray[np.float64]]]:
    """Compute the negative log-likelihoods and token counts of replies, for some prompts of every agent at a time.

    Args:
        parts: the number of parts; fewer if there are fewer prompts.

    Yields:
        By agent, as `Items`: right replies first, then prompts whose reply is wrong.
    """
    for part in zip(*(replies.in_parts(name, parts) for name in replies.exchanges), strict=True):
        yield {
            name: np.array(
                [(0.0, 0.0) if exchange is None else _likelihood(live, name, exchange) for exchange in exchanges],
                np.float64,
            ).reshape(-1, 2)
            for name, exchanges in zip(replies.exchanges, part, strict=True)
        }


def _likelihood(live: LiveModel, name: str, exchange: Exchange) -> tuple[float, float]:
    if max(exchange.ids) >= live.vocabulary or len(exchange.ids) > (live.positions or len(exchange.ids)):
        raise InputError(
            f"{exchange.place}: the reply of {name} does not fit the model: it has "
            f"{quantity(len(exchange.ids), 'token')}, with ids up to {max(exchange.ids):,}; run `ramerge "
            "calibrate` again with this base"
        )
    losses = live.negative_log_likelihoods(exchange.ids, exchange.start)
    total = float(losses.sum())
    if not np.isfinite(total):
        raise WeightsError(
            f"{exchange.place}: the likelihood of {name}'s reply is NaN or 0 in {live.dtype}; the weights are damaged, "
            "or overflow in this dtype: use float32"
        )
    return total, float(len(losses))


def agreement(
    base: str | Path,
    model: Any,
    calibration: str | Path,
    *,
    settings: CalibrationSettings = _SETTINGS,
    options: Options = _OPTIONS,
) -> dict[str, Agreement]:
    """Measure how likely the agents' replies are under a model: one forward pass per prompt, nothing is generated.

    Args:
        base: the base, as in recipes.
        model: the model to score, as an agent in a recipe: a folder in any format, an adapter, or a delta.
        calibration: the folder that `calibrate` has written, with the agents' replies.
        settings: `device`, `dtype` and `right_at` apply.
        options: `threads`, `max_memory` and `allow_outside_links` apply.

    Returns:
        The agreement with each agent, by name.

    Raises:
        RecipeError: torch or transformers is missing, or the device does not exist.
        InputError: there are no replies, or a file is wrong.
        CheckpointError: a model cannot be read, or transformers cannot load it.
        PlanError: the model does not fit the base, or memory is too small.
        WeightsError: a likelihood is not finite.

    Example:
        >>> ramerge.agreement("base", "merged", "calibration")["code"].nll  # doctest: +SKIP
        0.063
    """
    check_options(options)
    check_settings("settings", settings, CalibrationSettings)
    if problems := settings.problems():
        raise RecipeError(problems)
    require_extras()
    replies = replies_of(calibration, right_at=settings.right_at)
    # nothing is merged, so a vocabulary of another size is no question
    models = Recipe(method="uniform", base=base, agents={"model": model}, allow={"vocabulary": "common"})
    with LiveBase(models, settings, options) as live:
        live.put_agent("model")
        return agreements_in(live.live, replies)


def refuse_other_tokens(models: Recipe, options: Options) -> None:
    """Refuse models whose embedding rows stand for different tokens, because merges are scored row by row."""
    if not models.allow.different_tokens:
        return
    strict = models.with_(prompts=None, allow={"different_tokens": False})
    if plan(strict, options=options).problems:
        raise PlanError(
            "allow.different_tokens: agreement compares replies by token id, and here one id stands for different "
            "tokens; "
            "score merges with --score, without prompts"
        )


def agreements_in(live: LiveModel, replies: ReplySet) -> dict[str, Agreement]:
    """Compute the agreement of the model in memory with each agent."""
    (items,) = likelihoods(live, replies)
    return agreements_of(items)


def agreements_of(items: Items) -> dict[str, Agreement]:
    """Compute the agreement with each agent from the likelihoods of its replies."""
    agreements = {}
    for name, each in items.items():
        right = each[each[:, 1] > 0]
        low, high = interval(right) or (None, None)
        value = ratio(right)
        assert value is not None  # every agent here has a right reply, and every reply a token
        agreements[name] = Agreement(value, low, high, len(right), int(right[:, 1].sum()))
    return agreements


def temper_of(candidates: Iterable[Items]) -> float:
    """Return the divisor s of negative log-likelihoods in `mass`, from all candidates of a run."""
    means = []
    for items in candidates:
        nll, tokens = np.concatenate(list(items.values())).T
        means.append(float(nll[tokens > 0].mean()))
    return max(1.0, 2.0 * min(means, default=0.0))


def mass_items(items: NDArray[np.float64], temper: float) -> NDArray[np.float64]:
    """Compute the mass of each prompt's reply, as items of a figure.

    Returns:
        Shape (prompts, 2): exp(-NLL / temper), or 0 for a wrong reply; and the weight 1.
    """
    nll, tokens = items.T
    return np.stack([np.where(tokens > 0, np.exp(-nll / temper), 0.0), np.ones(len(items))], axis=1)
