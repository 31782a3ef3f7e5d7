"""Compare the agents' tensors with the base's: missing, extra and tied tensors, different shapes and dtypes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ramerge.core.formats.files import UNGATHERED
from ramerge.core.formats.format import ADAPTER
from ramerge.core.formats.recorded import expert_of, read_places
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.foundation.text import brief_list, quantity
from ramerge.core.planning.findings import PlanFinding, note, problem, problems_of, warning
from ramerge.core.planning.model import InputRecord, Tie
from ramerge.core.planning.vocabulary import is_vocabulary
from ramerge.core.recipe.model import Allow
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.embeddings import embedding_of, tied_embedding
from ramerge.core.tensors.tensor import Tensor

# If less than this share of an agent's elements is used, a warning says so.
_LITTLE = 0.01
_RENAME = "if it has the same tensors under other names, `rename` in the recipe maps these to the base's"
_OTHER_BASE = "the agent may not have been trained from this base; if it was"
_KEEP = "--set allow.vocabulary=common merges the common rows and keeps the others"


@dataclass(frozen=True)
class AgentTensors:
    """An agent's counterparts of the base's tensors.

    Attributes:
        tensors: for each tensor of the base, the agent's tensor, or the base's own if the agent does not change it.
        ties: output embeddings that the agent stores although the base ties them.
    """

    tensors: Mapping[str, Tensor]
    ties: tuple[Tie, ...]


def match(name: str, base: Checkpoint, agent: Checkpoint, allow: Allow) -> tuple[AgentTensors, list[PlanFinding]]:
    """Compare an agent's tensors with the base's. Return the agent's counterparts, and findings."""
    absent = [tensor for key, tensor in base.tensors.items() if key not in agent.tensors]
    unknown = [tensor for key, tensor in agent.tensors.items() if key not in base.tensors]
    # output embeddings that the base stores but the agent ties, then those that the agent stores but the base ties
    ties_of_absent = _tied_tensors(absent, agent) if tied_embedding(agent) is not None else {}
    ties = tuple(Tie(name, agent.tensors[head], embedding) for head, embedding in _tied_tensors(unknown, agent).items())
    heads = {tie.head.name for tie in ties}
    missing = [tensor for tensor in absent if tensor.name not in ties_of_absent]
    extra = [tensor for tensor in unknown if tensor.name not in heads]
    findings = [
        note(f"{name}: {head!r} is tied to {one.name!r}, which is used in its place")
        for head, one in ties_of_absent.items()
    ]
    findings += [
        note(f"{name}: {t.head.name!r} must equal {t.embedding.name!r}, because the base ties them; it is dropped")
        for t in ties
    ]
    refusals = []
    for what, tensors, is_allowed, policy in (
        ("lacks", missing, allow.missing_tensors, "missing_tensors: true keeps the base's"),
        ("has tensors unknown to the base:", extra, allow.extra_tensors, "extra_tensors: true drops them"),
    ):
        if tensors and is_allowed:
            findings.append(note(f"{name}: {what} {quantity(len(tensors), 'tensor')} ({policy})"))
        elif tensors:
            override = policy.replace(": ", "=", 1)
            names = brief_list([f"{tensor.name!r} {list(tensor.shape)}" for tensor in tensors])
            if agent.format == ADAPTER and tensors is extra:
                refusals.append(
                    f"trained {names}, which the base does not have; give a base that has it, such as a head "
                    "of this kind"
                )
                continue
            refusals.append(f"{what} {names}; {_OTHER_BASE}, --set allow.{override}")
    hint = f"; {_RENAME}" if len(refusals) > 1 else ""
    findings += [problem(f"{agent.directory}: {text}{hint}", name) for text in refusals]
    counterparts = {**agent.tensors, **ties_of_absent, **{tensor.name: tensor for tensor in missing}}
    like_base, differences = _compare_shapes(name, base, agent, counterparts, allow)
    sources = {key: like_base.get(key, counterparts[key]) for key in base.tensors}
    usage = [] if any(one.kind == "problem" for one in differences) else _check_usage(name, agent, sources)
    return AgentTensors(sources, ties), [*findings, *differences, *usage]


def _tied_tensors(tensors: Iterable[Tensor], agent: Checkpoint) -> dict[str, Tensor]:
    """The output embeddings among `tensors`, by name, each with the agent's input embedding."""
    pairs = [(each.name, embedding_of(each.name, each.shape, agent.tensors.values())) for each in tensors]
    return {name: embedding for name, embedding in pairs if embedding is not None}


def match_importance(
    name: str, tensors: Mapping[str, Tensor], importance: Checkpoint, *, untied: bool
) -> tuple[dict[str, Tensor], list[PlanFinding]]:
    """The importances of each tensor in `tensors`. Missing importances, other shapes and integer dtypes are problems.

    Args:
        untied: whether the base was untied, so that importances of one embedding may serve for both.
    """
    importances = {key: importance.tensors[key] for key in tensors if key in importance.tensors}
    for key in tensors.keys() - importances.keys() if untied else ():
        if (embedding := embedding_of(key, tensors[key].shape, importance.tensors.values())) is not None:
            importances[key] = embedding
    missing = [key for key in tensors if key not in importances]
    shapes = [
        f"{key!r}: the base has {list(tensors[key].shape)}, the importances {list(tensor.shape)}"
        for key, tensor in importances.items()
        if tensor.shape != tensors[key].shape
    ]
    integers = [key for key, tensor in importances.items() if not tensor.is_float]
    problems = []
    if missing:
        lacking = brief_list([repr(key) for key in missing])
        problems.append(f"lacks importances of {lacking}; `ramerge calibrate --gather importance` writes all of them")
    if integers:
        problems.append(f"importances must be floating point, not {brief_list([repr(key) for key in integers])}")
    problems += [f"shapes differ: {brief_list(shapes)}"] if shapes else []
    complete = {key: importances.get(key, tensor) for key, tensor in tensors.items()}
    return complete, [problem(f"{importance.directory}: {text}", name) for text in problems]


def match_inputs(
    name: str, tensors: Mapping[str, Tensor], base: Checkpoint, record: Checkpoint
) -> tuple[dict[str, InputRecord], list[PlanFinding]]:
    """The recorded inputs of matrices in `tensors`, and of experts that are stacked in one tensor (`NAME[expert]`).

    Inputs of the wrong width, and inputs of weights that the base lacks, are problems.
    """
    try:
        places = read_places(record.directory)
    except CheckpointError as error:
        return {}, problems_of(error, name)
    records, problems = {}, []
    if strange := [repr(key) for key in places if not {key, (expert_of(key) or (key,))[0]} & base.tensors.keys()]:
        problems.append(
            f"{record.directory}: inputs.json names weights that the base does not have: {brief_list(strange)}; were "
            "the inputs recorded with another model?"
        )
    for key, place in places.items():
        tensor, expert = (key, None) if key in tensors else expert_of(key) or (key, None)
        if tensor not in tensors:
            continue
        try:
            inputs, weights = record.tensors[place.rows], record.tensors[place.weights]
        except KeyError as error:
            problems.append(f"{record.directory}: lacks the tensor {error.args[0]!r}, which inputs.json names")
            continue
        shape = matrix = tensors[tensor].shape
        if expert is not None:
            matrix = shape[1:] if len(shape) == 3 and expert < shape[0] else ()
        transposed = bool(base.orientation.of(tensor)) if place.transposed is None else place.transposed
        fits = len(matrix) == 2 and inputs.shape[1:] == (matrix[0 if transposed else 1],)
        if not fits or weights.shape != inputs.shape[:1]:
            problems.append(
                f"{record.directory}: inputs of shape {list(inputs.shape)} with weights {list(weights.shape)} do not "
                f"fit {key!r} of shape {list(shape)}; were they recorded with another model?"
            )
        elif not (inputs.is_float and weights.is_float):
            problems.append(f"{record.directory}: recorded inputs of {key!r} must be floating point")
        else:
            records[key] = InputRecord(inputs, weights, transposed)
    if not records and not problems and any(len(one.shape) == 2 and one.elements for one in tensors.values()):
        problems = [f"{record.directory}: holds no inputs of any layer of this model; run `ramerge calibrate` again"]
    return records, [problem(text, name) for text in problems]


def _check_usage(name: str, agent: Checkpoint, sources: Mapping[str, Tensor]) -> Iterator[PlanFinding]:
    places = {id(tensor) for tensor in sources.values()}
    relevant_tensors = [tensor for tensor in agent.tensors.values() if tensor.is_float] or list(agent.tensors.values())
    used_tensors = [tensor for tensor in relevant_tensors if id(tensor) in places]
    total, used_elements = (sum(tensor.elements for tensor in tensors) for tensors in (relevant_tensors, used_tensors))
    if not used_tensors:
        yield problem(f"{agent.directory}: no tensor of it is used, so it adds nothing to the merge; {_RENAME}", name)
    elif used_elements < _LITTLE * total:
        text = f"only {used_elements:,} of its {total:,} elements are used, less than {_LITTLE:.0%}; others are dropped"
        yield warning(f"{agent.directory}: {text}", name)


def _compare_shapes(
    name: str, base: Checkpoint, agent: Checkpoint, tensors: Mapping[str, Tensor], allow: Allow
) -> tuple[dict[str, Tensor], list[PlanFinding]]:
    """The base's tensors that replace the agent's because of another shape, and findings on shapes and dtypes."""
    like_base: dict[str, Tensor] = {}
    findings: list[PlanFinding] = []
    shapes, dtypes, empty, rows = [], [], [], set[int]()
    for tensor in base.tensors.values():
        other = tensors[tensor.name]
        if allow.vocabulary is not None and is_vocabulary(tensor, other):
            continue
        if tensor.elements and not other.elements:
            empty.append(f"{tensor.name!r} {list(other.shape)}")
            like_base[tensor.name] = tensor
        elif other.shape != tensor.shape:
            more = other.shape[0] - tensor.shape[0] if is_vocabulary(tensor, other) else 0
            text = f"{tensor.name!r}: the base has {list(tensor.shape)}, the agent {list(other.shape)}"
            if more:
                kind = f"row{'s' if abs(more) > 1 else ''} of vocabulary"
                text += f" ({abs(more):,} {kind} {'more' if more > 0 else 'fewer'})"
            elif len(tensor.shape) > 2 and other.shape == (tensor.shape[0], *tensor.shape[2:], tensor.shape[1]):
                text += " (channels last, as MLX stores convolutions: give the model as its trainer saved it)"
            shapes.append(text)
            rows.add(more)
            like_base[tensor.name] = tensor
        elif other.is_float != tensor.is_float or (not tensor.is_float and other.dtype != tensor.dtype):
            dtypes.append(f"{tensor.name!r}: the base has {tensor.dtype}, the agent {other.dtype}")
    policy = "different_shapes: true keeps the base's"
    override = "--set allow.different_shapes=true keeps the base's"
    if empty:
        findings.append(problem(f"{agent.directory}: is empty in {brief_list(empty)}; {UNGATHERED}", name))
    elif shapes and allow.different_shapes:
        findings.append(note(f"{name}: {quantity(len(shapes), 'tensor')} of another shape ({policy})"))
    elif shapes and agent.vocabulary is not None and 0 not in rows:
        both = f"{base.directory}+{agent.directory}"
        advice = f"in a merge, {_KEEP}; to convert it, write {both} as the model, without a base"
        findings.append(problem(f"{agent.directory}: shapes differ: {brief_list(shapes)}; {advice}", name))
    elif shapes:
        advice = f"; {_OTHER_BASE}, {override}"
        if len(rows) == 1 and (more := rows.pop()) != 0:
            last = "last row" if abs(more) == 1 else f"last {abs(more):,} rows"
            do = f"cut the {last} from" if more > 0 else f"add the base's {last} to"
            resize = f"{do} these tensors of the agent, and set its vocab_size to that of the base"
            advice = f"; {_KEEP}; or {resize}; or {override}"
        findings.append(problem(f"{agent.directory}: shapes differ: {brief_list(shapes)}{advice}", name))
    if dtypes:
        findings.append(problem(f"{agent.directory}: dtypes cannot be merged: {brief_list(dtypes)}", name))
    return like_base, findings
