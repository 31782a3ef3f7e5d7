"""`SearchSettings`: how to carry out a search, declared once for API, options of the command and reference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ramerge import RecipeError
from ramerge.calibration.record import CalibrationSettings
from ramerge.scoring.serving import ModelServer
from ramerge.sdk.options import about, documented
from ramerge.sdk.text import quoted
from ramerge.searches.strategies import STRATEGIES

SAMPLERS = tuple(STRATEGIES)
"""The names of all strategies."""
PROMPT_FILES = (".jsonl", ".json", ".parquet")
_A_BOOL = "True or False"


@documented
@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings of a search.

    Raises:
        RecipeError: a value is impossible.

    Example:
        >>> ramerge.SearchSettings(trials=50, objectives=["worst"]).sampler is None
        True
    """

    trials: int | None = field(
        default=None,
        metadata=about(
            "--trials", "search", "Number of merges to try; default: all points of a grid, otherwise 30.", "N", kind=int
        ),
    )
    sampler: str | None = field(
        default=None,
        metadata=about(
            "--sampler",
            "search",
            "How to choose the merges to try; default: grid for --vary, tpe for --space.",
            choices=SAMPLERS,
        ),
    )
    seed: int = field(default=0, metadata=about("--seed", "search", "Seed of the sampler.", "N", kind=int))
    objectives: Sequence[str] = field(
        default=(),
        metadata=about(
            "--objective",
            "search",
            "The score to maximize, or with =min to minimize; default: mean (of all scores). worst: the lowest score. "
            "worst:NAME=SCORE,...: divide each score NAME by SCORE, its agent's own score, and take the lowest. Repeat "
            "the option for a Pareto front.",
            "NAME[=min]",
            repeats=True,
        ),
    )
    prune: bool = field(
        default=True,
        metadata=about(
            "--prune/--no-prune",
            "search",
            "Stop scoring a merge once it is clearly worse than the best; on by default.",
        ),
    )
    most_failures: int = field(
        default=5,
        metadata=about("--most-failures", "search", "Stop after N failed merges in a row; 0: never.", "N", kind=int),
    )
    score_timeout: float = field(
        default=3600.0,
        metadata=about("--score-timeout", "score", "Time limit for scoring a merge.", "SECONDS", kind=float),
    )
    generate: bool | None = field(
        default=None,
        metadata=about(
            "--generate/--no-generate",
            "search",
            "With --prompts and --reward: let the best candidates reply to the held-out prompts, choose between tied "
            "ones by the mean of mass and the share of right replies, and compare the best with its agents. "
            "Default: on with a GPU or --serve.",
        ),
    )
    score_agents: bool = field(
        default=False,
        metadata=about(
            "--score-agents",
            "score",
            "With --score: score each agent, too, and compare the best merge with them; always on without --vary and "
            "--space.",
        ),
    )
    html: bool = field(
        default=True,
        metadata=about(
            "--html/--no-html", "search", "Write OUT/search.html (needs the extra `report`); on by default."
        ),
    )

    calibration: CalibrationSettings = field(default_factory=CalibrationSettings)
    """How to gather replies and statistics, if the recipe has prompts."""

    server: ModelServer | None = field(
        default=None,
        metadata={"help": "Serves the candidates that reply themselves; by default the model in memory replies."},
    )
    concurrency: int = field(default=8, metadata={"help": "Requests to the server at once."})

    def __post_init__(self) -> None:
        seconds, words = self.score_timeout, self.objectives
        is_time = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < math.inf
        are_words = isinstance(words, Iterable) and not isinstance(words, str)
        are_words = are_words and all(isinstance(each, str) for each in words)
        check_arguments(
            calibration=(
                isinstance(self.calibration, CalibrationSettings),
                "ramerge.CalibrationSettings",
                self.calibration,
            ),
            server=(self.server is None or isinstance(self.server, ModelServer), "a ramerge.ModelServer", self.server),
            concurrency=(_is_whole(self.concurrency, 1), "a whole number above 0", self.concurrency),
            trials=(self.trials is None or _is_whole(self.trials, 1), "a whole number above 0", self.trials),
            sampler=(self.sampler in (None, *SAMPLERS), f"one of {', '.join(SAMPLERS)}", self.sampler),
            seed=(_is_whole(self.seed, 0, 2**31), "a whole number from 0 to 2147483647", self.seed),
            objectives=(are_words, "a list of names", self.objectives),
            prune=(isinstance(self.prune, bool), _A_BOOL, self.prune),
            most_failures=(_is_whole(self.most_failures, 0), "a whole number, or 0 for no bound", self.most_failures),
            score_timeout=(is_time, "a number of seconds above 0", seconds),
            generate=(self.generate is None or isinstance(self.generate, bool), _A_BOOL, self.generate),
            score_agents=(isinstance(self.score_agents, bool), _A_BOOL, self.score_agents),
            html=(isinstance(self.html, bool), _A_BOOL, self.html),
        )


def _is_whole(value: object, least: int, bound: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < bound


def check_arguments(**arguments: tuple[bool, str, object]) -> None:
    """Refuse wrong arguments of a function. Each keyword: whether its value is right, what it must be, and the value.

    Raises:
        RecipeError: arguments are wrong; all are named.
    """
    if wrong := [
        f"{name}: must be {what}, not {quoted(value)}"
        for name, (is_right, what, value) in arguments.items()
        if not is_right
    ]:
        raise RecipeError(wrong)
