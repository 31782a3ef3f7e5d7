"""A model whose weights exceed the memory of a device: the rest stay in main memory. Imports torch.

A module whose weights stay there gets a copy of them during its forward pass. Weights are replaced in place,
so each pass copies the newest. Libraries that offload weights take the parameters out of the model, so that nothing is
left to put weights into, or to recognize them by.
"""

from __future__ import annotations

from typing import Any

import torch


class Offloaded:
    """A model with as many weights on a device as fit in a budget, in the order of the modules.

    Gradients are not supported: weights are freed before a backward pass needs them.

    Args:
        budget: bytes of weights that stay on the device; in addition, one module's weights are copied there at a time.
    """

    def __init__(self, model: Any, device: torch.device, budget: int) -> None:
        self._device = device
        self._homes: dict[int, torch.Tensor] = {}
        self.bytes: int = 0
        resident: set[int] = set()
        for module in model.modules():
            own = [*module.parameters(recurse=False)]
            size = sum(one.nbytes for one in own if id(one) not in resident)
            if size <= budget:
                budget -= size
                resident |= {id(one) for one in own}
                for one in own:
                    one.data = one.data.to(device)
            for buffer in module.buffers(recurse=False):
                buffer.data = buffer.data.to(device)
        for module in model.modules():
            if away := [one for one in module.parameters(recurse=False) if id(one) not in resident]:
                self.bytes += sum(one.nbytes for one in away)
                module.register_forward_pre_hook(
                    lambda module, *_: self._fetch_parameters(self._offloaded_parameters(module))
                )
                module.register_forward_hook(
                    lambda module, *_: self._release_parameters(self._offloaded_parameters(module)), always_call=True
                )
        self._resident = resident

    def home(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the original, in main memory, of a weight on the device; or the weight itself if it is not a copy."""
        home = self._homes.get(weight.untyped_storage().data_ptr())
        if home is None:
            return weight
        return home.as_strided(weight.shape, weight.stride(), home.storage_offset() + weight.storage_offset())

    def _offloaded_parameters(self, module: torch.nn.Module) -> list[torch.nn.Parameter]:
        # looked up each time, because a head that was tied may have got a parameter of its own
        return [one for one in module.parameters(recurse=False) if id(one) not in self._resident]

    def _fetch_parameters(self, parameters: list[torch.nn.Parameter]) -> None:
        with torch.inference_mode(False), torch.no_grad():
            for one in parameters:
                copy = torch.empty_like(one.data, device=self._device).copy_(one.data)
                self._homes[copy.untyped_storage().data_ptr()] = one.data
                one.data = copy

    def _release_parameters(self, parameters: list[torch.nn.Parameter]) -> None:
        for one in parameters:
            # where a copy found no memory, the one after it was not made
            one.data = self._homes.pop(one.data.untyped_storage().data_ptr(), one.data)
