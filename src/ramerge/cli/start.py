"""Where the process begins: with nothing imported that takes time, and nothing begun that could be lost.

Until `main` takes over, a signal ends the process at once and in the words of later.
"""

from __future__ import annotations

import os

from ramerge.foundation.process import handle, stopped

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself takes longer to import than all that is imported here
    from types import FrameType
    from typing import NoReturn


def main() -> NoReturn:
    """Entry point of the console script and of `python -m ramerge`."""
    handle(_end)
    from ramerge.cli.main import main as run

    run()


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    # no exception: it would go through whatever is being imported
    try:
        os.write(2, f"{stopped(number, 'nothing was kept')}\n".encode())
    finally:
        os._exit(128 + number)
