"""Turn a document into a checked `Recipe`: structure, methods, presets, parameters, names of agents.

Problems are collected, so that a user sees all of them at once, each with its line.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from pydantic import ValidationError

from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.text import enumerated, nearest
from ramerge.core.methods.base import SIDE_INPUTS, Method, names_agent, names_method
from ramerge.core.methods.means import MeanMethod
from ramerge.core.methods.registry import METHODS, complete
from ramerge.core.recipe.document import DEFAULT_METHOD, Document, Key, to_yaml
from ramerge.core.recipe.model import AUTO, Recipe, read_structure
from ramerge.core.recipe.other_method import for_method
from ramerge.core.recipe.paths import portable
from ramerge.core.recipe.sentences import ADD_BASE, describe


def check(document: Document) -> Recipe:
    """Check a document in ramerge's own form, and return its recipe.

    Raises:
        RecipeError: structure, method or parameters are wrong; lists all problems.
    """
    recipe, problems = read_structure(document)
    problems = [*problems, *_method_problems(document), *_agent_problems(document)]
    if recipe is None or problems:
        raise RecipeError(sorted(dict.fromkeys(problems), key=document.line_of))
    return recipe


def check_unchosen(document: Document) -> None:
    """Check a recipe as `check` does, but also accept the method `auto`, which is replaced later.

    Raises:
        RecipeError: as for `check`; or the method is `auto`, and there are parameters, which it chooses itself, or no
            prompts.
    """
    if document.method == AUTO:
        if wrong := [key for key in ("parameters", "preset") if document.stated(key)]:
            raise RecipeError(
                document.where((key,), "the method auto chooses parameters, too; leave them out, or name a method")
                for key in wrong
            )
        if not document.stated("prompts"):
            raise RecipeError(document.where(("method",), advice_on_auto(document.agents)))
        document = for_method(document, DEFAULT_METHOD)  # any method will do for checking the rest
    check(document)


def advice_on_auto(agents: Iterable[str]) -> str:
    """The advice if the method is `auto`, but there are no prompts to choose a method with."""
    prompts = shlex.join(word for name in agents for word in ("--prompts", f"{name}=FILE")) or "--prompts NAME=FILE"
    return (
        f"auto chooses with prompts of each agent's task: add {prompts}, or name a method; `ramerge recommend` says "
        "what fits the weights"
    )


def as_yaml(document: Document) -> str:
    """The YAML of the document's recipe; if the recipe is invalid, the YAML of its values."""
    try:
        return check(document).to_yaml()
    except RecipeError:
        return to_yaml(document.as_dict())


def _method_problems(document: Document) -> list[str]:
    """Problems of method, preset and parameters, except values of a wrong type, which `read_structure` reports."""
    name, preset, values = document.method, document.stated("preset"), document.stated("parameters")
    problems = []
    if not isinstance(name, str):
        return []
    values = values if isinstance(values, dict) else {}
    if name == AUTO:
        return [document.where(("method",), advice_on_auto(document.agents))]
    if name not in METHODS:
        problems.append(document.unknown(("method",), "method", name, list(METHODS)))
        name = nearest(name, METHODS)
        if name is None:
            return problems
    method = METHODS[name]
    if method.needs_base and document.stated("base") is None:
        advice = "give its state dict" if document.models else ADD_BASE
        problems.append(document.where(("base",), f"is missing, but {name} needs it; {advice}"))
    if isinstance(preset, str) and preset not in method.presets:
        problems.append(document.unknown(("preset",), f"preset of {name}", preset, list(method.presets)))
        preset = None
    all_values = complete(method, preset, values) if preset is None or isinstance(preset, str) else dict(values)
    problems += _parameter_problems(document, method, all_values, ("parameters",))
    rules = document.stated("rules")
    for index, rule in enumerate(rules if isinstance(rules, list | tuple) else ()):
        others = rule.get("parameters") if isinstance(rule, dict) else None
        if isinstance(others, dict):
            key = ("rules", str(index), "parameters")
            problems += _parameter_problems(document, method, {**all_values, **others}, key, only=others)
    return problems


def _parameter_problems(
    document: Document, method: Method, values: Mapping[str, object], key: Key, only: Mapping[str, object] | None = None
) -> list[str]:
    """Problems of the parameters at `key`. `only`: the parameters to report problems of; None for all."""
    fields = method.parameters.model_fields
    problems = []
    for name in values:
        if name not in fields and (only is None or name in only):
            others = [other.name for other in METHODS.usable().values() if name in other.parameters.model_fields]
            hint = f" ({name} belongs to {', '.join(others)})" if others else ""
            problems.append(document.unknown((*key, name), f"parameter of {method.name}", name, list(fields), hint))
    known_values = {name: value for name, value in values.items() if name in fields}
    parameters = None
    while parameters is None:  # try again without the wrong values, until only valid ones are left
        try:
            parameters = method.parameters(**known_values)
        except ValidationError as error:
            problems += describe(error, document, method.parameters, key, only=only)
            wrong = {item["loc"][0] for item in error.errors() if item["loc"]} & known_values.keys()
            if not wrong:
                return problems
            known_values = {name: value for name, value in known_values.items() if name not in wrong}
    names = list(document.agents)
    for name, value in parameters:
        if value is not None and names_agent(method.parameters, name) and value not in names:
            problems.append(document.unknown((*key, name), "agent", value, names))
        if (of := names_method(method.parameters, name)) is not None:
            if value:  # already checked to be parameters of that method
                problems += _parameter_problems(document, METHODS[getattr(parameters, of)], value, (*key, name))
        elif isinstance(value, dict) and (only is None or name in only):
            problems += [
                document.unknown((*key, name, agent), "agent", agent, names) for agent in value if agent not in names
            ]
            missing = [agent for agent in names if agent not in value]
            if missing:
                problems.append(document.where((*key, name), f"has no value for {', '.join(missing)}"))
    return problems


def _soup_problems(document: Document, agents: Mapping[str, object]) -> list[str]:
    """Problems of agents that are soups; each soup is checked as a separate recipe with the same base."""
    problems = []
    for name, agent in agents.items():
        soup = agent.get("soup") if isinstance(agent, dict) else None
        if not isinstance(soup, dict):
            continue
        inner = Document({"base": document.stated("base"), "method": "uniform", **soup})
        texts = [*_method_problems(inner), *_agent_problems(inner)]
        method = METHODS.get(str(inner.method))
        if method is not None and not isinstance(method, MeanMethod):
            means = [each.name for each in METHODS.usable().values() if isinstance(each, MeanMethod)]
            texts.append(f"method: {method.name} is no weighted mean; choose one of {', '.join(means)}")
        problems += [document.where(("agents", name, "soup"), text) for text in texts]
    return problems


def _agent_problems(document: Document) -> list[str]:
    agents, companions = document.stated("agents"), document.stated("companions")
    if not isinstance(agents, dict):
        return []
    problems = []
    references: list[tuple[Key, object]] = [(("companions",), companions if companions != "base" else None)]
    for list_key, key in (("rules", "take"), ("rename", "agent")):
        entries = document.stated(list_key)
        for index, entry in enumerate(entries if isinstance(entries, list | tuple) else ()):
            if isinstance(entry, dict):
                references.append(((list_key, str(index), key), entry.get(key)))
                if entry.get("keep") is not None and document.stated("base") is None:
                    problems.append(document.where((list_key, str(index), "keep"), "the recipe has no base; add one"))
    references += [(("prompts", name), name) for name in document.prompts]
    problems += _soup_problems(document, agents)
    for place, (name, agent) in enumerate(agents.items()):
        over = agent.get("over") if isinstance(agent, dict) else None
        if isinstance(over, str) and over not in list(agents)[:place]:
            earlier = list(agents)[:place]
            problems.append(document.unknown(("agents", name, "over"), "agent listed earlier", over, earlier))
    problems += [
        document.unknown(key, "agent", name, list(agents))
        for key, name in references
        if isinstance(name, str) and name not in agents
    ]
    method = METHODS.get(str(document.method))
    if method is not None and agents and not method.fewest <= len(agents) <= (method.most or method.limit):
        problems.append(
            document.where(("agents",), f"{method.name} takes {method.takes(len(agents))}, not {len(agents)}")
        )
    return problems + (_side_problems(document, agents, method) if method is not None else [])


def models_only(document: Document) -> Recipe:
    """A checked recipe with only the base, agents and prompts of a document, and with paths that are valid anywhere.

    Method, parameters, rules and side inputs are left out, so that their problems do not matter.

    Raises:
        RecipeError: there are no models, or their entries are invalid.
    """
    model_keys = ("base", "agents", "prompts", "allow", "rename")
    values = {key: value for key, value in document.as_dict().items() if key in model_keys}
    keys = [side.key for side in SIDE_INPUTS]
    if isinstance(agents := values.get("agents"), dict):
        values["agents"] = {
            name: {key: value for key, value in agent.items() if key not in keys} if isinstance(agent, dict) else agent
            for name, agent in agents.items()
        }
    return portable(check(document.rewritten({**values, "method": "uniform"})), None)


def check_conversion(keys: Iterable[object], label: str, *, has_base: bool) -> None:
    """Refuse keys of a recipe that make no sense in a conversion of one model.

    Raises:
        RecipeError: there are such keys; lists all of them.
    """
    reasons = dict.fromkeys(("agents", "method", "prompts"), "`ramerge convert` merges nothing; use `ramerge merge`")
    if not has_base:
        reasons["rename"] = "maps tensor names to a base's; give the base too (--base MODEL)"
    if wrong := [key for key in keys if str(key).partition(".")[0] in reasons]:
        raise RecipeError(f"{label}{key}: {reasons[str(key).partition('.')[0]]}" for key in wrong)


def note_unused(document: Document, keys: Iterable[str], work: str) -> list[str]:
    """A note that some keys of a recipe have no effect in some work; empty if the recipe has none of them.

    Args:
        keys: keys without effect, such as `dtype` or `allow.other_base`, or side inputs of agents.
        work: the work in which they have no effect, such as `an analysis`.
    """
    agents = [agent for agent in document.agents.values() if isinstance(agent, Mapping)]
    extras = []
    for key in keys:
        first, _, inner = key.partition(".")
        value = document.stated(first)
        if inner:
            value = value.get(inner) or None if isinstance(value, Mapping) else None
        if key == "rules" and isinstance(value, list | tuple):
            inside = dict.fromkeys(name for rule in value if isinstance(rule, Mapping) for name in rule)
            extras += [f"rules ({', '.join(map(str, inside))})"] if inside else []
        elif value is not None or any(agent.get(key) is not None for agent in agents):
            extras.append(key)
    has = "has" if len(extras) == 1 else "have"
    return [f"{enumerated(extras)} in the recipe {has} no effect in {work}, only in a merge"] if extras else []


def _side_problems(document: Document, agents: Mapping[str, object], method: Method) -> list[str]:
    """Problems of side inputs: agents that lack the one that the method needs, or have one that it does not use."""
    problems = []
    for side in SIDE_INPUTS:
        holders = {name for name, agent in agents.items() if isinstance(agent, dict) and agent.get(side.key)}
        if method.side is side:
            holders |= document.prompts.keys()  # it will be gathered with prompts
        for name in agents if method.side is side else holders:
            if name in holders and method.side is not side:
                text = f"{method.name} does not use {side.plural}; remove it"
                problems.append(document.where(("agents", name, side.key), text))
            elif name not in holders:
                advice = side.in_memory if document.models else side.advice.format(name=name)
                text = f"has no {side.key}, but {method.name} needs it; {advice}"
                problems.append(document.where(("agents", name), text))
    return problems
