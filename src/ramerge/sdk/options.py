"""Settings that are declared once: as fields of a dataclass, of which the command line makes options.

>>> from dataclasses import dataclass, field
>>> from ramerge.sdk.options import about
>>> @dataclass(frozen=True)
... class Scoring:
...     limit: int = field(default=16, metadata=about("--limit", "score", "Items of each task.", "N", kind=int))
>>> Scoring().limit
16
"""

from ramerge.core.options import DEVICE, about, documented, in_both_forms

__all__ = ["DEVICE", "about", "documented", "in_both_forms"]
