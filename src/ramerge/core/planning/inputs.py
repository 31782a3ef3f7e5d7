"""Finds and opens the models that a recipe names, and refuses dtypes and quantized weights that cannot be merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramerge.core.formats.encodings.decode import ADVICE
from ramerge.core.formats.files import UNGATHERED
from ramerge.core.formats.format import ADAPTER
from ramerge.core.formats.open import not_a_directory, open_checkpoint, open_stacked
from ramerge.core.formats.recorded import IMPORTANCES
from ramerge.core.foundation.dtypes import FLOATS, INTEGERS
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.foundation.text import enumerated
from ramerge.core.methods.base import IMPORTANCE
from ramerge.core.planning.findings import Findings, listed
from ramerge.core.planning.soups import soup_of
from ramerge.core.recipe.document import Document, Key
from ramerge.core.recipe.model import Agent, Recipe, Soup
from ramerge.core.storage.location import Location
from ramerge.core.storage.models import FoundModel, is_hub_id, resolve, resolve_all
from ramerge.core.storage.schemes import is_remote
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.embeddings import untied
from ramerge.core.tensors.identity import Identity
from ramerge.core.tensors.lowrank import LowRank
from ramerge.core.tensors.tensor import Tensor


@dataclass(frozen=True)
class OpenedInputs:
    """The models of a recipe, and the checkpoints of those that could be opened.

    Attributes:
        base: the base; if the recipe has no base, the first agent.
        agents: by name, in recipe order.
        sides: by the agent's name, the side inputs of agents that have any: importances, or recorded inputs.
        opened_base: None if it could not be opened.
        opened_agents: the agents that could be opened.
        opened_sides: the side inputs that could be opened.
    """

    base: FoundModel
    agents: Mapping[str, FoundModel]
    sides: Mapping[str, FoundModel]
    opened_base: Checkpoint | None
    opened_agents: Mapping[str, Checkpoint]
    opened_sides: Mapping[str, Checkpoint]

    @property
    def opened(self) -> list[Checkpoint]:
        """All checkpoints that could be opened."""
        base = [self.opened_base] if self.opened_base else []
        return [*base, *self.opened_agents.values(), *self.opened_sides.values()]

    @property
    def adapters(self) -> tuple[str, ...]:
        """The agents that are LoRA adapters."""
        return tuple(name for name, agent in self.opened_agents.items() if agent.format == ADAPTER)

    @property
    def ranks(self) -> dict[str, int]:
        """The largest rank of each LoRA adapter."""
        found = {
            name: [
                one.origin.ranks for one in self.opened_agents[name].tensors.values() if isinstance(one.origin, LowRank)
            ]
            for name in self.adapters
        }
        return {name: max(ranks) for name, ranks in found.items() if ranks}

    @property
    def are_complete(self) -> bool:
        """Whether all checkpoints could be opened."""
        agents = len(self.opened_agents) == len(self.agents)
        return bool(self.opened_base) and agents and len(self.opened_sides) == len(self.sides)

    @property
    def files(self) -> dict[Location, Identity]:
        """The identity of every opened file at that time."""
        return {path: identity for checkpoint in self.opened for path, identity in checkpoint.files.items()}

    @property
    def formats(self) -> dict[str, str]:
        """How the models that could be opened are stored, by `base` or the agent's name."""
        has_base = all(self.base is not agent for agent in self.agents.values())
        base = {"base": self.opened_base.title} if self.opened_base is not None and has_base else {}
        return base | {name: checkpoint.title for name, checkpoint in self.opened_agents.items()}

    @property
    def folders(self) -> list[Location]:
        """The folders of base and agents that were found."""
        return [folder for model in (self.base, *self.agents.values()) for folder in model.folders]


def tensors_of_base(document: Document) -> list[str]:
    """Names of the floating-point tensors of a recipe's base, or if it has none, of its first agent.

    Raises:
        CheckpointError: the model cannot be found or opened.
    """
    values = document.values
    first = values.get("base") or next(iter(values["agents"].values()))
    allow = values.get("allow")
    links = isinstance(allow, Mapping) and allow.get("outside_links") is True
    opened = open_checkpoint(resolve(first, document.folder).folder, allow_outside_links=links)
    return [tensor.name for tensor in opened.tensors.values() if tensor.is_float]


def missing_folders(document: Document) -> list[str]:
    """Problems of the folders that a recipe names, of which the rest may be wrong, too; nothing is opened.

    Models of the hub, remote ones and sums of adapters are not looked at.
    """
    values, agents = document.values, document.values.get("agents")
    named: dict[Key, Any] = {("base",): values.get("base")}
    for name, agent in agents.items() if isinstance(agents, Mapping) else ():
        named["agents", name] = agent.get("model") if isinstance(agent, Mapping) else agent
    problems = []
    for key, text in named.items():
        if isinstance(text, str) and text and not (is_remote(text) or is_hub_id(text) or "+" in text):
            with suppress(ValueError, RuntimeError, OSError):  # no path, which opening it would say
                folder = document.folder / Path(text).expanduser()
                problems += [] if folder.is_dir() else [document.where(key, not_a_directory(folder))]
    return problems


def open_inputs(recipe: Recipe, findings: Findings, *, needs_base: bool) -> OpenedInputs:
    """Find and open the models of a recipe. A model that cannot be opened is a problem.

    Args:
        recipe: names base, agents and side inputs.
        findings: gets problems and warnings.
        needs_base: whether the method uses task vectors. Then the base itself cannot be an agent.
    """
    agents = {name: _find_agent(agent, recipe, findings, name) for name, agent in recipe.agents.items()}
    sides = {
        name: _within(_find([folder], recipe, findings, name), key)
        for name, agent in recipe.agents.items()
        for key, folder in agent.sides.items()
    }
    base = _find([recipe.base], recipe, findings, "") if recipe.base is not None else next(iter(agents.values()))
    opened_base = _open("", base, recipe, findings) if recipe.base is not None else None
    opened_agents = _open_all(agents, recipe.agents, recipe, findings, opened_base)
    if recipe.base is None:
        opened_base = next(iter(opened_agents.values()), None)
    if opened_base is not None:
        _check_gathered("" if recipe.base is not None else next(iter(opened_agents)), opened_base, findings)
    if opened_base is not None and (apart := [name for name, agent in opened_agents.items() if agent.untied]):
        opened_base, opened_agents = _untied(opened_base, opened_agents, apart, findings)
    if needs_base:
        _refuse_base_as_agent(base, agents, findings)
    _warn_of_same_folders(agents, findings)
    found = {name: _open(name, model, recipe, findings) for name, model in sides.items()}
    opened_sides = {name: checkpoint for name, checkpoint in found.items() if checkpoint is not None}
    return OpenedInputs(base, agents, sides, opened_base, opened_agents, opened_sides)


def _untied(
    base: Checkpoint, agents: Mapping[str, Checkpoint], apart: Sequence[str], findings: Findings
) -> tuple[Checkpoint, dict[str, Checkpoint]]:
    """All models with output embeddings of their own, as the agents in `apart` have them."""
    opened = untied(base)
    if not base.untied and opened.untied:
        findings.notes.append(
            f"the base ties input and output embeddings, and {enumerated(apart)} changed them apart: the output has "
            "both, and its config.json says tie_word_embeddings: false"
        )
    return opened, {name: untied(agent) for name, agent in agents.items()}


def _find(texts: Sequence[str], recipe: Recipe, findings: Findings, name: str) -> FoundModel:
    if (given := recipe.document.models.get(texts[0])) is not None:
        return FoundModel(texts[0], given)
    try:
        return resolve_all(texts, recipe.folder)
    except CheckpointError as error:
        findings.error(error, name)
        return FoundModel("+".join(texts), None)


def _within(side: FoundModel, key: str) -> FoundModel:
    """Importances that are part of what was gathered of an agent; other side inputs as they are."""
    inner = None if side.directory is None or key != IMPORTANCE.key else side.directory / IMPORTANCES
    return replace(side, directory=inner) if inner is not None and inner.is_dir() else side


def _find_agent(agent: Agent, recipe: Recipe, findings: Findings, name: str) -> FoundModel:
    if agent.soup is None:
        return _find(agent.parts, recipe, findings, name)
    members = tuple((each, _find(one.parts, recipe, findings, name)) for each, one in agent.soup.agents.items())
    return FoundModel(agent.written, members[0][1].directory, members=members)


def _open_all(
    models: Mapping[str, FoundModel],
    agents: Mapping[str, Agent],
    recipe: Recipe,
    findings: Findings,
    base: Checkpoint | None,
    within: str = "",
) -> dict[str, Checkpoint]:
    """The agents that can be opened, each over the base, or over the agent that it changes.

    Messages are about the agent `within`, which is a soup of these.
    """
    opened: dict[str, Checkpoint] = {}
    for name, model in models.items():
        agent = agents[name]
        if agent.over is not None and agent.over not in opened:
            continue  # what is wrong with that one was said
        below = base if agent.over is None else opened[agent.over]
        if agent.soup is not None:
            checkpoint = _open_soup(name, agent.soup, model, recipe, findings, base)
        else:
            checkpoint = _open(within or name, model, recipe, findings, below, agent)
        if checkpoint is not None:
            opened[name] = checkpoint
    return opened


def _open_soup(
    name: str, soup: Soup, model: FoundModel, recipe: Recipe, findings: Findings, base: Checkpoint | None
) -> Checkpoint | None:
    opened = _open_all(dict(model.members), soup.agents, recipe, findings, base, within=name)
    if len(opened) < len(soup.agents):
        return None
    try:
        return soup_of(soup, opened)
    except CheckpointError as error:
        findings.error(error, name)
        return None


def _open(
    name: str,
    model: FoundModel,
    recipe: Recipe,
    findings: Findings,
    base: Checkpoint | None = None,
    agent: Agent | None = None,
) -> Checkpoint | None:
    if model.directory is None:
        return None
    try:
        opened = open_stacked(
            [part.folder for part in model.parts],
            base=base,
            only_deltas=agent is not None and agent.delta is not None,
            allow_outside_links=recipe.allow.outside_links,
            ignore_quantization="quantization_config" in recipe.allow.config,
        )
        if agent is None or agent.over is None:  # of a chain, the first delta says that there are some
            findings.notes += [f"{name or 'base'}: {note}" for note in opened.notes]
        for text in opened.warnings:
            findings.warn(text, name)
        _check_arithmetic(name, opened, findings)
        return opened
    except CheckpointError as error:
        findings.error(error, name)
        return None


def _check_arithmetic(name: str, checkpoint: Checkpoint, findings: Findings) -> None:
    dtypes: dict[str, list[Tensor]] = {}
    for tensor in checkpoint.tensors.values():
        dtypes.setdefault(tensor.dtype, []).append(tensor)
    for dtype, tensors in sorted(dtypes.items()):
        if dtype not in INTEGERS | FLOATS:
            kind = "float8, but config.json does not say how its scales are stored"
            why = kind if dtype.startswith("F8") else "not a type of weights"
            what = f"{len(tensors)} tensors of dtype {dtype}, such as {tensors[0].name!r} in {tensors[0].path.name}"
            findings.problem(f"{checkpoint.directory}: {what} ({why}); convert to bfloat16, or {ADVICE}", name)


def _check_gathered(name: str, checkpoint: Checkpoint, findings: Findings) -> None:
    """Refuse parameters without elements in the model that all others are compared with."""
    parameters = [tensor for tensor in checkpoint.tensors.values() if tensor.name.endswith((".weight", ".bias"))]
    if empty := [repr(tensor.name) for tensor in parameters if tensor.shape == (0,)]:
        findings.problem(f"{checkpoint.directory}: has no elements of {listed(empty)}; {UNGATHERED}", name)


def _refuse_base_as_agent(base: FoundModel, agents: Mapping[str, FoundModel], findings: Findings) -> None:
    for name, model in agents.items():
        if model.folders and _places(model) == _places(base):
            findings.problem(f"{model.location} is the base itself, so it has no task vector; give an agent", name)


def _warn_of_same_folders(agents: Mapping[str, FoundModel], findings: Findings) -> None:
    found: dict[tuple[Location, ...], list[str]] = {}
    for name, model in agents.items():
        if model.folders:
            found.setdefault(_places(model), []).append(name)
    for names in found.values():
        if len(names) > 1:
            place = "+".join(map(str, _places(agents[names[0]])))
            findings.warn(f"{' and '.join(names)} are the same folder, {place}; is one of them the wrong checkpoint?")


def _places(model: FoundModel) -> tuple[Location, ...]:
    return tuple(folder.resolve() for folder in model.folders)
