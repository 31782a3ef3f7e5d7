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
from multiprocessing import get_context
from pathlib import Path

from tests.pairs.draws import Draw, Table, draws

_KERNELS = Path(__file__).parents[2] / ".pytest_cache" / "d" / "kernels"
"""Where machine code is kept between runs: tests keep it there, too."""


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
        seeds = [range(first + job, first + chosen.draws, chosen.jobs) for job in range(chosen.jobs)]
        with get_context("fork").Pool(chosen.jobs) as pool:
            for draw in _results(pool, [(part, chosen.only, scratch) for part in seeds if part]):
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


def _results(pool, parts):  # type: ignore[no-untyped-def]
    """The draws of all processes, as they end."""
    chunks = [
        (part[start : start + _CHUNK], only, scratch)
        for part, only, scratch in parts
        for start in range(0, len(part), _CHUNK)
    ]
    for found in pool.imap_unordered(_some, chunks):
        yield from found


_CHUNK = 10


def _some(part: tuple[range, str, str]) -> list[Draw]:
    seeds, only, scratch = part
    return list(draws(seeds, Path(scratch), only))


if __name__ == "__main__":
    sys.exit(main())
