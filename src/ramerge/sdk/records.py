"""Records of merges, read back and checked.

>>> from ramerge.sdk.records import read_record
>>> made = ramerge.merge("recipe.yaml", "merged")
>>> read_record(Path("merged/ramerge.json")).method
'ram+'
"""

from ramerge.core.engine.gathered_from import digests_of
from ramerge.core.engine.record import read_record, read_sweep
from ramerge.core.foundation.typedjson import read_model, to_model

__all__ = ["digests_of", "read_model", "read_record", "read_sweep", "to_model"]
