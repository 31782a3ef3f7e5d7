"""An agent's tensors under the base's names: first by the recipe's own rules, then by conventions.

A text model by itself lacks the prefix that it has inside of a vision model: `tensors.prefixes` finds prefixes from
names and shapes. A trainer stores the names of its modules, `save_pretrained` the names of files, and experts are one
tensor here and many there. Each of these conventions is a row of a table: `tensors.name_aliases` has names, `FUSIONS`
arrangements. What one side need not have is in `planning.absences`.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from time import monotonic

from ramerge.core.foundation.text import brief_list, quoted
from ramerge.core.planning.absences import is_buffer, known_absences
from ramerge.core.planning.findings import PlanFinding, note, problem
from ramerge.core.recipe.document import Key
from ramerge.core.recipe.model import Recipe, Rename
from ramerge.core.recipe.patterns import replace_all
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.embeddings import HEADS
from ramerge.core.tensors.name_aliases import interleaves_gates, name_aliases
from ramerge.core.tensors.origins import Pieces, PlacedPiece, Transposed, box_of, reshaped
from ramerge.core.tensors.prefixes import aligned, stack_of
from ramerge.core.tensors.tensor import Tensor
from ramerge.core.tensors.text_config import path_to

# For all names of an agent; a hundred thousand names take a fraction of a second.
_SECONDS = 5


def fit_agents(
    recipe: Recipe, base: Checkpoint, agents: Mapping[str, Checkpoint]
) -> tuple[dict[str, Checkpoint], list[PlanFinding]]:
    """The agents, with the base's names where the recipe or a convention gives them. Notes say so.

    Rules of the recipe apply first, one after another. A rule that catches nothing is a problem, as is a name that
    is not clear.
    """
    uses: set[int] = set()
    fitted: dict[str, Checkpoint] = {}
    findings: list[PlanFinding] = []
    for name, agent in agents.items():
        renamed, problems = _rename(name, agent, recipe.rename, uses)
        found = _fit(base, renamed)
        findings += problems
        findings += [note(f"{name}: {text}") for text in found.notes]
        findings += [problem(f"{agent.directory}: {text}", name) for text in found.problems]
        fitted[name] = replace(agent, tensors=found.tensors)
    findings += [
        problem(f"{quoted(rule.pattern)}: matches no name of a tensor of {rule.agent or 'any agent'}", _key(number))
        for number, rule in enumerate(recipe.rename)
        if number not in uses
    ]
    return fitted, findings


def _rename(
    name: str, agent: Checkpoint, rules: Sequence[Rename], uses: set[int]
) -> tuple[Checkpoint, Sequence[PlanFinding]]:
    """An agent after the recipe's rules; as it was if any fails. `uses` gets the numbers of rules that catch names."""
    names = {old: old for old in agent.tensors}
    deadline = monotonic() + _SECONDS
    for number, rule in enumerate(rules):
        if rule.agent in (None, name):
            try:
                changed = {old: replace_all(rule.pattern, rule.to, new, deadline) for old, new in names.items()}
            except ValueError as error:
                uses.add(number)
                return agent, [problem(f"{quoted(rule.pattern)}: {error}", _key(number))]
            uses |= {number} if names != changed else set()
            names = changed
    if twice := [new for new, count in Counter(names.values()).items() if count > 1]:
        text = f"{agent.directory}: rename gives several tensors the name {brief_list([quoted(new) for new in twice])}"
        return agent, [problem(text, name)]
    tensors = {new: agent.tensors[old] for old, new in names.items()}
    tensors = {new: each if each.name == new else replace(each, name=new) for new, each in tensors.items()}
    return replace(agent, tensors=tensors), []


def _key(rule: int) -> Key:
    return ("rename", str(rule))


@dataclass(frozen=True)
class _Fusion:
    """Several matrices that are stored as one, their rows one below the other.

    Attributes:
        whole: its name; `{stem}` is any beginning.
        parts: names of the parts in order. With `{expert}` there is one of each for every expert, and the one tensor
            has a dimension more, for experts, in front.
        why: who writes such tensors.
    """

    whole: str
    parts: tuple[str, ...]
    why: str

    @property
    def is_of_experts(self) -> bool:
        """Whether there is one of each part for every expert."""
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
class _Fitted:
    """An agent's tensors under the base's names.

    Attributes:
        tensors: by name; those for which nothing was found keep their own.
        notes: which conventions were used, and for how many tensors.
        problems: names for which several tensors were found.
    """

    tensors: dict[str, Tensor]
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def _fit(base: Checkpoint, agent: Checkpoint) -> _Fitted:
    """Find an agent's tensors under other names than the base's.

    Args:
        base: gives names, shapes, and the number of layers.
        agent: names that the base has too are not touched.
    """
    fitted = _Fitted(dict(agent.tensors))
    if not base.tensors.keys() >= agent.tensors.keys():
        _move(base, agent, fitted)
    _turn(base, fitted)
    unknown = [tensor for name, tensor in fitted.tensors.items() if name not in base.tensors]
    missing = [tensor for name, tensor in base.tensors.items() if name not in fitted.tensors]
    if unknown:
        spelled = _Spelled(unknown, missing, base)
        taking_turns = interleaves_gates(base.config) or interleaves_gates(agent.config)
        for tensor in missing:
            _find(tensor, spelled, fitted, taking_turns)
        for used in spelled.used:
            del fitted.tensors[used]
        fitted.notes += spelled.notes
        fitted.problems += [
            f"{text} {brief_list(list(names))}; base and agent need the same experts"
            for text, names in spelled.incomplete.items()
        ]
    for name, tensor in base.tensors.items():
        other = fitted.tensors.get(name)
        if other is not None and (other.dtype, other.shape) != (tensor.dtype, tensor.shape) and is_buffer(tensor):
            del fitted.tensors[name]
    lacking, text = _absent(base.tensors, fitted.tensors, (base.config, agent.config))
    fitted.tensors |= {name: base.tensors[name] for name in lacking}
    fitted.notes += [f"lacks {text}; the base's are used"] if lacking else []
    extra, text = _absent(fitted.tensors, base.tensors, (agent.config, base.config))
    for name in extra:
        del fitted.tensors[name]
    fitted.notes += [f"has {text}, which the base does not have; they are dropped"] if extra else []
    return fitted


def _find(wanted: Tensor, spelled: _Spelled, fitted: _Fitted, taking_turns: bool) -> None:
    """Enter the agent's counterpart of a base's tensor, if there is one."""
    found = spelled.get(wanted.name)
    if len(found) > 1:
        names = " and ".join(quoted(tensor.name) for tensor in found)
        fitted.problems.append(f"both {names} may be the base's {quoted(wanted.name)}; say which one with rename")
    elif found and (other := spelled.whole.get(found[0].name)) is not None:
        text = f"{quoted(found[0].name)} may be the base's {quoted(other)} and its {quoted(wanted.name)}"
        fitted.problems.append(f"{text}; say which one with rename")
    elif found:
        one = found[0]
        spelled.whole[one.name] = wanted.name
        spelled.use(one, wanted, spelled.reason(wanted.name, one))
        if one.shape == (1, *wanted.shape):  # one shared expert, as a stack of one
            one = reshaped(one, wanted.shape)
        elif one.shape != wanted.shape and one.shape == (*wanted.shape[:1], *wanted.shape[:0:-1]):
            one = Tensor(one.name, one.dtype, wanted.shape, Transposed(one))
        fitted.tensors[wanted.name] = one
    else:
        made = ((fusion, tensor) for fusion in FUSIONS for tensor in spelled.fused(fusion, wanted))
        fusion, tensor = next(made, (None, None))
        if fusion is not None and tensor is not None:
            fitted.tensors[wanted.name] = tensor
            if taking_turns and ".experts." in fusion.whole and len(fusion.parts) > 1:
                fitted.problems.append(
                    f"{quoted(wanted.name)}: rows of gate and up take turns in the experts.gate_up_proj of gpt-oss, "
                    "and one of base and agent has them as tensors of their own, in an order that nothing says; "
                    "save the agent in the base's layout"
                )
        elif spelled.reports_incomplete(wanted):
            fitted.tensors[wanted.name] = wanted


class _Spelled:
    """Tensors of an agent that the base does not have, under all names that they may have by the table."""

    def __init__(self, tensors: Sequence[Tensor], missing: Iterable[Tensor], base: Checkpoint) -> None:
        self.base = base
        self.missing = {tensor.name for tensor in missing}
        self.whole: dict[str, str] = {}  # the base's names of tensors that were used as they are
        self._found: dict[str, dict[str, tuple[Tensor, tuple[str, ...]]]] = {}
        self._experts: dict[tuple[str, str], int] = {}
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self.used: dict[str, None] = {}
        self.incomplete: dict[str, dict[str, None]] = {}  # which experts are missing, and from which tensors
        for tensor in tensors:
            for name, reasons in name_aliases(tensor.name).items():
                self._found.setdefault(name, {})[tensor.name] = tensor, reasons

    def get(self, name: str) -> list[Tensor]:
        """The agent's tensors that may have a name of the base. If some do in fewer steps than others, only these."""
        found = self._found.get(name, {}).values()
        least = min((len(reasons) for _, reasons in found), default=0)
        return [tensor for tensor, reasons in found if len(reasons) == least]

    def reason(self, name: str, tensor: Tensor) -> str:
        return "; ".join(dict.fromkeys(self._found[name][tensor.name][1]))

    def use(self, tensor: Tensor, wanted: Tensor, why: str) -> None:
        self.used[tensor.name] = None
        self._counts[why] += 1
        self._examples.setdefault(why, f"{quoted(tensor.name)} is the base's {quoted(wanted.name)}")

    @property
    def notes(self) -> list[str]:
        return [
            f"{count:,} tensor{'s' if count > 1 else ''} under other names ({why}): {self._examples[why]}"
            for why, count in self._counts.items()
        ]

    def fused(self, fusion: _Fusion, wanted: Tensor) -> Iterator[Tensor]:
        """The tensor as a part of a tensor of the agent, or made from several, by a row of the table."""
        if (found := _pattern(fusion.whole).fullmatch(wanted.name)) is not None:
            turned = _is_square(wanted.shape[1:]) and self.gates_are_turned(found["stem"])
            yield from self.joined(fusion, found["stem"], wanted, turned=turned)
        for place, part in enumerate(fusion.parts):
            if (found := _pattern(part).fullmatch(wanted.name)) is not None:
                expert = int(found["expert"]) if fusion.is_of_experts else 0
                # an agent that also has one of them alone is not clear
                if self.missing.issuperset(fusion.names(found["stem"], expert)):
                    yield from self.taken_out(fusion, found["stem"], expert, place, wanted)

    def joined(self, fusion: _Fusion, stem: str, wanted: Tensor, *, turned: bool) -> Iterator[Tensor]:
        """The base's one tensor from the agent's parts; `turned`: a square one has rows and columns exchanged."""
        matrices = self.matrices(fusion, stem, wanted)
        if not matrices:
            return
        front = wanted.shape[:1] if len(wanted.shape) > len(matrices[0][0].shape) else ()
        rows, rest = sum(part.shape[0] for part in matrices[0]), matrices[0][0].shape[1:]
        exchanged = len(rest) == 1 and wanted.shape == (*front, *rest, rows)
        turned = exchanged and (turned or wanted.shape != (*front, rows, *rest))
        shapes = {tuple(part.shape for part in row) for row in matrices}
        dtypes = {part.dtype for row in matrices for part in row}
        fits = turned or wanted.shape == (*front, rows, *rest)
        if not fits or len(shapes) > 1 or len(dtypes) > 1 or any(part.shape[1:] != rest for part in matrices[0]):
            return
        pieces = []
        for expert, row in enumerate(matrices):
            start = 0
            for part in row:
                place = (0, start) if turned else (start, *(0 for _ in rest))
                self.use(part, wanted, fusion.why)
                piece = Tensor(part.name, part.dtype, (*rest, part.shape[0]), Transposed(part)) if turned else part
                if front:
                    piece = reshaped(piece, (1, *piece.shape))
                pieces.append(PlacedPiece((expert, *place) if front else place, piece))
                start += part.shape[0]
        yield Tensor(wanted.name, dtypes.pop(), wanted.shape, Pieces(tuple(pieces)))

    def rows(self, fusion: _Fusion, stem: str, wanted: Tensor) -> list[list[list[Tensor]]]:
        """The candidates for each part of each expert, or of the only matrix."""
        count = wanted.shape[0] if fusion.is_of_experts and wanted.shape else 1
        return [[self.get(name) for name in fusion.names(stem, expert)] for expert in range(count)]

    def matrices(self, fusion: _Fusion, stem: str, wanted: Tensor) -> list[list[Tensor]]:
        """The parts of each expert, or of the only matrix; nothing if some lack, or are not clear."""
        found = self.rows(fusion, stem, wanted)
        if not found or not all(len(each) == 1 and each[0].shape for row in found for each in row):
            return []
        rows = [[each[0] for each in row] for row in found]
        stacks = rows[0]
        stacked = all(len(stack.shape) == 3 and stack.shape[0] == wanted.shape[0] for stack in stacks)
        if len(wanted.shape) != 3 or not stacked:
            return rows
        return [
            [reshaped(box_of(stack, (expert, 0, 0), (1, *stack.shape[1:])), stack.shape[1:]) for stack in stacks]
            for expert in range(wanted.shape[0])
        ]

    def taken_out(self, fusion: _Fusion, stem: str, expert: int, place: int, wanted: Tensor) -> Iterator[Tensor]:
        """The part at a place of the fusion's table, out of the agent's one tensor."""
        found = self.get(fusion.whole.format(stem=stem))
        if len(found) != 1 or not wanted.shape:
            return
        whole, front = found[0], (expert,) if fusion.is_of_experts else ()
        siblings = [self.base.tensors.get(name) for name in fusion.names(stem, expert)]
        heights = [sibling.shape[0] if sibling and sibling.shape else 0 for sibling in siblings]
        start, rows = sum(heights[:place]), sum(heights)
        height, *rest = wanted.shape
        inner, ones = whole.shape[len(front) :], (1,) * len(front)
        if len(whole.shape) != len(front) + len(wanted.shape):
            return
        if front and self.experts(fusion, stem) != whole.shape[0]:
            return
        if inner == (rows, *rest) and not (_is_square(inner) and self.gates_are_turned(stem)):
            self.use(whole, wanted, fusion.why)
            part = box_of(whole, (*front, start, *(0 for _ in rest)), (*ones, height, *rest))
            yield replace(reshaped(part, wanted.shape), name=wanted.name)
        elif len(rest) == 1 and inner == (*rest, rows):
            self.use(whole, wanted, fusion.why)
            part = box_of(whole, (*front, 0, start), (*ones, *rest, height))
            yield Tensor(wanted.name, whole.dtype, wanted.shape, Transposed(reshaped(part, (*rest, height))))

    def experts(self, fusion: _Fusion, stem: str) -> int:
        """How many experts the base has that are tensors of their own."""
        key = fusion.parts[0], stem
        if key not in self._experts:  # asked for each expert
            found = (n for n in itertools.count() if fusion.names(stem, n)[0] not in self.base.tensors)
            self._experts[key] = next(found)
        return self._experts[key]

    def reports_incomplete(self, wanted: Tensor) -> bool:
        """Whether only the number of experts keeps a tensor from its counterpart, which is added to `incomplete`."""
        for fusion in (fusion for fusion in FUSIONS if fusion.is_of_experts):
            if (found := _pattern(fusion.whole).fullmatch(wanted.name)) is not None:
                rows = self.rows(fusion, found["stem"], wanted)
                lacking = [f"{expert}" for expert, row in enumerate(rows) if not all(row)]
                if 0 < len(lacking) < len(rows):
                    text = (
                        f"lacks tensors of expert{'s' if len(lacking) > 1 else ''} {brief_list(lacking)} in the base's"
                    )
                    self.refuse(text, wanted, itertools.chain(*rows))
                    return True
            for part in fusion.parts:
                if (found := _pattern(part).fullmatch(wanted.name)) is not None:
                    whole = self.get(fusion.whole.format(stem=found["stem"]))
                    count = self.experts(fusion, found["stem"])
                    if len(whole) == 1 and len(whole[0].shape) == 3 and whole[0].shape[0] != count:
                        text = f"has {whole[0].shape[0]} experts instead of the base's {count} in"
                        self.refuse(text, whole[0], [whole])
                        return True
        return False

    def refuse(self, text: str, stack: Tensor, found: Iterable[Sequence[Tensor]]) -> None:
        """Add a sentence about experts in one tensor; the agent's tensors of it are not reported again."""
        self.incomplete.setdefault(text, {})[f"{quoted(stack.name)} {list(stack.shape)}"] = None
        self.used |= {tensor.name: None for tensors in found for tensor in tensors}

    def gates_are_turned(self, stem: str) -> bool:
        """Whether rows and columns of the experts' gates are exchanged between base and agent.

        The shapes of a square matrix do not say so; those of the other projection in the same experts do.
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
def _pattern(template: str) -> re.Pattern[str]:
    text = re.escape(template)
    text = text.replace(re.escape("{stem}"), r"(?P<stem>.*)").replace(re.escape("{expert}"), r"(?P<expert>\d{1,6})")
    return re.compile(text)


def _is_square(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[0] == shape[1]


_STACKED = re.compile(r".*\.experts\.(gate_up_proj|down_proj)")


def _turn(base: Checkpoint, fitted: _Fitted) -> None:
    """Turn experts that the agent stores with rows and columns exchanged, under the same name."""
    stacked = {
        name: tensor
        for name, tensor in base.tensors.items()
        if len(tensor.shape) == 3 and _STACKED.fullmatch(name) and name in fitted.tensors
    }
    exchanged = {
        name
        for name, tensor in stacked.items()
        if fitted.tensors[name].shape != tensor.shape
        if fitted.tensors[name].shape == (tensor.shape[0], tensor.shape[2], tensor.shape[1])
    }
    # the shapes of a square one say nothing, those of the other one in the same experts do
    modules = {name.rpartition(".")[0] for name in exchanged}
    exchanged |= {
        name for name, tensor in stacked.items() if name.rpartition(".")[0] in modules and _is_square(tensor.shape[1:])
    }
    for name in sorted(exchanged):
        other = fitted.tensors[name]
        fitted.tensors[name] = Tensor(name, other.dtype, stacked[name].shape, Transposed(other))
    if exchanged:
        fitted.notes.append(f"{len(exchanged):,} tensors of experts are stored with rows and columns exchanged")


def _move(base: Checkpoint, agent: Checkpoint, fitted: _Fitted) -> None:
    """Give tensors the prefixes that the same layers have in the base."""
    unknown = {name: tensor.shape for name, tensor in agent.tensors.items() if name not in base.tensors}
    missing = {name: tensor.shape for name, tensor in base.tensors.items() if name not in agent.tensors}
    path = path_to(base.config, agent.config.get("model_type")) or path_to(agent.config, base.config.get("model_type"))
    names, prefixes = aligned(
        unknown, missing, kept=set(map(stack_of, base.tensors)), preferred=[key.removesuffix("_config") for key in path]
    )
    # an output embedding that the base ties is none of the tensors that are looked for, and has the same prefix
    for head in (name for name in unknown if name.endswith(HEADS) and name not in names):
        moved = next((new + head[len(old) :] for old, new in prefixes.items() if old and head.startswith(old)), head)
        if moved != head and moved.endswith(HEADS) and moved not in (*base.tensors, *names.values()):
            names[head] = moved
    names = {old: new for old, new in names.items() if new not in agent.tensors}
    for old, new in names.items():
        fitted.tensors[new] = replace(fitted.tensors.pop(old), name=new)
    if names:
        shown = ", ".join(_renamed(old, new) for old, new in itertools.islice(prefixes.items(), 3))
        fitted.notes.append(f"{len(names):,} tensors under other prefixes: {shown}")


def _renamed(old: str, new: str) -> str:
    """The words about a prefix of an agent that is another one in the base."""
    if not new:
        return f"{quoted(old)} is dropped, as the base has none"
    if not old:
        return f"{quoted(new)} is put before them, as in the base"
    return f"{quoted(old)} is the base's {quoted(new)}"


def _absent(
    tensors: Mapping[str, Tensor], others: Container[str], configs: Sequence[Mapping[str, object]]
) -> tuple[dict[str, str], str]:
    """The tensors that others need not have, by name, with the reason; and how many there are of each kind."""
    absent = [tensor for name, tensor in tensors.items() if name not in others]
    found: dict[str, str] = {}
    for why, names in known_absences(tensors, absent, configs) if absent else ():
        found |= {name: why for name in names if name not in found}
    counts, first = Counter(found.values()), {why: name for name, why in reversed(list(found.items()))}
    return found, "; ".join(
        f"{count:,} tensor{'s' if count > 1 else ''} such as {quoted(first[why])} ({why})"
        for why, count in counts.items()
    )
