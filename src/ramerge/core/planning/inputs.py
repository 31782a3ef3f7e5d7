"""Opens the checkpoints of a recipe, according to its `allow`. Import rules ensure that no other module does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ramerge.core.formats.encodings.decode import ADVICE
from ramerge.core.formats.files import UNGATHERED
from ramerge.core.formats.format import ADAPTER, MissingBaseError
from ramerge.core.formats.open import not_a_directory, open_stack
from ramerge.core.formats.recorded import IMPORTANCES
from ramerge.core.foundation.dtypes import FLOATS, INTEGERS
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.foundation.text import brief_list, enumerated, quantity
from ramerge.core.methods.base import IMPORTANCE
from ramerge.core.options import Options
from ramerge.core.planning.findings import PlanFinding, note, problem, problems_of, split, warning
from ramerge.core.planning.model import FoundModels, PlannedInputs
from ramerge.core.planning.owners import BASE
from ramerge.core.planning.soups import soup_of
from ramerge.core.recipe.checks import check
from ramerge.core.recipe.document import Document, Key, document_of
from ramerge.core.recipe.model import Agent, Allow, Recipe
from ramerge.core.recipe.read import AnyRecipe, recipe_document
from ramerge.core.storage.location import Location
from ramerge.core.storage.resolve import FoundModel, is_hub_id, resolve, resolve_all
from ramerge.core.storage.schemes import is_remote
from ramerge.core.tensors.access import Identity
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.embeddings import untied
from ramerge.core.tensors.identity import identify
from ramerge.core.tensors.lowrank import LowRank
from ramerge.core.tensors.tensor import Tensor

_OPTIONS = Options()


@dataclass(frozen=True)
class OpenedInputs(FoundModels):
    """The models of a recipe, and the checkpoints that could be opened.

    Attributes:
        opened_base: the base; None if it could not be opened.
        opened_agents: the agents that could be opened.
        opened_sides: the side inputs that could be opened.
        untied_by: the agents that changed tied input and output embeddings differently, if `opened_base` was untied
            only because of them.
    """

    opened_base: Checkpoint | None
    opened_agents: Mapping[str, Checkpoint]
    opened_sides: Mapping[str, Checkpoint]
    untied_by: tuple[str, ...] = ()

    @property
    def has_base(self) -> bool:
        """Whether the recipe has a base; otherwise the first agent is used as the base."""
        return all(self.base is not agent for agent in self.agents.values())

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
        ranks_by_agent = {
            name: [
                one.origin.ranks for one in self.opened_agents[name].tensors.values() if isinstance(one.origin, LowRank)
            ]
            for name in self.adapters
        }
        return {name: max(ranks) for name, ranks in ranks_by_agent.items() if ranks}

    @property
    def are_complete(self) -> bool:
        """Whether all checkpoints could be opened."""
        agents = len(self.opened_agents) == len(self.agents)
        return bool(self.opened_base) and agents and len(self.opened_sides) == len(self.sides)

    @property
    def files(self) -> dict[Location, Identity]:
        """The identity of each opened file, at the time when it was opened."""
        return {path: identity for checkpoint in self.opened for path, identity in checkpoint.files.items()}

    @property
    def formats(self) -> dict[str, str]:
        """The formats of the models that could be opened, human-readable, by `base` or the agent's name."""
        base = {"base": self.opened_base.title} if self.opened_base is not None and self.has_base else {}
        return base | {name: checkpoint.title for name, checkpoint in self.opened_agents.items()}

    def planned_inputs(self, companions: Iterable[Location]) -> PlannedInputs:
        """The models without their tensors, and the identities of all files, including the companions to copy."""
        files = {**identify(companions), **self.files}
        return PlannedInputs(self.base, self.agents, self.sides, self.adapters, self.formats, files)

    @property
    def folders(self) -> list[Location]:
        """The folders of the base, the agents and the side inputs that were found."""
        models = (self.base, *self.agents.values(), *self.sides.values())
        return [folder for model in models for folder in model.folders]


def open_recipe(source: AnyRecipe, options: Options = _OPTIONS) -> Document:
    """Read the document of a recipe in any form, and add the options for reading its models.

    The meaning of a recipe in another form may depend on the base's tensor names, so the base's headers may be read.

    Args:
        source: a `Recipe`, a mapping, a document, or the path of a YAML file, in ramerge's form or that of a `Dialect`.
        options: only `allow_outside_links` applies.

    Raises:
        RecipeError: the recipe cannot be read, or it is in another form and needs a feature that ramerge does not have.
        CheckpointError: the base cannot be found or opened.
    """
    document = recipe_document(source, partial(_tensors_of_base, options=options))
    return document.with_values({"allow.outside_links": True}, "--") if options.allow_outside_links else document


def _tensors_of_base(document: Document, options: Options) -> list[str]:
    """The names of floating-point tensors in the base of a recipe, or in the first agent if it has no base."""
    first = document.stated("base") or next(iter(document.agents.values()))
    allow_document = document.stated("allow")
    links = isinstance(allow_document, Mapping) and allow_document.get("outside_links") is True
    allow = Allow(outside_links=links or options.allow_outside_links)
    checkpoint = _open_checkpoint(resolve(first, document.folder), allow)
    return [tensor.name for tensor in checkpoint.tensors.values() if tensor.is_float]


def missing_folders(document: Document) -> list[str]:
    """Problems with folders of models in a recipe that may be otherwise invalid. Opens no model.

    Models on the hub, remote models and models with adapters (`MODEL+ADAPTER`) are not checked.
    """
    places: dict[Key, object] = {("base",): document.stated("base")}
    for name, agent in document.agents.items():
        places["agents", name] = agent.get("model") if isinstance(agent, Mapping) else agent
    problems = []
    for key, text in places.items():
        if isinstance(text, str) and text and not (is_remote(text) or is_hub_id(text) or "+" in text):
            with suppress(ValueError, RuntimeError, OSError):  # an invalid path is reported when it is opened
                folder = document.folder / Path(text).expanduser()
                problems += [] if folder.is_dir() else [document.where(key, not_a_directory(folder))]
    return list(dict.fromkeys(problems))  # a base in mergekit's form may be an agent, too


def open_models(recipe: Recipe) -> OpenedInputs:
    """Find and open all models of a recipe.

    Raises:
        CheckpointError: a model cannot be found or opened; lists all problems.
    """
    inputs, findings = open_inputs(recipe)
    if problems := [finding.text for finding in findings if finding.kind == "problem"]:
        raise CheckpointError(problems)
    return inputs


def open_model(model: str | Path) -> Checkpoint:
    """Open a single model by path or hub id, reading only headers.

    Raises:
        CheckpointError: the model cannot be found or opened; lists all problems.

    Example:
        >>> from ramerge.core.planning.inputs import open_model
        >>> open_model("coder").tensors["model.norm.weight"].dtype
        'BF16'
    """
    return open_models(check(document_of(str(model), "MODEL"))).opened[0]


def open_inputs(recipe: Recipe) -> tuple[OpenedInputs, list[PlanFinding]]:
    """Find and open the models of a recipe. Each model that cannot be opened is a problem in the findings."""
    agents, findings = split({name: _find_agent(agent, recipe, name) for name, agent in recipe.agents.items()})
    sides, missing = split(
        {name: _find_side(agent, recipe, name) for name, agent in recipe.agents.items() if agent.sides}
    )
    findings += missing
    base, opened_base = next(iter(agents.values())), None
    if recipe.base is not None:
        base, missing = _find_model([recipe.base], recipe, BASE)
        opened_base, new_findings = _open_model(BASE, base, recipe)
        findings += missing + new_findings
    opened_agents, new_findings = _open_agents(agents, recipe.agents, recipe, opened_base)
    findings += new_findings
    if recipe.base is None:
        opened_base = next(iter(opened_agents.values()), None)
    checkpoints, new_findings = split({name: _open_model(name, model, recipe) for name, model in sides.items()})
    opened_sides = {name: checkpoint for name, checkpoint in checkpoints.items() if checkpoint is not None}
    return OpenedInputs(base, agents, sides, opened_base, opened_agents, opened_sides), findings + new_findings


def fit_inputs(inputs: OpenedInputs, *, needs_base: bool) -> tuple[OpenedInputs, list[PlanFinding]]:
    """Prepare opened models for merging: untie the embeddings of all models if an agent has untied ones.

    Args:
        needs_base: whether the method uses task vectors, so that the base itself cannot be an agent.
    """
    checkpoints = [(BASE, inputs.opened_base)] if inputs.has_base else []
    checkpoints += [*inputs.opened_agents.items(), *inputs.opened_sides.items()]
    findings = [finding for name, each in checkpoints if each is not None for finding in _check_arithmetic(name, each)]
    base, agents = inputs.opened_base, inputs.opened_agents
    if base is not None:
        findings += _check_ranks("" if inputs.has_base else next(iter(agents)), base)
    if base is not None and (apart := [name for name, agent in agents.items() if agent.untied]):
        separate = untied(base)
        untied_by = tuple(apart) if separate.untied and not base.untied else ()
        inputs = replace(
            inputs,
            opened_base=separate,
            opened_agents={name: untied(agent) for name, agent in agents.items()},
            untied_by=untied_by,
        )
        if untied_by:
            text = f"the base ties input and output embeddings, and {enumerated(apart)} changed them apart"
            findings.append(note(f"{text}: the output has both, and its config.json says tie_word_embeddings: false"))
    if needs_base:
        advice = "leave it out, or give the model that all agents were trained from as the base"
        findings += [
            problem(f"{model.location} is the base itself, so it has no task vector; {advice}", name)
            for name, model in inputs.agents.items()
            if model.folders and _resolved_folders(model) == _resolved_folders(inputs.base)
        ]
    return inputs, [*findings, *_warn_of_same_folders(inputs.agents)]


def _find_model(texts: Sequence[str], recipe: Recipe, name: str) -> tuple[FoundModel, list[PlanFinding]]:
    if (model := recipe.document.models.get(texts[0])) is not None:
        return FoundModel(texts[0], model), []
    try:
        return resolve_all(texts, recipe.folder), []
    except CheckpointError as error:
        return FoundModel("+".join(texts), None), problems_of(error, name)


def _find_side(agent: Agent, recipe: Recipe, name: str) -> tuple[FoundModel, list[PlanFinding]]:
    """Find an agent's side input; importances may be in a subfolder of a folder of `ramerge calibrate`."""
    ((key, folder),) = agent.sides.items()
    side, findings = _find_model([folder], recipe, name)
    if (
        side.directory is not None
        and (side.directory / name).is_dir()
        and not any(side.directory.glob("*.safetensors"))
    ):
        text = f"{side.directory}: holds a folder for each agent; give {side.directory / name}"
        return replace(side, directory=None), [*findings, problem(text, name)]
    inner = None if side.directory is None or key != IMPORTANCE.key else side.directory / IMPORTANCES
    return (replace(side, directory=inner) if inner is not None and inner.is_dir() else side), findings


def _find_agent(agent: Agent, recipe: Recipe, name: str) -> tuple[FoundModel, list[PlanFinding]]:
    if agent.soup is None:
        return _find_model(agent.parts, recipe, name)
    members, findings = split({each: _find_model(one.parts, recipe, name) for each, one in agent.soup.agents.items()})
    return FoundModel(agent.written, next(iter(members.values())).directory, members=tuple(members.items())), findings


def _open_agents(
    models: Mapping[str, FoundModel],
    agents: Mapping[str, Agent],
    recipe: Recipe,
    base: Checkpoint | None,
    within: str = "",
) -> tuple[dict[str, Checkpoint], list[PlanFinding]]:
    """Open agents: adapters and deltas on top of the base, or of another agent. Return those that could be opened.

    Args:
        within: name of the agent that is a soup of these models, if any; findings are about it.
    """
    checkpoints: dict[str, Checkpoint] = {}
    findings: list[PlanFinding] = []
    for name, model in models.items():
        agent = agents[name]
        if agent.over is not None and agent.over not in checkpoints:
            continue  # the agent below could not be opened, which was reported
        if agent.soup is None:
            below = base if agent.over is None else checkpoints[agent.over]
            checkpoint, new_findings = _open_model(within or name, model, recipe, below, agent)
            findings += new_findings
            if checkpoint is not None:
                checkpoints[name] = checkpoint
            continue
        members, new_findings = _open_agents(dict(model.members), agent.soup.agents, recipe, base, within=name)
        findings += new_findings
        if len(members) == len(agent.soup.agents):
            try:
                checkpoints[name] = soup_of(agent.soup, members)
            except CheckpointError as error:
                findings += problems_of(error, name)
    return checkpoints, findings


def _open_model(
    name: str, model: FoundModel, recipe: Recipe, base: Checkpoint | None = None, agent: Agent | None = None
) -> tuple[Checkpoint | None, list[PlanFinding]]:
    if model.directory is None:
        return None, []
    try:
        checkpoint = _open_checkpoint(
            model, recipe.allow, base, only_deltas=agent is not None and agent.delta is not None
        )
    except MissingBaseError as error:  # not reported again if the base could not be opened
        return None, problems_of(error, name) if recipe.base is None or name == BASE else []
    except CheckpointError as error:
        return None, problems_of(error, name)
    notes = checkpoint.notes if agent is None or agent.over is None else ()  # once for a chain of deltas
    return checkpoint, [
        *[note(f"{name or 'base'}: {text}") for text in notes],
        *[warning(text, name) for text in checkpoint.warnings],
    ]


def _open_checkpoint(
    model: FoundModel, allow: Allow, base: Checkpoint | None = None, *, only_deltas: bool = False
) -> Checkpoint:
    return open_stack(
        [part.folder for part in model.parts],
        base=base,
        only_deltas=only_deltas,
        allow_outside_links=allow.outside_links,
        ignore_quantization="quantization_config" in allow.config,
    )


def _check_arithmetic(name: str, checkpoint: Checkpoint) -> Iterator[PlanFinding]:
    dtypes: dict[str, list[Tensor]] = {}
    for tensor in checkpoint.tensors.values():
        dtypes.setdefault(tensor.dtype, []).append(tensor)
    for dtype, tensors in sorted(dtypes.items()):
        if dtype not in INTEGERS | FLOATS:
            kind = "float8, but config.json does not say how its scales are stored"
            why = kind if dtype.startswith("F8") else "not a type of weights"
            count, example = quantity(len(tensors), "tensor"), tensors[0]
            what = f"{count} of dtype {dtype}, such as {example.name!r} in {example.path.name}"
            yield problem(f"{checkpoint.directory}: {what} ({why}); convert to bfloat16, or {ADVICE}", name)


def _check_ranks(name: str, checkpoint: Checkpoint) -> Iterator[PlanFinding]:
    """Refuse empty parameters in the model with which all others are compared."""
    parameters = [tensor for tensor in checkpoint.tensors.values() if tensor.name.endswith((".weight", ".bias"))]
    if empty := [repr(tensor.name) for tensor in parameters if tensor.shape == (0,)]:
        yield problem(f"{checkpoint.directory}: is empty in {brief_list(empty)}; {UNGATHERED}", name)


def _warn_of_same_folders(agents: Mapping[str, FoundModel]) -> Iterator[PlanFinding]:
    names_by_folder: dict[tuple[Location, ...], list[str]] = {}
    for name, model in agents.items():
        if model.folders:
            names_by_folder.setdefault(_resolved_folders(model), []).append(name)
    for names in names_by_folder.values():
        if len(names) > 1:
            place = "+".join(map(str, _resolved_folders(agents[names[0]])))
            yield warning(f"{' and '.join(names)} are the same folder, {place}; is one of them the wrong checkpoint?")


def _resolved_folders(model: FoundModel) -> tuple[Location, ...]:
    return tuple(folder.resolve() for folder in model.folders)
