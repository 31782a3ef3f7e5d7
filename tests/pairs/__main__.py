"""Pairs of features, drawn: `python -m tests.pairs` (`make pairs`).

Every draw takes three to five features and a relation, builds tiny models, and compares the sides of the relation. What
is drawn follows from the seed of the draw; a table at the end counts how it went.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

from tests.pairs.draws import Draw, Table, draws

_KERNELS = Path(__file__).parents[2] / ".pytest_cache" / "d" / "kernels"
"""Where machine code is kept between runs: tests keep it there, too."""
_PART = 10  # seeds that a process takes at once


def main() -> int:
    """Exit code 1 if a relation failed, or too many draws were refused."""
    parser = argparse.ArgumentParser(prog="python -m tests.pairs", description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=3000, help="how many (3,000)")
    parser.add_argument("--seed", type=int, help="of the first draw; default: the time")
    parser.add_argument("--only", default="", help="relations whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one a processor")
    parser.add_argument("--verbose", action="store_true", help="print every refusal")
    chosen = parser.parse_args()
    first = int(time.time()) if chosen.seed is None else chosen.seed
    print(f"seeds from {first}", flush=True)
    table, began = Table(), time.monotonic()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="ramerge-pairs-", dir=memory if memory.is_dir() else None) as scratch:
        cache = Path(scratch) / "cache" / "ramerge"
        cache.mkdir(parents=True)
        _KERNELS.mkdir(parents=True, exist_ok=True)
        (cache / "kernels").symlink_to(_KERNELS)
        os.environ |= {"RAMERGE_CACHE": str(cache.parent), "HOME": scratch}
        end = first + chosen.draws
        parts = [range(start, min(start + _PART, end)) for start in range(first, end, _PART)]
        some = partial(_some, scratch=scratch, only=chosen.only)
        with get_context("fork").Pool(chosen.jobs) as pool:
            for draw in chain.from_iterable(pool.imap_unordered(some, parts)):
                table.add(draw)
                if draw.outcome == "failed" or (chosen.verbose and draw.outcome == "refused"):
                    print(draw.described, flush=True)
                if table.total % 500 == 0:
                    print(f"{table.total:,} draws, {table.failed} failed, {time.monotonic() - began:.0f} s", flush=True)
    print(table.text)
    problems = table.problems
    for problem in problems:
        print(problem)
    seconds = time.monotonic() - began
    print(f"{table.total:,} draws in {seconds:.0f} s, {table.total / seconds:.1f} a second")
    return int(bool(problems))


def _some(seeds: range, scratch: str, only: str) -> list[Draw]:
    return list(draws(seeds, Path(scratch), only))


if __name__ == "__main__":
    sys.exit(main())
