"""records."""

from ramerge.core.engine.record import read_record, read_sweep
from ramerge.core.engine.recorded import digest_of
from ramerge.core.foundation.typedjson import read_model, to_model

__all__ = ["digest_of", "read_model", "read_record", "read_sweep", "to_model"]
