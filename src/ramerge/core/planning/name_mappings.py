"""Map an agent's tensors to the base's names: first by the recipe's rules, then by common conventions.

A text model alone lacks the prefix that it has inside a vision model: `tensors.prefixes` finds prefixes from names and
shapes. Trainers store the names of modules in memory, while `save_pretrained` stores the names used in files. Some
models store all experts in one tensor, others store one tensor per expert. These conventions are rows of tables:
`tensors.name_aliases` for names, `FUSIONS` for tensors that are split or joined. `planning.absences` lists tensors that
one of the models may lack.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from time import monotonic

from ramerge.core.foundation.text import brief_list, quantity, quoted
from ramerge.core.planning.absences import is_buffer, known_absences
from ramerge.core.planning.findings import PlanFinding, note, problem
from ramerge.core.recipe.document import Key
from ramerge.core.recipe.model import Recipe, Rename
from ramerge.core.recipe.patterns import replace_all
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.embeddings import HEADS
from ramerge.core.tensors.name_aliases import interleaves_gates, name_aliases
from ramerge.core.tensors.origins import Pieces, PlacedPiece, Transposed, box_of, reshaped
from ramerge.core.tensors.prefixes import align, stack_of
from ramerge.core.tensors.tensor import Tensor
from ramerge.core.tensors.text_config import path_to

# The time limit for renaming all tensors of an agent; a hundred thousand names take a fraction of a second.
_SECONDS = 5


def fit_agents(
    recipe: Recipe, base: Checkpoint, agents: Mapping[str, Checkpoint]
) -> tuple[dict[str, Checkpoint], list[PlanFinding]]:
    """Rename the agents' tensors to the base's names, by the recipe's rules and by conventions.

    The rules of the recipe apply first, one after another. A rule without a match is a problem, and so is an ambiguous
    name.
    """
    uses: set[int] = set()
    fitting_agents: dict[str, Checkpoint] = {}
    findings: list[PlanFinding] = []
    for name, agent in agents.items():
        agent_with_new_names, problems = _apply_renames(name, agent, recipe.rename, uses)
        fit = _fit_names(base, agent_with_new_names)
        findings += problems
        findings += [note(f"{name}: {text}") for text in fit.notes]
        findings += [problem(f"{agent.directory}: {text}", name) for text in fit.problems]
        fitting_agents[name] = replace(agent, tensors=fit.tensors)
    findings += [
        problem(
            f"{quoted(rule.pattern)}: matches no name of a tensor of {rule.agent or 'any agent'}", _key_of_rule(number)
        )
        for number, rule in enumerate(recipe.rename)
        if number not in uses
    ]
    return fitting_agents, findings


def _apply_renames(
    name: str, agent: Checkpoint, rules: Sequence[Rename], uses: set[int]
) -> tuple[Checkpoint, Sequence[PlanFinding]]:
    """Rename an agent's tensors by the recipe's rules; leave it unchanged if a rule fails.

    Args:
        uses: gets the numbers of rules that match a name.
    """
    names = {old: old for old in agent.tensors}
    deadline = monotonic() + _SECONDS
    for number, rule in enumerate(rules):
        if rule.agent in (None, name):
            try:
                new_names = {old: replace_all(rule.pattern, rule.to, new, deadline) for old, new in names.items()}
            except ValueError as error:
                uses.add(number)
                return agent, [problem(f"{quoted(rule.pattern)}: {error}", _key_of_rule(number))]
            uses |= {number} if names != new_names else set()
            names = new_names
    if twice := [new for new, count in Counter(names.values()).items() if count > 1]:
        text = f"{agent.directory}: rename gives several tensors the name {brief_list([quoted(new) for new in twice])}"
        return agent, [problem(text, name)]
    tensors = {new: agent.tensors[old] for old, new in names.items()}
    tensors = {new: each if each.name == new else replace(each, name=new) for new, each in tensors.items()}
    return replace(agent, tensors=tensors), []


def _key_of_rule(rule: int) -> Key:
    return ("rename", str(rule))


@dataclass(frozen=True)
class _Fusion:
    """A convention by which several matrices are stored as one, concatenated by rows.

    Attributes:
        whole: the name of the one tensor; `{stem}` stands for any beginning.
        parts: the names of the parts in order. With `{expert}`, each expert has its own parts, and `whole` has a
            leading dimension for experts.
        why: the convention, as text for notes.
    """

    whole: str
    parts: tuple[str, ...]
    why: str

    @property
    def is_of_experts(self) -> bool:
        """Whether each expert has its own parts."""
        return "{expert}" in self.parts[0]

    def names(self, stem: str, expert: int = 0) -> list[str]:
        """The names of the parts."""
        return [part.format(stem=stem, expert=expert) for part in self.parts]


_EXPERTS = "all experts in one tensor, as transformers 5 has them in memory, or each its own, as in files"
_PRIME = "experts as prime-rl has them in training"
_ROWS = "projections in one tensor, or each its own"
_EXPERT = "{stem}.experts.{expert}"

FUSIONS = (
    _Fusion("{stem}.experts.gate_up_proj", (f"{_EXPERT}.gate_proj.weight", f"{_EXPERT}.up_proj.weight"), _EXPERTS),
    _Fusion("{stem}.experts.down_proj", (f"{_EXPERT}.down_proj.weight",), _EXPERTS),
    _Fusion("{stem}.experts.up_proj", (f"{_EXPERT}.up_proj.weight",), _EXPERTS),
    _Fusion("{stem}.experts.gate_up_proj", (f"{_EXPERT}.w1.weight", f"{_EXPERT}.w3.weight"), _EXPERTS),
    _Fusion("{stem}.experts.down_proj", (f"{_EXPERT}.w2.weight",), _EXPERTS),
    *(
        _Fusion(f"{{stem}}.experts.{short}", (f"{_EXPERT}.{part}.weight",), _PRIME)
        for short, long in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj"))
        for part in (long, short)
    ),
    _Fusion("{stem}.experts.gate_up_proj", ("{stem}.experts.w1", "{stem}.experts.w3"), _PRIME),
    *(
        _Fusion(f"{{stem}}.{whole}.{kind}", tuple(f"{{stem}}.{part}.{kind}" for part in parts), _ROWS)
        for whole, parts in (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("gate_proj", "up_proj")))
        for kind in ("weight", "bias")
    ),
)


@dataclass
class _MappedTensors:
    """An agent's tensors under the base's names.

    Attributes:
        tensors: tensors by the base's name; tensors without a counterpart keep their own name.
    """

    tensors: dict[str, Tensor]
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def _fit_names(base: Checkpoint, agent: Checkpoint) -> _MappedTensors:
    """Find the counterparts of an agent's tensors whose names differ from the base's.

    Tensors whose names the base has, too, keep them.
    """
    fit = _MappedTensors(dict(agent.tensors))
    if not base.tensors.keys() >= agent.tensors.keys():
        _replace_prefixes(base, agent, fit)
    _transpose_stacks(base, fit)
    unknown = [tensor for name, tensor in fit.tensors.items() if name not in base.tensors]
    missing = [tensor for name, tensor in base.tensors.items() if name not in fit.tensors]
    if unknown:
        candidates = _UnmatchedTensors(unknown, missing, base)
        taking_turns = interleaves_gates(base.config) or interleaves_gates(agent.config)
        for tensor in missing:
            _find_counterpart(tensor, candidates, fit, taking_turns)
        for used_name in candidates.used_names:
            del fit.tensors[used_name]
        fit.notes += candidates.notes
        fit.problems += [
            f"{text} {brief_list(list(names))}; base and agent need the same experts"
            for text, names in candidates.incomplete.items()
        ]
    for name, tensor in base.tensors.items():
        other = fit.tensors.get(name)
        if other is not None and (other.dtype, other.shape) != (tensor.dtype, tensor.shape) and is_buffer(tensor):
            del fit.tensors[name]
    lacking, text = _absence_reasons(base.tensors, fit.tensors, (base.config, agent.config))
    fit.tensors |= {name: base.tensors[name] for name in lacking}
    fit.notes += [f"lacks {text}; the base's are used"] if lacking else []
    extra, text = _absence_reasons(fit.tensors, base.tensors, (agent.config, base.config))
    for name in extra:
        del fit.tensors[name]
    fit.notes += [f"has {text}, which the base does not have; they are dropped"] if extra else []
    return fit


def _find_counterpart(
    tensor_of_base: Tensor, candidates: _UnmatchedTensors, fit: _MappedTensors, taking_turns: bool
) -> None:
    """Find the agent's counterpart of a tensor of the base, and add it to `fit`.

    Args:
        taking_turns: whether rows of gate and up alternate in a fused tensor of the base or the agent.
    """
    matches = candidates.get(tensor_of_base.name)
    if len(matches) > 1:
        names = " and ".join(quoted(tensor.name) for tensor in matches)
        fit.problems.append(f"both {names} may be the base's {quoted(tensor_of_base.name)}; say which one with rename")
    elif matches and (other := candidates.whole.get(matches[0].name)) is not None:
        text = f"{quoted(matches[0].name)} may be the base's {quoted(other)} and its {quoted(tensor_of_base.name)}"
        fit.problems.append(f"{text}; say which one with rename")
    elif matches:
        one = matches[0]
        candidates.whole[one.name] = tensor_of_base.name
        candidates.use(one, tensor_of_base, candidates.reason(tensor_of_base.name, one))
        if one.shape == (1, *tensor_of_base.shape):  # one shared expert, stored as a stack of one
            one = reshaped(one, tensor_of_base.shape)
        elif one.shape != tensor_of_base.shape and one.shape == (
            *tensor_of_base.shape[:1],
            *tensor_of_base.shape[:0:-1],
        ):
            one = Tensor(one.name, one.dtype, tensor_of_base.shape, Transposed(one))
        fit.tensors[tensor_of_base.name] = one
    else:
        fusions = ((fusion, tensor) for fusion in FUSIONS for tensor in candidates.fusions_of(fusion, tensor_of_base))
        fusion, tensor = next(fusions, (None, None))
        if fusion is not None and tensor is not None:
            fit.tensors[tensor_of_base.name] = tensor
            if taking_turns and ".experts." in fusion.whole and len(fusion.parts) > 1:
                fit.problems.append(
                    f"{quoted(tensor_of_base.name)}: rows of gate and up take turns in the experts.gate_up_proj of "
                    "gpt-oss, and one of base and agent has them as tensors of their own, in an order that nothing "
                    "says; save the agent in the base's layout"
                )
        elif candidates.reports_incomplete(tensor_of_base):
            fit.tensors[tensor_of_base.name] = tensor_of_base


class _UnmatchedTensors:
    """Tensors of an agent whose names the base does not have, under all their aliases."""

    def __init__(self, tensors: Sequence[Tensor], missing: Iterable[Tensor], base: Checkpoint) -> None:
        self.base = base
        self.missing = {tensor.name for tensor in missing}
        self.whole: dict[str, str] = {}  # for each tensor that was used as a whole, the base's name
        self._by_alias: dict[str, dict[str, tuple[Tensor, tuple[str, ...]]]] = {}
        self._experts: dict[tuple[str, str], int] = {}
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self.used_names: dict[str, None] = {}
        self.incomplete: dict[str, dict[str, None]] = {}  # which experts are missing, and from which tensors
        for tensor in tensors:
            for name, reasons in name_aliases(tensor.name).items():
                self._by_alias.setdefault(name, {})[tensor.name] = tensor, reasons

    def get(self, name: str) -> list[Tensor]:
        """The agent's tensors that have this name as an alias; only those with the fewest steps from name to alias."""
        matches = self._by_alias.get(name, {}).values()
        least = min((len(reasons) for _, reasons in matches), default=0)
        return [tensor for tensor, reasons in matches if len(reasons) == least]

    def reason(self, name: str, tensor: Tensor) -> str:
        return "; ".join(dict.fromkeys(self._by_alias[name][tensor.name][1]))

    def use(self, tensor: Tensor, tensor_of_base: Tensor, why: str) -> None:
        self.used_names[tensor.name] = None
        self._counts[why] += 1
        self._examples.setdefault(why, f"{quoted(tensor.name)} is the base's {quoted(tensor_of_base.name)}")

    @property
    def notes(self) -> list[str]:
        return [
            f"{count:,} tensor{'s' if count > 1 else ''} under other names ({why}): {self._examples[why]}"
            for why, count in self._counts.items()
        ]

    def fusions_of(self, fusion: _Fusion, tensor_of_base: Tensor) -> Iterator[Tensor]:
        """Make the base's tensor from several tensors of the agent, or from a part of one, by one of `FUSIONS`."""
        if (match := _alias_pattern(fusion.whole).fullmatch(tensor_of_base.name)) is not None:
            transposed = _is_square(tensor_of_base.shape[1:]) and self.gates_are_transposed(match["stem"])
            yield from self.fuse(fusion, match["stem"], tensor_of_base, transposed=transposed)
        for place, part in enumerate(fusion.parts):
            if (match := _alias_pattern(part).fullmatch(tensor_of_base.name)) is not None:
                expert = int(match["expert"]) if fusion.is_of_experts else 0
                # ambiguous if the agent also has one of the parts by itself
                if self.missing.issuperset(fusion.names(match["stem"], expert)):
                    yield from self.extract_part(fusion, match["stem"], expert, place, tensor_of_base)

    def fuse(self, fusion: _Fusion, stem: str, tensor_of_base: Tensor, *, transposed: bool) -> Iterator[Tensor]:
        """Join the agent's parts to the base's one tensor.

        Args:
            transposed: whether a square matrix has rows and columns exchanged, which its shape does not show.
        """
        matrices = self.matrices(fusion, stem, tensor_of_base)
        if not matrices:
            return
        front = tensor_of_base.shape[:1] if len(tensor_of_base.shape) > len(matrices[0][0].shape) else ()
        rows, rest = sum(part.shape[0] for part in matrices[0]), matrices[0][0].shape[1:]
        axes_differ = len(rest) == 1 and tensor_of_base.shape == (*front, *rest, rows)
        transposed = axes_differ and (transposed or tensor_of_base.shape != (*front, rows, *rest))
        shapes = {tuple(part.shape for part in row) for row in matrices}
        dtypes = {part.dtype for row in matrices for part in row}
        fits = transposed or tensor_of_base.shape == (*front, rows, *rest)
        if not fits or len(shapes) > 1 or len(dtypes) > 1 or any(part.shape[1:] != rest for part in matrices[0]):
            return
        pieces = []
        for expert, row in enumerate(matrices):
            start = 0
            for part in row:
                place = (0, start) if transposed else (start, *(0 for _ in rest))
                self.use(part, tensor_of_base, fusion.why)
                piece = Tensor(part.name, part.dtype, (*rest, part.shape[0]), Transposed(part)) if transposed else part
                if front:
                    piece = reshaped(piece, (1, *piece.shape))
                pieces.append(PlacedPiece((expert, *place) if front else place, piece))
                start += part.shape[0]
        yield Tensor(tensor_of_base.name, dtypes.pop(), tensor_of_base.shape, Pieces(tuple(pieces)))

    def rows(self, fusion: _Fusion, stem: str, tensor_of_base: Tensor) -> list[list[list[Tensor]]]:
        """The candidates for each part: of each expert, or of the only matrix."""
        count = tensor_of_base.shape[0] if fusion.is_of_experts and tensor_of_base.shape else 1
        return [[self.get(name) for name in fusion.names(stem, expert)] for expert in range(count)]

    def matrices(self, fusion: _Fusion, stem: str, tensor_of_base: Tensor) -> list[list[Tensor]]:
        """The parts of each expert, or of the only matrix; empty if some are missing or ambiguous."""
        parts = self.rows(fusion, stem, tensor_of_base)
        if not parts or not all(len(each) == 1 and each[0].shape for row in parts for each in row):
            return []
        rows = [[each[0] for each in row] for row in parts]
        stacks = rows[0]
        are_stacks = all(len(stack.shape) == 3 and stack.shape[0] == tensor_of_base.shape[0] for stack in stacks)
        if len(tensor_of_base.shape) != 3 or not are_stacks:
            return rows
        return [
            [reshaped(box_of(stack, (expert, 0, 0), (1, *stack.shape[1:])), stack.shape[1:]) for stack in stacks]
            for expert in range(tensor_of_base.shape[0])
        ]

    def extract_part(
        self, fusion: _Fusion, stem: str, expert: int, place: int, tensor_of_base: Tensor
    ) -> Iterator[Tensor]:
        """Extract a part from the agent's one tensor; `place` is the index of the part in `fusion.parts`."""
        wholes = self.get(fusion.whole.format(stem=stem))
        if len(wholes) != 1 or not tensor_of_base.shape:
            return
        whole, front = wholes[0], (expert,) if fusion.is_of_experts else ()
        siblings = [self.base.tensors.get(name) for name in fusion.names(stem, expert)]
        heights = [sibling.shape[0] if sibling and sibling.shape else 0 for sibling in siblings]
        start, rows = sum(heights[:place]), sum(heights)
        height, *rest = tensor_of_base.shape
        inner, ones = whole.shape[len(front) :], (1,) * len(front)
        if len(whole.shape) != len(front) + len(tensor_of_base.shape):
            return
        if front and self.experts(fusion, stem) != whole.shape[0]:
            return
        if inner == (rows, *rest) and not (_is_square(inner) and self.gates_are_transposed(stem)):
            self.use(whole, tensor_of_base, fusion.why)
            part = box_of(whole, (*front, start, *(0 for _ in rest)), (*ones, height, *rest))
            yield replace(reshaped(part, tensor_of_base.shape), name=tensor_of_base.name)
        elif len(rest) == 1 and inner == (*rest, rows):
            self.use(whole, tensor_of_base, fusion.why)
            part = box_of(whole, (*front, 0, start), (*ones, *rest, height))
            yield Tensor(
                tensor_of_base.name, whole.dtype, tensor_of_base.shape, Transposed(reshaped(part, (*rest, height)))
            )

    def experts(self, fusion: _Fusion, stem: str) -> int:
        """The number of experts with separate tensors in the base."""
        key = fusion.parts[0], stem
        if key not in self._experts:  # cached, because it is called for each expert
            absent_numbers = (n for n in itertools.count() if fusion.names(stem, n)[0] not in self.base.tensors)
            self._experts[key] = next(absent_numbers)
        return self._experts[key]

    def reports_incomplete(self, tensor_of_base: Tensor) -> bool:
        """Whether a tensor has no counterpart only because the numbers of experts differ; adds it to `incomplete`."""
        for fusion in (fusion for fusion in FUSIONS if fusion.is_of_experts):
            if (match := _alias_pattern(fusion.whole).fullmatch(tensor_of_base.name)) is not None:
                rows = self.rows(fusion, match["stem"], tensor_of_base)
                lacking = [f"{expert}" for expert, row in enumerate(rows) if not all(row)]
                if 0 < len(lacking) < len(rows):
                    text = (
                        f"lacks tensors of expert{'s' if len(lacking) > 1 else ''} {brief_list(lacking)} in the base's"
                    )
                    self.refuse(text, tensor_of_base, itertools.chain(*rows))
                    return True
            for part in fusion.parts:
                if (match := _alias_pattern(part).fullmatch(tensor_of_base.name)) is not None:
                    whole = self.get(fusion.whole.format(stem=match["stem"]))
                    count = self.experts(fusion, match["stem"])
                    if len(whole) == 1 and len(whole[0].shape) == 3 and whole[0].shape[0] != count:
                        text = f"has {whole[0].shape[0]} experts instead of the base's {count} in"
                        self.refuse(text, whole[0], [whole])
                        return True
        return False

    def refuse(self, text: str, stack: Tensor, parts: Iterable[Sequence[Tensor]]) -> None:
        """Add a sentence about a stack of experts; the agent's tensors for it are not reported again."""
        self.incomplete.setdefault(text, {})[f"{quoted(stack.name)} {list(stack.shape)}"] = None
        self.used_names |= {tensor.name: None for tensors in parts for tensor in tensors}

    def gates_are_transposed(self, stem: str) -> bool:
        """Whether rows and columns of the experts' gates are exchanged between base and agent.

        For other tensors of the same experts that are square, so that their shapes do not show it.
        """
        for fusion in FUSIONS:
            if fusion.is_of_experts and len(fusion.parts) > 1:
                name, part = fusion.whole.format(stem=stem), fusion.names(stem)[0]
                for wholes, parts in (
                    ([self.base.tensors.get(name)], self.get(part)),
                    (self.get(name), [self.base.tensors.get(part)]),
                ):
                    whole, single = next(iter(wholes), None), next(iter(parts), None)
                    if whole is not None and single is not None and len(single.shape) == 2:
                        return whole.shape[1:] != (len(fusion.parts) * single.shape[0], single.shape[1])
        return False


@cache
def _alias_pattern(template: str) -> re.Pattern[str]:
    text = re.escape(template)
    text = text.replace(re.escape("{stem}"), r"(?P<stem>.*)").replace(re.escape("{expert}"), r"(?P<expert>\d{1,6})")
    return re.compile(text)


def _is_square(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[0] == shape[1]


_EXPERT_STACK = re.compile(r".*\.experts\.(gate_up_proj|down_proj)")


def _transpose_stacks(base: Checkpoint, fit: _MappedTensors) -> None:
    """Transpose stacks of experts that the agent stores under the base's names, but with rows and columns exchanged."""
    stacks = {
        name: tensor
        for name, tensor in base.tensors.items()
        if len(tensor.shape) == 3 and _EXPERT_STACK.fullmatch(name) and name in fit.tensors
    }
    transposed_names = {
        name
        for name, tensor in stacks.items()
        if fit.tensors[name].shape != tensor.shape
        if fit.tensors[name].shape == (tensor.shape[0], tensor.shape[2], tensor.shape[1])
    }
    # the shape of square matrices does not show it, but that of the other tensor of the same experts does
    modules = {name.rpartition(".")[0] for name in transposed_names}
    transposed_names |= {
        name for name, tensor in stacks.items() if name.rpartition(".")[0] in modules and _is_square(tensor.shape[1:])
    }
    for name in sorted(transposed_names):
        other = fit.tensors[name]
        fit.tensors[name] = Tensor(name, other.dtype, stacks[name].shape, Transposed(other))
    if transposed_names:
        are = quantity(len(transposed_names), "tensor of experts is", "tensors of experts are")
        fit.notes.append(f"{are} stored with rows and columns exchanged")


def _replace_prefixes(base: Checkpoint, agent: Checkpoint, fit: _MappedTensors) -> None:
    """Replace prefixes of the agent's names by the base's prefixes for the same layers."""
    unknown = {name: tensor.shape for name, tensor in agent.tensors.items() if name not in base.tensors}
    missing = {name: tensor.shape for name, tensor in base.tensors.items() if name not in agent.tensors}
    path = path_to(base.config, agent.config.get("model_type")) or path_to(agent.config, base.config.get("model_type"))
    names, prefixes = align(
        unknown,
        missing,
        fixed_stacks=set(map(stack_of, base.tensors)),
        preferences=[key.removesuffix("_config") for key in path],
    )
    # an output embedding that the base ties is not among the missing tensors, but has the same prefix
    for head in (name for name in unknown if name.endswith(HEADS) and name not in names):
        new_head = next((new + head[len(old) :] for old, new in prefixes.items() if old and head.startswith(old)), head)
        if new_head != head and new_head.endswith(HEADS) and new_head not in (*base.tensors, *names.values()):
            names[head] = new_head
    names = {old: new for old, new in names.items() if new not in agent.tensors}
    for old, new in names.items():
        fit.tensors[new] = replace(fit.tensors.pop(old), name=new)
    if names:
        examples = ", ".join(_prefix_change_text(old, new) for old, new in itertools.islice(prefixes.items(), 3))
        fit.notes.append(f"{quantity(len(names), 'tensor')} under other prefixes: {examples}")


def _prefix_change_text(old: str, new: str) -> str:
    """The text for notes about a prefix that differs from the base's."""
    if not new:
        return f"{quoted(old)} is dropped, as the base has none"
    if not old:
        return f"{quoted(new)} is put before them, as in the base"
    return f"{quoted(old)} is the base's {quoted(new)}"


def _absence_reasons(
    tensors: Mapping[str, Tensor], others: Container[str], configs: Sequence[Mapping[str, object]]
) -> tuple[dict[str, str], str]:
    """The reasons for optional tensors that `others` lacks, by name; and a text with their numbers by reason."""
    absent = [tensor for name, tensor in tensors.items() if name not in others]
    reasons: dict[str, str] = {}
    for why, names in known_absences(tensors, absent, configs) if absent else ():
        reasons |= {name: why for name in names if name not in reasons}
    counts, first = Counter(reasons.values()), {why: name for name, why in reversed(list(reasons.items()))}
    return reasons, "; ".join(
        f"{count:,} tensor{'s' if count > 1 else ''} such as {quoted(first[why])} ({why})"
        for why, count in counts.items()
    )
