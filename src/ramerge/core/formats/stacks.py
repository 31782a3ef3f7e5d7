"""Several adapters over one model: products add up, but what replaces weights would undo what others made of them.

PEFT refuses that, too: of adapters that train the same rows of tokens or save the same module, only one can be active.
"""

from __future__ import annotations

from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.embeddings import untied
from ramerge.core.tensors.lowrank import LowRank, OtherRows
from ramerge.core.tensors.tensor import Tensor


def undone_changes(start: Checkpoint, below: Checkpoint, above: Checkpoint) -> list[str]:
    """Names of tensors in which an adapter undoes what earlier ones have changed.

    Args:
        above: the same with this one, which was opened over `below`.
    """
    if above.untied:
        start, below = untied(start), untied(below)
    return [
        name
        for name, tensor in above.tensors.items()
        if (before := below.tensors.get(name)) is not None
        and not _equals(before, start.tensors.get(name))
        and not _is_unchanged(tensor, before, start.tensors.get(name))
    ]


def _is_unchanged(tensor: Tensor, below: Tensor, start: Tensor | None) -> bool:
    """Whether all that earlier adapters have changed is still in a tensor.

    The magnitudes of DoRA are norms of rows or columns, and so leave nothing of other changes to these.
    """
    while not _equals(tensor, below):
        match tensor.origin:
            case LowRank(base=base, magnitude=None):
                tensor = base
            case OtherRows(base=base, rows=rows) if not _has_changed(below, start, rows):
                tensor = base
            case _:
                return False
    return True


def _has_changed(tensor: Tensor, start: Tensor | None, rows: tuple[int, ...]) -> bool:
    """Whether earlier adapters have changed any of these rows."""
    while not _equals(tensor, start):
        if not isinstance(tensor.origin, OtherRows) or set(rows) & set(tensor.origin.rows):
            return True
        tensor = tensor.origin.base
    return False


def _equals(tensor: Tensor, other: Tensor | None) -> bool:
    """Whether two tensors have the same elements, whatever their names: what no adapter has changed since."""
    return other is not None and (tensor.dtype, tensor.shape, tensor.origin) == (other.dtype, other.shape, other.origin)
