"""Estimates a calibration's memory and work without reading a weight; for `live_base`, the weights to keep on the
device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramerge import PlanError
from ramerge.calibration.experts import number_of, rows_per_expert
from ramerge.calibration.prompts import Prompt
from ramerge.calibration.record import CalibrationSettings
from ramerge.core.formats.recorded import name_of
from ramerge.core.foundation.devices import device_name
from ramerge.core.foundation.machine import memory
from ramerge.core.foundation.settings import parse_size
from ramerge.core.tensors.embeddings import EMBEDDINGS, HEADS
from ramerge.core.tensors.text_config import text_configs
from ramerge.sdk.formats import read_json
from ramerge.sdk.plans import MergePlan
from ramerge.sdk.text import quantity

if TYPE_CHECKING:
    import torch

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_ROW_ITEM_BYTES = 2  # bfloat16
_IMPORTANCE_BYTES = 4
_FOR_WEIGHTS = 0.8
"""The share of a GPU's free memory that weights may take; the rest is for activations, keys and values."""
_SHARED_INPUTS = re.compile(r"\.(?:[qkv]|gate|up)_proj\.|\.(?:w1|w3)\.")


@dataclass(frozen=True)
class CalibrationEstimate:
    """An upper bound of a calibration's memory and work.

    Attributes:
        device_bytes: bytes of the weights that stay on the device; the others stay in main memory.
        importance_bytes: bytes of the importances while they are summed; 0 without importances.
        rows_bytes: bytes of the recorded inputs of one agent.
        tokens: by agent, the most tokens of prompts and replies, without what a chat template adds.
    """

    device: str
    dtype: str
    model_bytes: int
    device_bytes: int
    importance_bytes: int
    rows_bytes: int
    prompts: Mapping[str, int]
    tokens: Mapping[str, int]

    def lines(self) -> list[str]:
        """Return the estimate as text for the terminal."""
        from rich.filesize import decimal

        away = self.model_bytes - self.device_bytes
        rows = [
            ("device", f"{self.device}, {self.dtype}"),
            ("model", decimal(self.model_bytes) + (f", of which {decimal(away)} stay in main memory" if away else "")),
            *([("importances", decimal(self.importance_bytes))] if self.importance_bytes else []),
            *([("inputs", f"at most {decimal(self.rows_bytes)} an agent")] if self.rows_bytes else []),
            *(
                (
                    f"agent {name}",
                    f"{quantity(count, 'prompt')}, at most {quantity(self.tokens[name], 'token')} with their replies",
                )
                for name, count in self.prompts.items()
            ),
        ]
        width = max(len(label) for label, _ in rows)
        return [*(f"{label:<{width}}  {text}" for label, text in rows), "nothing was loaded (--dry-run)"]


def estimate(
    plan: MergePlan,
    prompts: Mapping[str, Sequence[Prompt]],
    settings: CalibrationSettings,
    device: torch.device,
    dtype: str,
) -> CalibrationEstimate:
    """Estimate a calibration's memory and work, from headers, configuration and prompts."""
    size = model_bytes(plan, dtype)
    importances = importance_bytes(plan, settings)
    budget = budget_of(size, importances, settings, device)
    most = positions(plan)
    return CalibrationEstimate(
        device=device_name(device),
        dtype=dtype,
        model_bytes=size,
        device_bytes=size if budget is None else min(size, budget),
        importance_bytes=importances,
        rows_bytes=rows_bytes(plan, settings.rows) if settings.gathers("inputs") else 0,
        prompts={name: len(each) for name, each in prompts.items()},
        tokens={name: sum(_token_bound(one, settings.max_new, most) for one in each) for name, each in prompts.items()},
    )


def model_bytes(plan: MergePlan, dtype: str) -> int:
    """Return the bytes of a model's weights in memory, in the dtype in which it runs."""
    return ITEM_BYTES[dtype] * sum(tensor.base.elements for tensor in plan.tensors if tensor.base.is_float)


def importance_bytes(plan: MergePlan, settings: CalibrationSettings) -> int:
    """Return the bytes of a model's importances while they are summed; 0 without importances."""
    return _IMPORTANCE_BYTES * plan.parameters_count if settings.gathers("importance") else 0


def rows_bytes(plan: MergePlan, rows: int) -> int:
    """Return the most bytes that recorded inputs of `rows` tokens take; layers with the same inputs share them.

    For a tensor that stacks experts, the longer side counts, because it is unknown which side is that of the inputs.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor in plan.tensors:
        shape, name = tensor.base.shape, _SHARED_INPUTS.sub(".shared.", tensor.name)
        if not tensor.base.is_float or tensor.name.endswith((*EMBEDDINGS, *HEADS)):
            continue
        if len(shape) == 2:
            shapes[name] = shape[-1:]
        elif len(shape) == 3:
            shapes |= {name_of(name, expert): shape[1:] for expert in range(shape[0])}
    few = rows_per_expert(rows, shapes)
    return _ROW_ITEM_BYTES * sum(
        max(shape) * (rows if number_of(name) is None else few) for name, shape in shapes.items()
    )


def positions(plan: MergePlan) -> int | None:
    """Return the most tokens of a sequence, from the model's configuration; None if not stated."""
    if (file := plan.companions.get("config.json")) is None:
        return None
    limits = [each.get("max_position_embeddings") for each in text_configs(read_json(file))]
    return next((each for each in limits if isinstance(each, int) and each > 1), None)


def _token_bound(prompt: Prompt, most_new: int, most: int | None) -> int:
    """Return an upper bound of the tokens of a prompt and its reply: a text has at most as many tokens as bytes."""
    texts = [prompt.text or "", *(message["content"] for message in prompt.messages)]
    reply_bytes = most_new
    if prompt.replies:
        best = prompt.best
        if best.ids:
            return min(len(best.ids), most or len(best.ids))
        reply_bytes = sum(len(text.encode()) for text in (best.text, *(turn["content"] for turn in best.turns))) + 1
    count = sum(len(text.encode()) for text in texts) + reply_bytes
    return count if most is None else min(count, most)


def budget_of(size: int, importances: int, settings: CalibrationSettings, device: torch.device) -> int | None:
    """Return the bytes of weights that stay on the device, for `offload`; None if all weights do.

    Args:
        importances: bytes of importances, which are held in addition to the weights.
    """
    free = host = memory()
    if device.type == "cuda":
        import torch

        free = int(torch.cuda.mem_get_info(device)[0])
    budget = parse_size(settings.device_memory) if settings.device_memory else int(_FOR_WEIGHTS * free)
    needs_host = size if device.type == "cpu" or size > budget else 0
    if needs_host + (importances if device.type == "cpu" else 0) > host:
        raise PlanError(_memory_problem(size, importances, "main memory", host))
    if size + importances <= budget or (device.type == "cpu" and not settings.device_memory):
        return None
    if importances:
        text = _memory_problem(size, importances, device_name(device), budget)
        raise PlanError(f"{text}; importances need the whole model on the device")
    return budget


def _memory_problem(size: int, importances: int, where: str, limit: int) -> str:
    from rich.filesize import decimal

    importances_text = f" and {decimal(importances)} of importances" if importances else ""
    return (
        f"the model needs {decimal(size)}{importances_text}, and {where} has {decimal(limit)}; use a machine with more "
        "memory, or --model-dtype bfloat16"
    )
