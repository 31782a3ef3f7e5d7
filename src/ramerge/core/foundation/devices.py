"""torch devices, by their names."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.extras import install_command

if TYPE_CHECKING:
    import torch

_WORDS = re.compile(r"auto|cpu|cuda(:\d{1,3})?|mps")
_GPUS = ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")  # drivers of NVIDIA, of AMD, and of both under Windows


def read_device(text: str) -> str:
    """Check the name of a device, such as `auto` or `cuda:1`, but not whether the device exists."""
    if not isinstance(text, str) or not _WORDS.fullmatch(text):
        raise RecipeError(f"device: {text!r} is not one of auto, cpu, cuda, cuda:N and mps")
    return text


def may_have_gpu() -> bool:
    """Whether there may be a GPU, so that importing torch to look for it is worth the seconds."""
    return find_spec("torch") is not None and (sys.platform != "linux" or any(Path(each).exists() for each in _GPUS))


def choose_device(text: str, dtype: str = "float32") -> torch.device:
    """Return the device with this name; for `auto`, the best available.

    Raises:
        RecipeError: the name is invalid, or the device is not available or cannot compute in `dtype`.
    """
    read_device(text)
    try:
        import torch
    except ImportError as error:
        raise RecipeError(f"device: {text} needs torch; install it with `{install_command('torch')}`") from error
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if text == "auto":
        text = "cuda" if cuda else "mps" if mps and dtype != "float64" else "cpu"
    device = torch.device(text)
    usable = {"cpu": True, "cuda": cuda and (device.index or 0) < torch.cuda.device_count(), "mps": mps}
    if not usable[device.type]:
        raise RecipeError(
            f"device: {text!r} is not there, or torch {torch.__version__} is built without it; use auto or cpu"
        )
    if device.type == "mps" and dtype == "float64":
        raise RecipeError("device: mps cannot compute in float64; use cpu")
    return device


def device_name(device: torch.device) -> str:
    """Return a readable name of a torch device, with a GPU's model: `cuda:0 (NVIDIA H100 80GB HBM3)`."""
    import torch

    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
