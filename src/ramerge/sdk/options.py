"""options."""

from ramerge.core.options import DEVICE, about, documented, settings_of

__all__ = ["DEVICE", "about", "documented", "settings_of"]
