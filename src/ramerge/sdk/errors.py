"""errors."""

from ramerge.core.foundation.errors import AGAIN, OutputWarning, StoppedError, readable, reason

__all__ = ["AGAIN", "OutputWarning", "StoppedError", "readable", "reason"]
