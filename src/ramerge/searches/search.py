"""The function `search`, which users call: it makes a space, objectives and a scorer from its arguments, for `run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from ramerge import EvaluationError, Options, RecipeError, plan
from ramerge.calibration.live_base import require_extras
from ramerge.core.recipe.checks import check_unchosen
from ramerge.core.recipe.model import AUTO, read_structure
from ramerge.core.recipe.paths import portable
from ramerge.report.extra import missing_libraries
from ramerge.scoring.scores import CustomScore, Measure, check_objectives, objectives_of
from ramerge.sdk.files import write_file
from ramerge.sdk.methods import METHODS
from ramerge.sdk.options import check_options, check_settings
from ramerge.sdk.outputs import claim_folder
from ramerge.sdk.recipes import AnyRecipe, Document, check, models_only, open_recipe, reads_of
from ramerge.searches import run
from ramerge.searches.folder import Folder, search_folder
from ramerge.searches.functions import CallableScorer, FunctionScorer
from ramerge.searches.page import render
from ramerge.searches.points import unused
from ramerge.searches.prompted import AgentPrompts, branches_after_sum, prompt_measures, usual_space
from ramerge.searches.results import SearchResult
from ramerge.searches.run import Branches, Listener, MakeScorer, PlannedPoints, SearchProgress, strategy_of
from ramerge.searches.settings import PROMPT_FILES, SearchSettings, check_arguments
from ramerge.searches.space import Space
from ramerge.searches.spacefile import file_space, mapped_space, vary_space
from ramerge.searches.strategies import STRATEGIES

_A_SCORE = "a function, or module:function or file.py:function, or a score such as ramerge_eval.TaskScore"
_SETTINGS, _OPTIONS = SearchSettings(), Options()
Score: TypeAlias = str | Callable[..., object] | CustomScore


def search(
    recipe: AnyRecipe,
    out: str | Path,
    score: Score | None = None,
    *,
    vary: Mapping[str, Sequence[object]] | None = None,
    space: str | Path | Mapping[str, object] | None = None,
    settings: SearchSettings = _SETTINGS,
    options: Options = _OPTIONS,
    on_progress: Listener | None = None,
) -> SearchResult:
    """Merge points of a space, score each, and keep the best in the folder `out`.

    An interrupted search resumes when it is called again with the same arguments.

    Args:
        recipe: a `Recipe`, a mapping, or the path of a YAML file, in ramerge's or mergekit's form.
        out: the folder of the search. The best checkpoint is in `out/best`, and `out/recipe.yaml` merges it.
        score: scores a merged model. A function gets the model's folder (a `Path`) and returns `{name: number}` or
            `{name: [number of each item]}`; it may have a parameter `split`, which is `validation` or `test`. Named as
            `module:function` or `file.py:function`, it runs in a separate process with a time limit; given as an
            object, it runs in this process without a limit. A `ramerge_eval.TaskScore` runs tasks of Inspect on a
            server. None requires a recipe with prompts: the score is how likely a merge is to give the agents' right
            replies (mass). With a score and prompts, points are scored in the order of their mass.
        vary: keys of the recipe to values, such as `{"method": ["ram", "ties"], "parameters.r": [0, 0.1]}`.
        space: instead of `vary`, a YAML file or its content, which may have ranges (docs/guides/search.md). With
            neither, the search tries merges that are best for some agents.
        settings: the number and choice of points, the objectives, and the use of prompts.
        options: how to carry out every merge.
        on_progress: called before the first point and after each, and while prompts are gathered or a score is loaded.

    Returns:
        Every point with its scores, the best point, and its scores on items that did not decide the choice.

    Raises:
        RecipeError: the recipe, the space or an argument is wrong.
        EvaluationError: the score is wrong, the folder holds another search, or no point got a score. Scores so far
            are kept.
        PlanError: the recipe cannot be merged.
        OutputError: the folder cannot be written.

    Example:
        >>> def score(model: Path) -> dict[str, list[float]]:
        ...     return {"size": [1.0, 2.0]}  # of each of your items
        >>> settings = ramerge.SearchSettings(html=False)
        >>> result = ramerge.search("recipe.yaml", "found", score, vary={"parameters.r": [0, 0.1]}, settings=settings)
        >>> len(result.points)
        2
    """
    _check_arguments(out, score, vary, space, settings, options, on_progress)
    document = open_recipe(recipe, options)
    has_prompts, by_mass = bool(document.stated("prompts")), score is None
    if by_mass and not has_prompts:
        raise EvaluationError(
            "no score: give prompts for each agent (--prompts NAME=FILE, without labels), or a score function (--score)"
        )
    if isinstance(score, str) and score.endswith(PROMPT_FILES):
        raise EvaluationError(f"--score {score}: names no function; give a file of prompts by --prompts NAME={score}")
    listen, place = on_progress or (lambda _: None), Path(out)
    space_file = [] if space is None or isinstance(space, Mapping) else [Path(space)]
    claim_folder(place, [*reads_of(document), *space_file])
    prompts = None
    if has_prompts:
        require_extras({"search": STRATEGIES[settings.sampler].libraries if settings.sampler else ()})
        prompts = AgentPrompts.from_recipe(document, settings.calibration)
        _refuse_importances(document, vary)
    _check_comparison(settings, by_mass=by_mass)
    if document.method == AUTO:
        check_unchosen(document)
        document = document.without("method")  # the space has methods, or there is the default
    is_usual = not vary and space is None
    whole = prompts.with_inputs(document, place) if prompts is not None else document
    unused_keys = ("parameters", "preset") if is_usual else ()
    points_from = whole.without(*unused_keys)
    points = _space_of(document, whole, points_from, vary, space, options)
    if settings.sampler is None and (space is None or (by_mass and points.is_listed)):
        settings = replace(settings, sampler="grid")
    objectives = objectives_of(settings.objectives, by_mass=by_mass)
    branches = None
    if prompts is None and is_usual and not settings.objectives:
        good, poor = branches_after_sum(points, document)
        branches = Branches(tuple(good), tuple(poor))
    description = {
        "recipe": _plain_recipe(document.without(*unused_keys, "prompts")),
        **(prompts.description() if prompts is not None else {}),
    }
    candidates = PlannedPoints(points_from, options, None if by_mass else place, description)
    make_scorer = scorer_of(score, settings.score_timeout) if score is not None else None
    with ExitStack() as stack:
        notes: Sequence[str] = ()
        judge = None
        if prompts is not None:
            if by_mass:  # the figures of mass are those of agents
                check_objectives(objectives, {name: Measure(0.0) for name in prompts.prompts})
            _check_before_asking(candidates, points, settings, place, make_scorer)
            measures = prompt_measures(
                prompts,
                place,
                stack,
                options,
                lambda event: listen(SearchProgress(event.done, event.total, None, 0, is_gathering=True)),
            )
            notes = measures.notes
            if make_scorer is None:
                make_scorer = measures.make_scorer
                judge = measures.judge(prompts, Folder(place), settings) if len(objectives) == 1 else None
            else:
                notes = [note for note in notes if note not in measures.replies.notes]  # the score chooses, not replies
                points = measures.sorted_by_mass(points, candidates, place) if points.is_listed else points
                stack.close()  # a server or function that scores needs the memory
        assert make_scorer is not None  # else there are prompts
        result = run.search(
            candidates,
            place,
            points,
            settings,
            make_scorer,
            agents=list(document.agents) if branches is not None or settings.score_agents else [],
            branches=branches,
            notes=notes,
            judge=judge,
            on_progress=listen,
        )
    if settings.html and no_page() is None:
        write_file(place / "search.html", render(result, Folder(place).text("recipe.yaml") or ""))
    return result


def _check_comparison(settings: SearchSettings, *, by_mass: bool) -> None:
    """Refuse to score agents without a score, and to let candidates reply without a reward or the requested server."""
    if settings.score_agents and by_mass:
        raise EvaluationError(
            "--score-agents: needs --score; with --prompts and --reward, --generate compares the merge with its agents"
        )
    if not settings.generate and settings.server is None:
        return
    word = "--generate" if settings.generate else "--serve"
    if not by_mass:
        raise EvaluationError(f"{word}: lets merges reply to prompts, but --score chooses; leave out one of the two")
    if not settings.calibration.reward:
        raise EvaluationError(
            f"{word}: needs a function that says which of the merges' own replies are right: --reward "
            f"FILE.py:compute_score; without one, leave out {word}, and mass alone decides"
        )
    if len(settings.objectives) > 1:
        raise EvaluationError(f"{word}: needs a single --objective")
    if settings.server is not None and settings.generate is False:
        raise EvaluationError("--serve and --no-generate: one of them, not both; only own replies need the server")
    if settings.server is not None and (problems := settings.server.check()):
        raise EvaluationError(problems)


def _refuse_importances(document: Document, vary: Mapping[str, Sequence[object]] | None) -> None:
    """Refuse methods that need importances if agents have none, because a search does not estimate them."""
    sides = {
        name: METHODS[name].side
        for name in map(str, [document.method, *(vary or {}).get("method", ())])
        if name in METHODS
    }
    lacking = [
        name for name, agent in document.agents.items() if not (isinstance(agent, Mapping) and agent.get("importance"))
    ]
    if lacking and (needing := [name for name, side in sides.items() if side is not None and side.key == "importance"]):
        raise RecipeError(
            f"{needing[0]}: a search gathers no importances; run `ramerge calibrate --gather importance`, and give the "
            f"folder of each agent: --importance {lacking[0]}=FOLDER"
        )


def _check_before_asking(
    candidates: PlannedPoints, space: Space, settings: SearchSettings, out: Path, make_scorer: MakeScorer | None
) -> None:
    """Check a search before agents generate replies, which takes long."""
    strategy_of(settings, space)
    sides = {name: METHODS[name].side for name in space.methods}
    # inputs are gathered later
    candidates.state_of_first(space, [name for name, side in sides.items() if side is None or side.key != "inputs"])
    with search_folder(out) as folder:
        folder.refuse_other(candidates.content(space))
        if make_scorer is not None:
            make_scorer(folder, lambda: None).close()


def _check_arguments(
    out: object,
    score: object,
    vary: object,
    space: object,
    settings: SearchSettings,
    options: Options,
    on_progress: object,
) -> None:
    check_options(options)
    check_settings("settings", settings, SearchSettings)
    check_arguments(
        out=(isinstance(out, str | Path), "a folder", out),
        score=(score is None or isinstance(score, str | CustomScore) or callable(score), _A_SCORE, score),
        vary=(not vary or _has_variation(vary), "a mapping from keys to lists of values", vary),
        space=(space is None or isinstance(space, str | Path | Mapping), "a mapping or the path of a file", space),
        on_progress=(on_progress is None or callable(on_progress), "a function", on_progress),
    )


def no_page() -> str | None:
    """Return a sentence that says why search.html cannot be written; None if it can."""
    lacking = missing_libraries("it needs")
    return f"no page search.html was written, because {lacking[0]}" if lacking else None


def _has_variation(vary: object) -> bool:
    return isinstance(vary, Mapping) and all(
        isinstance(each, Iterable) and not isinstance(each, str | bytes | Mapping) for each in vary.values()
    )


def _plain_recipe(document: Document) -> dict[str, Any]:
    """Return a recipe as values of JSON that are the same whatever paths lead to its models."""
    recipe, problems = read_structure(document)
    assert recipe is not None, problems  # the space is checked with it
    return portable(recipe, None).model_dump(mode="json", exclude_defaults=True, by_alias=True)


def _space_of(
    document: Document,
    whole: Document,
    points_from: Document,
    vary: Mapping[str, Sequence[object]] | None,
    space: str | Path | Mapping[str, object] | None,
    options: Options,
) -> Space:
    """Return the space of a valid recipe: from `vary` or `space`, or else the default space."""
    if vary and space is not None:
        raise RecipeError("say what varies with --vary or with --space: one of them")
    if not vary and space is None:
        check(document)
        models = plan(models_only(document).as_document().without("prompts"), options=options).details.inputs
        usual = usual_space(whole, adapters=bool(models.adapters), by_prompts=whole is not document)
        return mapped_space(points_from, usual)
    if space is None:
        points = vary_space(points_from, vary or {})
    elif isinstance(space, Mapping):
        points = mapped_space(points_from, space)
    else:
        points = file_space(points_from, Path(space))
    if problems := unused(document, points.methods):
        raise RecipeError(problems)
    return points


def scorer_of(score: Score, seconds: float) -> MakeScorer:
    """Return a function that makes the scorer of a search in its folder, from `--score`, a function or tasks."""
    if isinstance(score, CustomScore):
        return lambda folder, _: score.scorer(folder.root)
    if isinstance(score, str):
        return lambda folder, on_load: FunctionScorer(score, folder.log, seconds, on_load)
    return lambda folder, _: CallableScorer(score, folder.log)
