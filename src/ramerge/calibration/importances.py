"""Importance of each parameter for an agent's replies: the diagonal of its Fisher information. Imports torch.

Source: Matena and Raffel, Merging Models with Fisher-Weighted Averaging, 2022, arXiv 2111.09832, section 3.

    F = mean over prompts x of (d log p(y | x) / d theta)^2         element by element, one gradient per prompt

`log p(y | x)` is the sum over the tokens of the reply `y`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from ramerge import WeightsError
from ramerge.calibration.exchanges import Exchange
from ramerge.calibration.live import LiveModel

_MOST_NAMES = 3


def importances_of(
    live: LiveModel, name: str, exchanges: Sequence[Exchange], tensors: Collection[str], on_exchange: Callable[[], None]
) -> dict[str, torch.Tensor]:
    """Compute an agent's importances: the mean over exchanges of the squared gradient of the reply's log-likelihood.

    Returns:
        By name, float32 tensors of the weight's shape, on the model's device. Tensors that training never moves,
        such as buffers, are missing.
    """
    squares = SquareSums(live.model)
    advice = f"the weights are damaged, or overflow in {live.dtype}: use float32"
    for exchange in exchanges:
        likelihood = -live.losses(exchange.ids, exchange.start).sum()
        if not bool(torch.isfinite(likelihood.detach())):
            raise WeightsError(f"{exchange.place}: the likelihood of {name}'s reply is NaN or 0; {advice}")
        likelihood.backward()
        if names := squares.non_finite():
            more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
            names_text = ", ".join(map(repr, names[:_MOST_NAMES]))
            raise WeightsError(
                f"{exchange.place}: the squared gradient of {name} is NaN or Inf in {names_text}{more}; {advice}"
            )
        on_exchange()
    means = squares.mean(len(exchanges))
    targets = {tensor: live.targets[tensor] for tensor in tensors if tensor in live.targets}
    return {tensor: means(target) for tensor, target in targets.items() if target in squares}


class SquareSums:
    """Sums of squared gradients, float32, one per parameter; every backward pass of the model adds to them.

    A gradient is squared, added and freed as soon as it is complete, so only one exists at a time.
    """

    def __init__(self, model: Any) -> None:
        """Collect the gradients of `model` from now on; the sums are on its device."""
        # by memory and not by name: a tied parameter has several names and one gradient
        self._parameters = {one.untyped_storage().data_ptr(): one for one in model.parameters()}
        self._names = {one.untyped_storage().data_ptr(): name for name, one in model.named_parameters()}
        self._sums = {
            memory: torch.zeros_like(one, dtype=torch.float32, requires_grad=False)
            for memory, one in self._parameters.items()
        }
        self._peaks: dict[int, torch.Tensor] = {}
        self._hooks = [one.register_post_accumulate_grad_hook(self._add_squares) for one in self._parameters.values()]

    def __contains__(self, target: torch.Tensor) -> bool:
        """Whether a tensor is part of a parameter."""
        return target.untyped_storage().data_ptr() in self._parameters

    def _add_squares(self, parameter: torch.Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        gradient = gradient.to(torch.float32)
        memory = parameter.untyped_storage().data_ptr()
        total = self._sums[memory].addcmul_(gradient, gradient)
        if total.numel():
            self._peaks[memory] = total.amax()

    def non_finite(self) -> list[str]:
        """Return the names of parameters whose sum holds NaN or Inf. Without any, synchronizes with the device only
        once.
        """
        if bool(torch.isfinite(torch.stack(tuple(self._peaks.values()))).all()):
            return []
        return [self._names[memory] for memory, peak in self._peaks.items() if not bool(torch.isfinite(peak))]

    def mean(self, examples: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """Stop collecting; return a function that gives the mean squared gradient for a part of a parameter."""
        for hook in self._hooks:
            hook.remove()
        for total in self._sums.values():
            total.div_(examples)

        def part(target: torch.Tensor) -> torch.Tensor:
            memory = target.untyped_storage().data_ptr()
            begin = target.storage_offset() - self._parameters[memory].storage_offset()
            return self._sums[memory].as_strided(target.shape, target.stride(), begin)

        return part
