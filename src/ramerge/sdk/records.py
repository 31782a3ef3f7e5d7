"""Records of merges, and a plug-in's own JSON files, read as checked dataclasses.

>>> from ramerge.sdk.records import read_record
>>> made = ramerge.merge("recipe.yaml", "merged")
>>> read_record(Path("merged/ramerge.json")).method
'ram+'
"""

from ramerge.core.engine.record import read_record
from ramerge.core.foundation.typedjson import to_model

__all__ = [
    "read_record",
    "to_model",
]
