"""Devices, processors, memory, limits, and packages that not every user has installed.

>>> from ramerge.sdk.machine import EVALUATION, install, processors
>>> "pip install" in install("report")
True
>>> EVALUATION
'pip install . ./packages/ramerge-eval'
>>> processors() >= 1
True
"""

from ramerge.core.foundation.devices import choose_device, device_name, read_device
from ramerge.core.foundation.extras import EVALUATION, data_frame, install, missing
from ramerge.core.foundation.limits import (
    ResourceLimits,
    check_options,
    check_settings,
    parse_size,
    read_limits,
    too_little,
)
from ramerge.core.foundation.machine import memory, peak_memory, processors
from ramerge.core.foundation.threads import map_in_threads, one_blas_thread

__all__ = [
    "EVALUATION",
    "ResourceLimits",
    "check_options",
    "check_settings",
    "choose_device",
    "data_frame",
    "device_name",
    "install",
    "map_in_threads",
    "memory",
    "missing",
    "one_blas_thread",
    "parse_size",
    "peak_memory",
    "processors",
    "read_device",
    "read_limits",
    "too_little",
]
