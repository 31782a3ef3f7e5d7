"""Compares the agents' tensors with the base's: missing, extra and tied tensors, other shapes and dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ramerge.core.formats.files import UNGATHERED
from ramerge.core.formats.recorded import InputPlace, expert_of, read_places
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.planning.findings import PlanFinding, listed, note, problem, problems_of, warning
from ramerge.core.planning.model import Recorded, Tie
from ramerge.core.planning.vocabulary import is_vocabulary
from ramerge.core.recipe.model import Allow
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.embeddings import EMBEDDINGS, HEADS, embedding_of, tied_embedding
from ramerge.core.tensors.tensor import Tensor

# If less than this share of an agent's elements is used, the agent adds almost nothing.
_LITTLE = 0.01
_RENAME = "if it has the same tensors under other names, `rename` in the recipe maps these to the base's"
_KEEP = "allow.vocabulary: common in the recipe merges the common rows and keeps the others"


@dataclass(frozen=True)
class AgentTensors:
    """An agent's counterparts of the base's tensors.

    Attributes:
        tensors: for every tensor of the base the agent's, or the base's own if the agent does not change it.
        ties: output embeddings that the agent stores although the base ties them.
    """

    tensors: Mapping[str, Tensor]
    ties: tuple[Tie, ...]


def match(name: str, base: Checkpoint, agent: Checkpoint, allow: Allow) -> tuple[AgentTensors, list[PlanFinding]]:
    """Compare an agent with the base."""
    found = dict(agent.tensors)
    heads_of_base = _tied_in_agent(base, agent)
    found |= heads_of_base
    ties = tuple(Tie(name, tensor, tied) for tensor, tied in _tied_in_base(base, agent))
    heads = {tie.head.name for tie in ties}
    missing = [tensor for tensor in base.tensors.values() if tensor.name not in found]
    extra = [tensor for key, tensor in agent.tensors.items() if key not in base.tensors and key not in heads]
    lacks = _Difference("lacks", missing, allow.missing_tensors, "missing_tensors: true keeps the base's")
    has = _Difference("has tensors unknown to the base:", extra, allow.extra_tensors, "extra_tensors: true drops them")
    found |= {tensor.name: tensor for tensor in missing}
    kept, differences = _compare(name, base, agent, found, allow)
    sources = {key: kept.get(key, found[key]) for key in base.tensors}
    return AgentTensors(sources, ties), [
        *[
            note(f"{name}: {head!r} is tied to {embedding.name!r}, which is used in its place")
            for head, embedding in heads_of_base.items()
        ],
        *[
            note(f"{name}: {t.head.name!r} must equal {t.embedding.name!r}, because the base ties them; it is dropped")
            for t in ties
        ],
        *_report(name, agent, (lacks, has)),
        *differences,
        *_check_used(name, agent, sources),
    ]


def match_importance(
    name: str, wanted: Mapping[str, Tensor], importance: Checkpoint
) -> tuple[dict[str, Tensor], list[PlanFinding]]:
    """The importances of every tensor in `wanted`. Missing ones and other shapes or dtypes are problems."""
    missing = [key for key in wanted if key not in importance.tensors]
    found = {key: importance.tensors[key] for key in wanted if key in importance.tensors}
    shapes = [
        f"{key!r}: the base has {list(wanted[key].shape)}, the importances {list(tensor.shape)}"
        for key, tensor in found.items()
        if tensor.shape != wanted[key].shape
    ]
    integers = [key for key, tensor in found.items() if not tensor.is_float]
    problems = [
        f"{what} {listed([repr(key) for key in names])}"
        for what, names in (("lacks importances of", missing), ("importances must be floating point, not", integers))
        if names
    ]
    problems += [f"shapes differ: {listed(shapes)}"] if shapes else []
    complete = {key: found.get(key, tensor) for key, tensor in wanted.items()}
    return complete, [problem(f"{importance.directory}: {text}", name) for text in problems]


def match_inputs(
    name: str, wanted: Mapping[str, Tensor], known: Mapping[str, Tensor], recorded: Checkpoint
) -> tuple[dict[str, Recorded], list[PlanFinding]]:
    """The recorded inputs of the matrices in `wanted` that have any, also of experts in one tensor: `NAME[expert]`.

    Those of other widths are problems, and those of weights that are not among the `known` ones of the model.
    """
    try:
        places = read_places(recorded.directory)
    except CheckpointError as error:
        return {}, problems_of(error, name)
    found, problems = {}, []
    if strange := [repr(key) for key in places if not {key, (expert_of(key) or (key,))[0]} & known.keys()]:
        problems.append(
            f"{recorded.directory}: inputs.json names weights that the base does not have: {listed(strange)}; were the "
            "inputs recorded with another model?"
        )
    for key, place in places.items():
        tensor, expert = (key, None) if key in wanted else expert_of(key) or (key, None)
        if tensor not in wanted:
            continue
        try:
            inputs, weights = recorded.tensors[place.rows], recorded.tensors[place.weights]
        except KeyError as error:
            problems.append(f"{recorded.directory}: lacks the tensor {error.args[0]!r}, which inputs.json names")
            continue
        shape = wanted[tensor].shape
        if not _fits(shape, expert, inputs, weights, place):
            problems.append(
                f"{recorded.directory}: inputs of shape {list(inputs.shape)} with weights {list(weights.shape)} do not "
                f"fit {key!r} of shape {list(shape)}; were they recorded with another model?"
            )
        elif not (inputs.is_float and weights.is_float):
            problems.append(f"{recorded.directory}: recorded inputs of {key!r} must be floating point")
        else:
            found[key] = Recorded(inputs, weights, place.transposed)
    if not found and not problems and any(len(one.shape) == 2 and one.elements for one in wanted.values()):
        problems = [f"{recorded.directory}: holds no inputs of any layer of this model; run `ramerge calibrate` again"]
    return found, [problem(text, name) for text in problems]


def _fits(shape: Sequence[int], expert: int | None, inputs: Tensor, weights: Tensor, place: InputPlace) -> bool:
    """Whether recorded inputs have the width of a matrix, or of that of an expert."""
    if expert is not None:
        if len(shape) != 3 or expert >= shape[0]:
            return False
        shape = shape[1:]
    if len(shape) != 2 or len(inputs.shape) != 2:
        return False
    return inputs.shape[1] == shape[0 if place.transposed else 1] and weights.shape == inputs.shape[:1]


@dataclass(frozen=True)
class _Difference:
    what: str
    tensors: Sequence[Tensor]
    allowed: bool
    policy: str


def _report(name: str, agent: Checkpoint, differences: Sequence[_Difference]) -> Iterator[PlanFinding]:
    refused = []
    for difference in differences:
        if difference.tensors and difference.allowed:
            yield note(f"{name}: {difference.what} {len(difference.tensors)} tensors ({difference.policy})")
        elif difference.tensors:
            names = listed([f"{tensor.name!r} {list(tensor.shape)}" for tensor in difference.tensors])
            refused.append(f"{difference.what} {names} (allow.{difference.policy})")
    hint = f"; {_RENAME}" if len(refused) > 1 else ""
    for text in refused:
        yield problem(f"{agent.directory}: {text}{hint}", name)


def _check_used(name: str, agent: Checkpoint, sources: Mapping[str, Tensor]) -> Iterator[PlanFinding]:
    places = {id(tensor) for tensor in sources.values()}
    stored = [tensor for tensor in agent.tensors.values() if tensor.is_float] or list(agent.tensors.values())
    used = [tensor for tensor in stored if id(tensor) in places]
    total, taken = (sum(tensor.elements for tensor in tensors) for tensors in (stored, used))
    if not used:
        yield problem(f"{agent.directory}: no tensor of it is used, so it adds nothing to the merge; {_RENAME}", name)
    elif taken < _LITTLE * total:
        text = f"only {taken:,} of its {total:,} elements are used, less than {_LITTLE:.0%}; others are dropped"
        yield warning(f"{agent.directory}: {text}", name)


def _compare(
    name: str, base: Checkpoint, agent: Checkpoint, found: Mapping[str, Tensor], allow: Allow
) -> tuple[dict[str, Tensor], list[PlanFinding]]:
    """The base's tensors of which the agent's has another shape, and which shapes and dtypes differ."""
    kept: dict[str, Tensor] = {}
    findings: list[PlanFinding] = []
    shapes, dtypes, empty, rows = [], [], [], set[int]()
    for tensor in base.tensors.values():
        other = found[tensor.name]
        if allow.vocabulary is not None and is_vocabulary(tensor, other):
            continue
        if tensor.elements and not other.elements:
            empty.append(f"{tensor.name!r} {list(other.shape)}")
            kept[tensor.name] = tensor
        elif other.shape != tensor.shape:
            shapes.append(f"{tensor.name!r}: {_shape_difference(tensor, other)}")
            rows.add(_rows(tensor, other))
            kept[tensor.name] = tensor
        elif other.is_float != tensor.is_float or (not tensor.is_float and other.dtype != tensor.dtype):
            dtypes.append(f"{tensor.name!r}: the base has {tensor.dtype}, the agent {other.dtype}")
    policy = "different_shapes: true keeps the base's"
    if empty:
        findings.append(problem(f"{agent.directory}: has no elements of {listed(empty)}; {UNGATHERED}", name))
    elif shapes and allow.different_shapes:
        findings.append(note(f"{name}: {len(shapes)} tensors of another shape ({policy})"))
    elif shapes and agent.vocabulary is not None and 0 not in rows:
        both = f"{base.directory}+{agent.directory}"
        advice = f"to keep the adapter's rows, write {both} as the model, without a base; in a recipe, {_KEEP}"
        findings.append(problem(f"{agent.directory}: shapes differ: {listed(shapes)} ({advice})", name))
    elif shapes:
        advice = f"{_resize(rows.pop())}; or allow.{policy}" if len(rows) == 1 and 0 not in rows else f"allow.{policy}"
        findings.append(problem(f"{agent.directory}: shapes differ: {listed(shapes)} ({advice})", name))
    if dtypes:
        findings.append(problem(f"{agent.directory}: dtypes cannot be merged: {listed(dtypes)}", name))
    return kept, findings


def _tied_in_agent(base: Checkpoint, agent: Checkpoint) -> dict[str, Tensor]:
    """For output embeddings that the base stores and the agent only ties: the agent's input embedding, by name."""
    if tied_embedding(agent) is None:
        return {}
    absent = [tensor for key, tensor in base.tensors.items() if key not in agent.tensors]
    pairs = [(tensor.name, embedding_of(tensor.name, tensor.shape, agent.tensors.values())) for tensor in absent]
    return {name: embedding for name, embedding in pairs if embedding is not None}


def _tied_in_base(base: Checkpoint, agent: Checkpoint) -> list[tuple[Tensor, Tensor]]:
    """Output embeddings that the agent stores and the base does not, each with the agent's input embedding."""
    extra = [tensor for key, tensor in agent.tensors.items() if key not in base.tensors]
    pairs = [(tensor, embedding_of(tensor.name, tensor.shape, agent.tensors.values())) for tensor in extra]
    return [(tensor, embedding) for tensor, embedding in pairs if embedding is not None]


def _shape_difference(base: Tensor, agent: Tensor) -> str:
    text = f"the base has {list(base.shape)}, the agent {list(agent.shape)}"
    if rows := _rows(base, agent):
        text += f", {abs(rows):,} rows of vocabulary {'more' if rows > 0 else 'fewer'}"
    return text


def _rows(base: Tensor, agent: Tensor) -> int:
    is_vocabulary = base.name.endswith(HEADS + EMBEDDINGS) and base.shape[1:] == agent.shape[1:]
    return agent.shape[0] - base.shape[0] if is_vocabulary else 0


def _resize(rows: int) -> str:
    if rows > 0:
        cut = f"cut the last {rows:,} rows from these tensors of the agent, and set vocab_size as the base has it"
        return f"{_KEEP}; or {cut}"
    more = f"add the base's last {-rows:,} rows to these tensors of the agent, and set vocab_size as the base has it"
    return f"{_KEEP}; or {more}"
