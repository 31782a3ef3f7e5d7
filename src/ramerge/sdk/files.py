"""Files that appear whole or not at all, locks, and the user's cache.

>>> from ramerge.sdk.files import write_file
>>> write_file(Path("scores.txt"), "code 0.5")  # an earlier file is kept until this one is complete
>>> Path("scores.txt").read_text()
'code 0.5'
"""

from ramerge.core.foundation import store
from ramerge.core.foundation.files import STANDARD_OUTPUT, check_state, lock, no_such_folder, write_file, write_texts

__all__ = [
    "STANDARD_OUTPUT",
    "check_state",
    "lock",
    "no_such_folder",
    "store",
    "write_file",
    "write_texts",
]
