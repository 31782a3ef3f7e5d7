"""`python -m tests.fuzz`: mutated inputs until the number that is asked for, with a line for each kind."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path

from tests.fuzz import KINDS, kind
from tests.fuzz.runner import run

KEPT = Path(__file__).with_name("seeds.json")
"""Seeds by kind that have found a defect once. They run first, always."""

_MOST_DEFECTS = 5
_HEAD = ("cases", "taken", "refused", "slowest", "memory")


def seeds_of(name: str, first: int) -> Iterator[int]:
    """Those that are kept, and all from `first`."""
    return chain(json.loads(KEPT.read_text()).get(name, []), count(first))


def main() -> int:
    """Run, print, and tell how it went."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="of all kinds together (100,000)")
    parser.add_argument("--kind", choices=KINDS, action="append", help="repeat for several; default: all")
    parser.add_argument("--seed", type=int, help="the first seed; default: the time")
    chosen = parser.parse_args()
    names = chosen.kind or KINDS
    first = int(time.time()) if chosen.seed is None else chosen.seed
    each = -(-chosen.cases // len(names))
    print(f"seeds from {first}\n{'kind':<12}", *(f"{one:>8}" for one in _HEAD), " defects")
    failed = False
    for name in names:
        found = run(kind(name), seeds_of(name, first), each)
        figures = f"{found.cases:8,} {found.taken:8,} {found.cases - found.taken - len(found.defects):8,}"
        print(
            f"{name:<12} {figures} {found.slowest:6.2f} s {found.peak_bytes / 1e6:5.0f} MB  {len(found.defects)}",
            flush=True,
        )
        for defect in found.defects[:_MOST_DEFECTS]:
            print(f"    {defect}", flush=True)
        failed |= bool(found.defects)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
