"""Loss of float32 and float64 agents that converters store in bfloat16: a statistic, and its finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.analysis.parts import Finding
from ramerge.core.kernels import fixed, native
from ramerge.core.kernels.element_formats import Loop
from ramerge.core.kernels.rounding import rounded
from ramerge.core.methods.moved import thresholds
from ramerge.sdk.kernels import Piece
from ramerge.sdk.methods import Counts, Statistic

Words = NDArray[Any]

COUNTS = ("moved", "moved_lost", "changed", "changed_lost")
SUMS = ("update", "update_lost")

_WIDE = ("F32", "F64")


@dataclass(frozen=True)
class PrecisionLoss(Statistic):
    """The part of each float32 or float64 agent's task vector that rounding to bfloat16 would set to 0.

    The result is int64, a row for each agent: the counts named in `COUNTS`, then the limbs of the sums of squares named
    in `SUMS`. They stay limbs, so that parts of a model can be added up.

    Attributes:
        epsilon: an element has moved where |tau| > epsilon; relative to what the statistic `after` measures for each
            agent, if set.
    """

    agents: int = field(kw_only=True)
    epsilon: float = 1e-5

    def blank(self, agents: int) -> Counts:
        return np.zeros((self.agents, len(COUNTS) + len(SUMS) * fixed.LIMBS), np.int64)

    def count(self, piece: Piece, magnitudes: Any, counts: Counts) -> bool:
        epsilons = thresholds(self.epsilon, magnitudes)
        epsilons *= self.agents // len(epsilons)
        wide = [t for t in range(self.agents) if piece.formats[1 + t] in _WIDE]

        def observe(loop: Loop, inputs: list[Any], _merge: Any) -> bool:
            for t in wide:
                sums = np.zeros(len(SUMS))
                pair = Loop((loop.inputs[0], loop.inputs[1 + t]), loop.inputs[1 + t])
                count_losses(pair, inputs[0], inputs[1 + t], epsilons[t], counts[t, : len(COUNTS)], sums)
                fixed.encode(sums, counts[t, len(COUNTS) :].reshape(len(SUMS), fixed.LIMBS))
            return False

        return piece.compare(observe) if wide else False

    def finish(self, total: Counts, elements: int, magnitudes: object) -> Counts:
        return total.copy()


def losses_of(totals: Sequence[Counts], agents: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the precision loss of each agent with elements in float32 or float64: counts and shares."""
    total = sum(totals[1:], totals[0].copy()) if totals else np.zeros((len(agents), 0), np.int64)
    losses = {}
    for name, row in zip(agents, total, strict=True):
        counts = dict(zip(COUNTS, row[: len(COUNTS)].tolist(), strict=False))
        if not counts.get("changed"):
            continue
        update, loss = fixed.decode(row[len(COUNTS) :].reshape(len(SUMS), fixed.LIMBS))
        losses[name] = counts | {
            "moved_lost_share": counts["moved_lost"] / counts["moved"] if counts["moved"] else 0.0,
            "changed_lost_share": counts["changed_lost"] / counts["changed"],
            "norm_lost_share": float(np.sqrt(loss / update)) if update else 0.0,
        }
    return losses


def precision_loss_findings(figures: Mapping[str, Mapping[str, float]], threshold: str) -> list[Finding]:
    """Return the finding on the loss by conversion to bfloat16; empty if no agent is wider."""
    if not figures:
        return []

    def each(key: str) -> str:
        return ", ".join(f"{name} {values[key]:.1%}" for name, values in figures.items())

    worst = max(values["changed_lost_share"] for values in figures.values())
    text = "loses up to" if worst > 0.01 else "loses hardly anything:"
    return [
        Finding(
            f"Converting {', '.join(figures)} to bfloat16 before merging {text} {worst:.1%} of the elements that "
            "training changed.",
            "Back at the base's value in bfloat16: of all changed elements "
            f"{each('changed_lost_share')}; of those that moved by more than {threshold} {each('moved_lost_share')}; "
            f"of the length of the task vector {each('norm_lost_share')}.",
        )
    ]


# --- the loop ---------------------------------------------------------------------------------------------------------

_LOOP = """
def count_lost(base, agent, epsilon, counts, sums):
    start, size = np.int64(0), np.int64(base.size)
    while start < size:
        stop = min(start + np.int64(1 << 15), size)
        nothing, one = np.uint32(0), np.uint32(1)
        moved, moved_lost, changed, changed_lost = nothing, nothing, nothing, nothing
        update, update_lost = 0.0, 0.0
        for i in range(np.uint64(start), np.uint64(stop)):
            b, a = {base}, {agent}
            tau = a - b
            wide = np.float64(tau)
            gone = {round_a} == {round_b}
            differs, far = tau != {real}(0), abs(tau) > epsilon
            changed = add32(changed, one if differs else nothing)
            changed_lost = add32(changed_lost, one if differs and gone else nothing)
            moved = add32(moved, one if far else nothing)
            moved_lost = add32(moved_lost, one if far and gone else nothing)
            update = plus(update, wide * wide)
            update_lost = plus(update_lost, wide * wide if gone else 0.0)
        counts[0] += moved
        counts[1] += moved_lost
        counts[2] += changed
        counts[3] += changed_lost
        sums[0] += update
        sums[1] += update_lost
        start = stop
    return np.uint32(0)
"""


def count_losses(
    loop: Loop, base: Words, agent: Words, epsilon: float, counts: NDArray[np.int64], sums: NDArray[np.float64]
) -> None:
    """The kernel of `PrecisionLoss`: count elements that rounding agent and base to bfloat16 would make equal.

    Formats of base and agent have one element per word. An element has moved where |agent - base| > epsilon. Adds to
    `counts`: elements that moved, moved elements that are lost, elements that changed at all, changed elements that are
    lost. Adds to `sums`: squares of the task vector, and of its part that is lost, in an order that the processor
    chooses.
    """
    _loss_counter(loop)(base, agent, epsilon, counts, sums)


@cache
def _loss_counter(loop: Loop) -> Any:
    form = loop.out
    source = _LOOP.format(
        base=loop.element(0, 0, "base[i]"),
        agent=loop.element(1, 0, "agent[i]"),
        real=form.real_name,
        round_a=rounded(form, "BF16", "a"),
        round_b=rounded(form, "BF16", "b"),
    )
    words = [f"{each.word_code}[]" for each in loop.inputs]
    return native.load("count_lost", source, (*words, form.real_code, "i64[]", "f64[]"), "u32")
