"""Formats of checkpoints: how to recognize and open a folder, from headers alone.

>>> from ramerge.sdk.formats import read_config
>>> read_config(Path("base"))["model_type"]
'llama'
"""

from ramerge.core.formats.files import read_config, read_json
from ramerge.core.formats.format import Format, Opening

__all__ = [
    "Format",
    "Opening",
    "read_config",
    "read_json",
]
