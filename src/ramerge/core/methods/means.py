"""Methods that are weighted means of the agents themselves, such as checkpoints of a run.

    merged = sum_t w_t a_t        sum_t w_t = 1

Such a method only defines the weights. The mean is computed while the agents are read (`tensors.weighted`), so there
may be many agents, and kernels get the mean itself; in a sweep, they get the means of all points.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from ramerge.core.kernels.elementwise import ZERO, Each, Inputs
from ramerge.core.kernels.piece import Piece, PieceResult
from ramerge.core.methods.base import MANY, Agents, Column, Counts, Figure, Method, P, Results
from ramerge.core.methods.formula import Formula, merge


class MeanMethod(Method[P, Formula]):
    """A method that is a weighted mean of the agents. `merge` gets one input for each requested mean."""

    family = "soups"
    needs_base = False
    limit = MANY
    along_run = True
    alone = "the result is the agent itself"
    columns: tuple[Column, ...] = (Column("weight", "weight", ".4f", "the agent's weight in the mean"),)

    @abstractmethod
    def weights(self, parameters: P, agents: Agents) -> Each:
        """Return the agents' weights, in their order; they add up to 1, and may be negative."""

    def prepare(self, parameters: P, agents: Agents, results: Results) -> Formula:
        return one_of(0, 1)

    def merge(self, piece: Piece, prepared: Formula, counts: Counts | None, allow_nonfinite: bool) -> PieceResult:
        return merge(piece, prepared)

    def report(self, parameters: P, parts: Sequence[object], agents: Agents) -> list[dict[str, Figure]]:
        return [{"weight": weight} for weight in self.weights(parameters, agents)]


def one_of(index: int, means: int) -> Formula:
    """The formula that returns the mean with this index, if the inputs are several means."""
    return Formula(_last_marked_value, (tuple(float(t == index) for t in range(means)),), Inputs(means, base=False))


def _last_marked_value(_b: float, values: Each, marks: Each) -> float:
    result = values[0]
    for t in range(len(values)):
        result = values[t] if marks[t] > ZERO else result
    return result
