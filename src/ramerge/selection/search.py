"""The function that users call: what the command `search` takes as words, as values of Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from ramerge.evaluation.run import EvaluationRequest
from ramerge.foundation.errors import EvaluationError, RecipeError
from ramerge.foundation.extras import install
from ramerge.foundation.files import write_file
from ramerge.foundation.text import quoted
from ramerge.options import Options
from ramerge.planning.inputs import tensors_of_base
from ramerge.recipe.document import Document
from ramerge.recipe.read import AnyRecipe, open_recipe
from ramerge.selection import run
from ramerge.selection.functions import CallableScorer, FunctionScorer
from ramerge.selection.report.write import can_render, render
from ramerge.selection.results import SearchResult
from ramerge.selection.run import Listener, MakeScorer, SearchRequest
from ramerge.selection.scores import WORST, Objective
from ramerge.selection.served import TaskScorer
from ramerge.selection.serving import ModelServer
from ramerge.selection.space import Space
from ramerge.selection.spacefile import file_space, mapped_space, vary_space

Samplers: TypeAlias = Literal["grid", "tpe", "cmaes", "nsga2"]
_A_SCORE = "a function, or module:function or file.py:function, or an EvaluationRequest"
_A_BOOL = "True or False"
_DEFAULTS = Options()
Score: TypeAlias = str | Callable[..., Any] | EvaluationRequest


def search(
    recipe: AnyRecipe,
    out: str | Path,
    score: Score,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    space: str | Path | Mapping[str, Any] | None = None,
    trials: int | None = None,
    sampler: Samplers | None = None,
    seed: int = 0,
    objectives: Sequence[str] = (),
    prune: bool = True,
    most_failures: int = 5,
    score_timeout: float = 3600.0,
    server: ModelServer | None = None,
    concurrency: int = 8,
    html: bool = True,
    options: Options = _DEFAULTS,
    on_progress: Listener | None = None,
) -> SearchResult:
    """Merge points of a space, score each, and keep the best in the folder `out`.

    An interrupted search resumes when it is called again with the same arguments.

    Args:
        recipe: a `Recipe`, a mapping, or the path of a YAML file, in ramerge's or mergekit's form.
        out: the folder of the search. The best checkpoint is in `out/best`, and `out/recipe.yaml` merges it.
        score: what scores a merged model. A function gets its folder (a `Path`) and returns `{name: number}` or
            `{name: [number of each item]}`; it may have a parameter `split`, which is `validation` or `test`. Named as
            `module:function` or `file.py:function` it runs in a process of its own, with a time limit; given as a
            function it runs in this process, without one. An `EvaluationRequest` asks tasks of Inspect's, and needs
            `server`.
        vary: keys of the recipe to values, such as `{"method": ["ram", "ties"], "parameters.r": [0, 0.1]}`.
        space: instead of `vary`, a YAML file, or its content: what varies, also as ranges (docs/guides/search.md).
        trials: points to try; by default all of a grid, otherwise 30.
        sampler: what chooses points; by default `grid` with `vary` and `tpe` with `space`.
        seed: of the sampler.
        objectives: names of figures to raise, or `NAME=min` to lower; by default the mean of all figures. `worst` is
            the smallest figure, `worst:NAME=SCORE,...` the smallest retention, given the scores of the specialists.
            Several give a Pareto front.
        prune: whether points are given up early that are worse than the best for sure.
        most_failures: points that may fail one after the other before the search stops; 0 for no bound.
        score_timeout: seconds that scoring one point may take.
        server: for suites, the server to keep running.
        concurrency: for suites, requests at once.
        html: whether to write `out/search.html`; needs the extra `report`.
        options: how every merge is carried out.
        on_progress: called before the first point and after each.

    Returns:
        Every point with its scores, the best one, and what it scores on items that it was not chosen by.

    Raises:
        RecipeError: the recipe or the space is wrong.
        EvaluationError: the score is wrong, another search is in the folder, or no point got a score. What was scored
            is kept.
        PlanError: the recipe cannot be merged.
        OutputError: the folder cannot be written.

    Example:
        >>> def score(model: Path) -> dict[str, list[float]]:
        ...     return {"size": [1.0, 2.0]}  # of each of your items
        >>> result = ramerge.search("recipe.yaml", "found", score, vary={"parameters.r": [0, 0.1]}, html=False)
        >>> len(result.points)
        2
    """
    _check(
        out=(isinstance(out, str | Path), "a folder", out),
        score=(isinstance(score, str | EvaluationRequest) or callable(score), _A_SCORE, score),
        vary=(vary is None or _varies(vary), "a mapping from keys to lists of values", vary),
        space=(space is None or isinstance(space, str | Path | Mapping), "a mapping or the path of a file", space),
        trials=(trials is None or _is_whole(trials, 1), "a whole number above 0", trials),
        sampler=(sampler is None or sampler in get_args(Samplers), f"one of {', '.join(get_args(Samplers))}", sampler),
        seed=(_is_whole(seed, 0, 2**31), "a whole number from 0 to 2147483647", seed),
        objectives=(_are_words(objectives), "a list of names", objectives),
        prune=(isinstance(prune, bool), _A_BOOL, prune),
        most_failures=(_is_whole(most_failures, 0), "a whole number, or 0 for no bound", most_failures),
        score_timeout=(_is_time(score_timeout), "a number of seconds above 0", score_timeout),
        server=(server is None or isinstance(server, ModelServer), "a ModelServer", server),
        concurrency=(_is_whole(concurrency, 1), "a whole number above 0", concurrency),
        html=(isinstance(html, bool), _A_BOOL, html),
        options=(isinstance(options, Options), "ramerge.Options", options),
        on_progress=(on_progress is None or callable(on_progress), "a function", on_progress),
    )
    folder = Path(out)
    document = open_recipe(recipe, tensors_of_base)
    request = SearchRequest(
        space=_space(document, vary, space),
        objectives=_objectives(objectives),
        trials=trials,
        sampler=sampler or ("grid" if vary else "tpe"),
        seed=seed,
        prune=prune,
        most_failures=most_failures,
        options=options,
    )
    make_scorer = _scorer(score, score_timeout, server, concurrency)
    result = run.search(document, folder, request, make_scorer, on_progress=on_progress or (lambda _: None))
    return _with_page(result, folder) if html else result


def _check(**arguments: tuple[bool, str, object]) -> None:
    if wrong := [
        f"{name}: must be {what}, not {quoted(given)}" for name, (ok, what, given) in arguments.items() if not ok
    ]:
        raise RecipeError(wrong)


def _varies(vary: object) -> bool:
    return not vary or (
        isinstance(vary, Mapping)
        and all(isinstance(each, Iterable) and not isinstance(each, str | bytes | Mapping) for each in vary.values())
    )


def _is_whole(value: object, least: int, bound: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < bound


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _are_words(values: object) -> bool:
    return (
        isinstance(values, Iterable) and not isinstance(values, str) and all(isinstance(each, str) for each in values)
    )


def _space(
    recipe: Document, vary: Mapping[str, Sequence[Any]] | None, space: str | Path | Mapping[str, Any] | None
) -> Space:
    if bool(vary) == (space is not None):
        raise RecipeError(
            "say what varies: with --vary KEY=V,V,... or with --space FILE, one of them (in Python vary or space)"
        )
    if vary:
        return vary_space(recipe, vary)
    if isinstance(space, Mapping):
        return mapped_space(recipe, space)
    assert space is not None
    return file_space(recipe, Path(space))


def _objectives(words: Sequence[str]) -> tuple[Objective, ...]:
    found = [_objective(word) for word in words]
    if len({each.name for each in found}) < len(found):
        raise EvaluationError("--objective: each of them once")
    return tuple(found) or (Objective(),)


def _objective(word: str) -> Objective:
    if word.startswith(f"{WORST}:"):
        return Objective(WORST, specialists=_specialists(word))
    name, _, way = word.rpartition("=") if word.endswith(("=min", "=max")) else (word, "", "max")
    if not name.strip("="):
        raise EvaluationError(f"--objective {word}: must be NAME, or NAME=min")
    return Objective(name, way == "min")


def _specialists(word: str) -> dict[str, float]:
    """The scores in `worst:NAME=SCORE,...`."""
    found = {}
    for pair in word.removeprefix(f"{WORST}:").split(","):
        name, _, number = pair.rpartition("=")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = math.nan
    if "" in found or not all(0 < score < math.inf for score in found.values()):
        raise EvaluationError(
            f"--objective {word}: must be {WORST}:NAME=SCORE,NAME=SCORE with the score of each figure's specialist, "
            "a number above 0"
        )
    return found


def _scorer(score: Score, seconds: float, server: ModelServer | None, concurrency: int) -> MakeScorer:
    if isinstance(score, EvaluationRequest):
        if server is None:
            raise EvaluationError("tasks need a server: server=ramerge.ModelServer(...)")
        started, asked = server, score
        return lambda folder: TaskScorer(asked, started, folder, concurrency)
    if server is not None:
        raise EvaluationError("server: is for tasks, and the score is a function")
    if isinstance(score, str):
        spec = score
        return lambda folder: FunctionScorer(spec, folder.log, seconds)
    function = score
    return lambda folder: CallableScorer(function, folder.log)


def _with_page(result: SearchResult, folder: Path) -> SearchResult:
    """The result, after its page is written; with a note where that cannot be."""
    if not can_render():
        note = f"a page, search.html, needs libraries that are not here: {install('report')}"
        return replace(result, notes=(*result.notes, note))
    write_file(folder / "search.html", render(result, (folder / "recipe.yaml").read_text(encoding="utf-8")))
    return result
