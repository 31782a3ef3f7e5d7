"""Settings: fields of a dataclass that become command-line options, and checks of users' values.

>>> from dataclasses import dataclass, field
>>> from ramerge.sdk.options import about
>>> @dataclass(frozen=True)
... class Scoring:
...     limit: int = field(default=16, metadata=about("--limit", "score", "Items of each task.", "N", kind=int))
>>> Scoring().limit
16
"""

from ramerge.core.foundation.extras import missing
from ramerge.core.foundation.machine import processors
from ramerge.core.foundation.settings import check_options, check_settings, read_limits
from ramerge.core.options import about, documented

__all__ = [
    "about",
    "check_options",
    "check_settings",
    "documented",
    "missing",
    "processors",
    "read_limits",
]
