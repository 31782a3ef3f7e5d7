"""The plan of a merge as a LoRA adapter: the tensors that become factors and how, its memory, and vLLM's limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ramerge import Recipe
from ramerge.core.formats.adapter_model import module_of
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.text import brief_list, literal
from ramerge.core.planning.findings import note, problem
from ramerge.core.tensors.embeddings import head_of, tied_embedding
from ramerge.core.tensors.lowrank import LowRank
from ramerge.deltas.kinds import AsAdapter
from ramerge.sdk.plans import OpenedInputs, PlanFinding, TensorPlan
from ramerge.sdk.recipes import Point
from ramerge.sdk.tensors import Stored, Tensor
from ramerge.sdk.text import enumerated, quantity, quoted

ENERGY = 0.99
"""The share of an update's energy to keep if its factors are unknown, unless a rank or a share is given."""

VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM accepts as `--max-lora-rank` (vllm/config/lora.py, v0.26)."""

SMALL = 1024
"""A matrix with a side of at most this length is decomposed exactly."""
OVERSAMPLING = 10
BLOCK_ELEMENTS = 1 << 20
"""Elements of a matrix that are in memory at once."""

# Transformers has experts in one tensor and routers in classes of their own, neither of which PEFT adapts by module.
_OF_EXPERTS = re.compile(r"\.experts\.\d+\.|\b(mlp|block_sparse_moe|feed_forward)\.(gate|router)\.weight$")
# Embeddings of tokens, positions and others.
_EMBEDDING = re.compile(r"(?:^|\.)(?:w[tp]e|\w*embed(?!_out)\w*)\.weight$")


class AdapterTerm(NamedTuple):
    """A product in a matrix's update: its factor and origin."""

    factor: float
    product: LowRank

    @property
    def below(self) -> Tensor:
        """The tensor to which the products are added."""
        tensor = self.product.base
        while isinstance(tensor.origin, LowRank):
            tensor = tensor.origin.base
        return tensor


class AdaptedMatrix(NamedTuple):
    """The plan of a matrix that an adapter changes.

    Attributes:
        tensor: the number of its tensor in the plan.
        transposed: whether the model stores it as (in, out).
        is_embedding: whether it holds embeddings, whose factors have special names.
        terms: the products that add up to its update; None if the update must be decomposed.
        copies: tensors to which products are added instead of the base's, such as output embeddings that PEFT saves
            with their factors; if they differ from the base's, the update is decomposed, too.
    """

    tensor: int
    module: str
    transposed: bool
    is_embedding: bool
    terms: tuple[AdapterTerm, ...] | None
    copies: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class AdapterPlan:
    """The plan of an adapter: the details of `AsAdapter` in the plan of a merge.

    Attributes:
        others: numbers of other tensors that may have moved.
        peak_bytes: peak memory of decomposing a matrix.
        tied_names: names of the base's tied input and output embeddings; empty if they are not tied.
    """

    settings: AsAdapter
    matrices: tuple[AdaptedMatrix, ...]
    others: tuple[int, ...]
    peak_bytes: int
    config: Mapping[str, Any]
    tied_names: tuple[str, ...] = ()


def points_in_float32(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the merges for an adapter: in float32, not rounded to the base's dtype."""
    wide = {"dtype": "float32", "rounding": "nearest"}
    return tuple(replace(point, recipe=point.recipe.model_copy(update=wide)) for point in points)


def plan_adapter(
    settings: AsAdapter, points: Sequence[Point], inputs: OpenedInputs, tensors: Sequence[TensorPlan]
) -> tuple[AdapterPlan | None, list[PlanFinding]]:
    """Plan a merge as an adapter, with notes on exact factors and the ranks that vLLM serves."""
    base = inputs.opened_base
    if base is None:
        return None, []
    matrices, others, refusals = [], [], dict[str, None]()  # a tensor that stacks experts has a plan for each of them
    for number, tensor in enumerate(tensors):
        may_move = any(one.tensor is not tensor.base for one in tensor.sources if not one.is_importance)
        if not tensor.base.is_float or not may_move:
            continue
        name, shape = tensor.parts[0].name, tensor.parts[0].shape
        if len(shape) > 2 or _OF_EXPERTS.search(name):
            refusals[name] = None
            continue
        terms = _adapter_terms(tensor, points[0])
        module = None  # whose weight it is, if factors can stand for its update
        if len(tensor.base.shape) == 2 and tensor.name.endswith(".weight"):
            own = tensor.name.removesuffix(".weight")
            if terms:
                module = {module_of(term.product.right.tensor) for term in terms}.pop() or own
            elif not _EMBEDDING.search(tensor.name):
                module = own
        if module is None:
            others.append(number)
        else:
            is_embedding = _EMBEDDING.search(tensor.name) is not None
            transposed = is_embedding or bool(base.orientation.of(tensor.name))
            copies = tuple(below for term in terms or () if (below := term.below) is not tensor.base)
            matrices.append(AdaptedMatrix(number, module, transposed, is_embedding, terms, copies))
    text = (
        f"--as-adapter: experts, routers and others that are no matrices of linear layers cannot become factors: "
        f"{brief_list(list(map(quoted, refusals)))}; write the model or a delta (--as-delta), or keep the base's with "
        "a rule (keep: base)"
    )
    findings = [*([problem(text)] if refusals else []), *_plan_notes(settings, matrices, others)]
    peak = max((_memory_of(tensors[m.tensor].base.shape, settings, m) for m in matrices), default=0)
    embedding = tied_embedding(base)
    tied_names = (embedding.name, head_of(base, embedding)) if embedding is not None else ()
    return AdapterPlan(settings, tuple(matrices), tuple(others), peak, base.config, tied_names), findings


def check(settings: AsAdapter, recipe: Recipe) -> Iterator[PlanFinding]:
    """Find settings out of range, and keys of the recipe that an adapter cannot follow."""
    if not isinstance(settings.rank, int | None):
        raise RecipeError(f"--rank: must be a whole number, not {literal(settings.rank)}")
    if not isinstance(settings.energy, int | float | None):
        raise RecipeError(f"--energy: must be a number, not {literal(settings.energy)}")
    if settings.rank is not None and settings.energy is not None:
        yield problem("--rank and --energy: each of them decides the ranks; give only one")
    if settings.rank is not None and settings.rank < 1:
        yield problem(f"--rank: must be at least 1, not {settings.rank}")
    if settings.energy is not None and not 0 < settings.energy <= 1:
        yield problem(f"--energy: must be more than 0 and at most 1, such as 0.99, not {settings.energy:g}")
    if recipe.allow.vocabulary is not None:
        yield problem("--as-adapter: allow.vocabulary: an adapter cannot add rows to embeddings; write the model")
    text = "an adapter is float32, whatever the dtype of the model that it is loaded over; leave dtype out"
    if recipe.dtype not in (None, "float32"):
        yield problem(text, ("dtype",))
    for number, rule in enumerate(recipe.rules):
        if rule.dtype not in (None, "float32"):
            yield problem(f"{rule}: {text}", ("rules", str(number), "dtype"))
    unused = [
        key for key in ("rounding", "rounding_seed", "companions", "shard_size") if key in recipe.model_fields_set
    ]
    if unused:
        text = f"--as-adapter: {enumerated(unused)} {'has' if len(unused) == 1 else 'have'} no effect"
        yield note(f"{text}: an adapter is one file of float32 factors, without a tokenizer")


def _adapter_terms(tensor: TensorPlan, point: Point) -> tuple[AdapterTerm, ...] | None:
    """Return the products that add up to a tensor's update by the merge; None if the update is not such a sum."""
    agents = tuple(point.recipe.agents)
    factors: dict[str, float] | None = None
    if tensor.action == "copy":
        factors = {tensor.sources[0].owner: 1.0}
    elif (method_factors := point.method.factors(point.parameters[tensor.rule], agents)) is not None:
        factors = dict(zip(agents, method_factors, strict=True))
    if factors is None:
        return None
    terms: list[AdapterTerm] = []
    for source in tensor.sources:
        if source.owner in factors and not source.is_importance:
            products = _adapter_products(source.tensor, tensor.base)
            if products is None:
                return None
            terms += [AdapterTerm(factors[source.owner], product) for product in products]
    return tuple(terms)


def _adapter_products(tensor: Tensor, base: Tensor) -> list[LowRank] | None:
    """Return the products that adapters add to the base or a copy, in a chain; None if there is anything else."""
    products: list[LowRank] = []
    while tensor is not base and not (products and isinstance(tensor.origin, Stored)):
        origin = tensor.origin
        if not isinstance(origin, LowRank) or origin.magnitude is not None or origin.left is None:
            return None
        products.append(origin)
        tensor = origin.base
    return products


def _ranks_of(terms: Sequence[AdapterTerm]) -> int:
    return sum(term.product.ranks for term in terms)


def _memory_of(shape: Sequence[int], settings: AsAdapter, matrix: AdaptedMatrix) -> int:
    """Return the most bytes that decomposing a matrix takes in `factors`."""
    (m, n), block = shape, 8 * 3 * BLOCK_ELEMENTS
    side = min(m, n)
    if matrix.terms is not None and not matrix.copies:
        return 8 * 4 * (m + n) * _ranks_of(matrix.terms) + block
    columns = settings.rank + OVERSAMPLING if settings.rank is not None else side // 4
    exact = 8 * (5 * side * side + (m + n) * (side if settings.rank is None else min(settings.rank, side)))
    sketched = 8 * 4 * (m + n) * columns
    if side <= SMALL or 4 * columns > side or settings.rank is None:
        return block + max(exact, sketched if settings.rank is None else 0)
    return block + sketched


def spooled_bytes(plan: AdapterPlan, tensors: Sequence[TensorPlan]) -> int:
    """Return the bytes of the merged tensors that are stored next to the output until their factors are made."""
    return sum(tensors[number].bytes_written for number in required_tensors(plan))


def planned_rank_for_vllm(settings: AsAdapter, matrices: Sequence[AdaptedMatrix], others: Sequence[int]) -> int | None:
    """Return the largest rank, if it and the choice of whole modules are known before the updates are read; otherwise
    None.
    """
    if others and settings.save_modules:
        return None
    terms = [matrix.terms for matrix in matrices]
    if settings.rank is not None or settings.energy is not None or None in terms:
        return settings.rank
    return max((_ranks_of(each) for each in terms if each is not None), default=0)


def said_of_vllm(rank: int, *, saves: bool = False) -> str:
    """Return a sentence on how vLLM serves an adapter with this largest rank."""
    least = next((each for each in VLLM_RANKS if each >= rank), None)
    if saves:
        return "vLLM does not serve adapters with modules_to_save"
    if least is None:
        return f"vLLM serves no rank above {VLLM_RANKS[-1]}; --rank {VLLM_RANKS[-1]} limits it"
    return f"vLLM serves it with --enable-lora --max-lora-rank {least}"


def _plan_notes(settings: AsAdapter, matrices: Sequence[AdaptedMatrix], others: Sequence[int]) -> list[PlanFinding]:
    exact = [_ranks_of(matrix.terms) for matrix in matrices if matrix.terms is not None]
    left = len(matrices) - len(exact)
    notes = []
    if exact:
        ranks = f"{min(exact)}" if min(exact) == max(exact) else f"{min(exact)} to {max(exact)}"
        cut = [rank for rank in exact if settings.rank is not None and rank > settings.rank]
        how = f"of which {len(cut):,} are truncated to {settings.rank}" if cut else "exactly"
        how = f"truncated to an energy of {settings.energy:g}" if settings.energy is not None else how
        notes.append(
            f"the factors of {quantity(len(exact), 'matrix', 'matrices')} are concatenated to rank {ranks}, {how}"
        )
    if left:
        energy = settings.energy if settings.energy is not None else ENERGY
        size_of_factors = (
            f"of rank {settings.rank}" if settings.rank is not None else f"that keep {energy:g} of its energy"
        )
        notes.append(
            f"the updates of up to {quantity(left, 'matrix', 'matrices')} are decomposed into factors {size_of_factors}"
        )
    planned_rank = planned_rank_for_vllm(settings, matrices, others)
    if notes and planned_rank is not None:
        notes.append(said_of_vllm(planned_rank))
    elif notes:
        ranks = f"vLLM serves ranks up to {VLLM_RANKS[-1]} (--max-lora-rank {', '.join(map(str, VLLM_RANKS))})"
        notes.append(f"{ranks}, but no modules_to_save" if others and settings.save_modules else ranks)
    if others:
        one, more = (
            ("1 norm, bias or embedding is", "it"),
            (f"{len(others):,} norms, biases and embeddings are", "them"),
        )
        are, them = one if len(others) == 1 else more
        what = "saved as modules_to_save" if settings.save_modules else "refused"
        hint = "" if settings.save_modules else f" (--save-modules saves {them})"
        notes.append(f"{are} {what} if the merge moves {them}{hint}")
    return [note(f"--as-adapter: {text}") for text in notes]


def required_tensors(plan: AdapterPlan) -> list[int]:
    """Return the numbers of the tensors whose merged values an adapter needs: all but exact sums."""
    updates = (matrix.tensor for matrix in plan.matrices if matrix.terms is None or matrix.copies)
    return sorted([*updates, *plan.others])
