"""Reasons of errors, human-readable. The errors themselves are public names of `ramerge`.

>>> from ramerge.sdk.errors import reason
>>> reason(FileNotFoundError(2, "No such file or directory", "model"))
'No such file or directory'
"""

from ramerge.core.foundation.errors import AGAIN, OutputWarning, StoppedError, readable, reason

__all__ = ["AGAIN", "OutputWarning", "StoppedError", "readable", "reason"]
