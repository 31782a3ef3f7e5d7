"""Records of merges, and a plug-in's own JSON files, read as checked dataclasses.

>>> from ramerge.sdk.records import read_record, refuse_sweep
>>> made = ramerge.merge("recipe.yaml", "merged")
>>> refuse_sweep(Path("merged"))
>>> read_record(Path("merged/ramerge.json")).method
'ram+'
"""

from ramerge.core.engine.record import read_record, refuse_sweep
from ramerge.core.foundation.typedjson import to_model

__all__ = [
    "read_record",
    "refuse_sweep",
    "to_model",
]
