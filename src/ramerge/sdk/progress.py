"""Events of long work, how a command shows them, and signals that wait until files are whole.

>>> from ramerge.sdk.progress import shown
>>> with shown(quiet=True) as listen:
...     listen(ramerge.Progress("reading", 1, 2, unit="files"))
"""

from ramerge.cli.progress import FORM, shown
from ramerge.core.foundation.progress import Listener, silence
from ramerge.core.foundation.signals import held, raise_dropped

__all__ = ["FORM", "Listener", "held", "raise_dropped", "shown", "silence"]
