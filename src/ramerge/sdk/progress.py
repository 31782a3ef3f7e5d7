"""progress."""

from ramerge.cli.progress import FORM, shown
from ramerge.core.foundation.progress import Listener, silence
from ramerge.core.foundation.signals import held, raise_dropped

__all__ = ["FORM", "Listener", "held", "raise_dropped", "shown", "silence"]
