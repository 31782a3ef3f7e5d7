"""The entry point of the process. It imports nothing slow, so that signals are handled from the start.

Until `main` handles signals, a signal ends the process at once, with the same message as later.
"""

from __future__ import annotations

import gc
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than all imports of this module
    from types import FrameType
    from typing import NoReturn

# Objects that are made before garbage is looked for. Python's 700 costs a tenth of a second here, because what imports
# make stays.
_UNTIL_GARBAGE = 200_000


def main() -> NoReturn:
    """Entry point of the console script and of `python -m ramerge`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # not a traceback of the next import
    from ramerge.core.foundation.process import handle

    handle(_end_on_signal)
    gc.set_threshold(_UNTIL_GARBAGE)
    from ramerge.cli.main import main as run

    run()


def _end_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    from ramerge.core.foundation.process import interruption  # which is imported already

    # no exception, because it would be raised in the middle of an import
    try:
        os.write(2, f"{interruption(number, 'nothing was kept')}\n".encode())
    finally:
        os._exit(128 + number)
