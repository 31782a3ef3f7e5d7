"""Files that appear whole or not at all, locks, and paths that do not lead out of a folder.

>>> from ramerge.sdk.files import write_file
>>> write_file(Path("scores.txt"), "code 0.5")  # an earlier file is kept until this one is complete
>>> Path("scores.txt").read_text()
'code 0.5'
"""

from ramerge.core.foundation import store
from ramerge.core.foundation.files import (
    STANDARD_OUTPUT,
    check_state,
    lock,
    near_file,
    no_such_folder,
    read_state,
    write_all,
    write_file,
    write_texts,
)
from ramerge.core.foundation.systems import NO_LINK, NO_WAIT, PRIVATE, STOPPING, lock_file
from ramerge.core.tensors.paths import climbs_out, is_too_long, linked_out

__all__ = [
    "NO_LINK",
    "NO_WAIT",
    "PRIVATE",
    "STANDARD_OUTPUT",
    "STOPPING",
    "check_state",
    "climbs_out",
    "is_too_long",
    "linked_out",
    "lock",
    "lock_file",
    "near_file",
    "no_such_folder",
    "read_state",
    "store",
    "write_all",
    "write_file",
    "write_texts",
]
