"""Settings that are declared once: as fields of a dataclass, with the option that the command line makes of them.

>>> from ramerge.sdk.options import settings_of
>>> "threads" in {name for name, _, _ in settings_of(ramerge.Options)}
True
"""

from ramerge.core.options import DEVICE, about, documented, settings_of

__all__ = ["DEVICE", "about", "documented", "settings_of"]
