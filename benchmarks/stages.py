"""One merge through the library, with the times of its steps: `python -m benchmarks.stages METHOD OUT BASE A=PATH...`.

Prints JSON. Times are those of the system's monotonic clock, so that whoever started the process can relate them to
its start. Imports nothing that `ramerge merge` does not.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramerge import Progress


class _Listener:
    """Notes when a stage began, when its first block was done, and when its last."""

    def __init__(self) -> None:
        self.stages: dict[str, dict[str, float]] = {}

    def __call__(self, event: Progress) -> None:
        now = time.monotonic()
        if event.stage not in self.stages:
            self.stages[event.stage] = {"begun": now}
            return
        self.stages[event.stage].setdefault("first_block", now)
        self.stages[event.stage]["ended"] = now


def _main(method: str, out: str, base: str, *agents: str) -> None:
    import ramerge

    import_end = time.monotonic()
    listener = _Listener()
    recipe = {"method": method, "base": base, "agents": dict(agent.split("=", 1) for agent in agents)}
    record = ramerge.merge(recipe, out, on_progress=listener, options=ramerge.Options(overwrite=True, cache=False))
    merge_end = time.monotonic()
    print(
        json.dumps({"imported": import_end, "stages": listener.stages, "merged": merge_end, "record": record.seconds})
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
