"""Events of long work, how a command shows them, and the exception that ends the work on a signal.

>>> from ramerge.sdk.progress import shown
>>> with shown(quiet=True) as listen:
...     listen(ramerge.Progress("reading", 1, 2, unit="files"))
"""

from ramerge.cli.progress import shown
from ramerge.core.foundation.errors import StoppedError
from ramerge.core.foundation.progress import Listener, silence

__all__ = [
    "Listener",
    "StoppedError",
    "shown",
    "silence",
]
