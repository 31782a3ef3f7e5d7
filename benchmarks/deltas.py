"""Sizes of deltas over densities, and how fast blocks are encoded and decoded, next to whole tensors of xor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from benchmarks.checkpoints import base_words, moved_words
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import Spread, seconds, spread, tell
from ramerge.core.storage.own_files import BLOCK
from ramerge.core.tensors.arena import Arena
from ramerge.deltas.codec import Compression, Encoder, decode

Words = NDArray[np.uint16]

_DENSITIES = (0.001, 0.01, 0.03, 0.06, 0.12, 0.3, 0.6)
_BLOCKS = 16
_SEED = 1729
_WAYS: tuple[Compression, ...] = ("none", "zstd")
# slime compresses the xor of a whole tensor by level 1.
_FRAMES = {"slime (zstd -1 of the xor)": 1, "zstd -3 of the xor": 3}
# Shares of the agent's bytes, by density and compression.
_BARS = {(0.12, "none"): 0.22, (0.12, "zstd"): 0.17, (0.01, "none"): 0.03, (0.01, "zstd"): 0.03}


def measure(options: Options) -> dict[str, Any]:
    """For each density sizes as shares of the agent's, and GB of the agent a second on one core."""
    generator = np.random.default_rng(_SEED)
    base = base_words(generator, _BLOCKS * BLOCK)
    by_density = {}
    for density in _DENSITIES:
        agent = moved_words(generator, base, density)
        ways: dict[str, Any] = {way: _blocks(base, agent, way, options.runs) for way in _WAYS}
        ways |= {way: _xor(base, agent, level, options.runs) for way, level in _FRAMES.items()}
        if find_spec("zipnn"):
            ways["ZipNN of the xor"] = _zipnn(base, agent, options.runs)
        by_density[str(density)] = ways
        tell(f"deltas: density {density}: " + ", ".join(f"{way} {one['size']:.4f}" for way, one in ways.items()))
    return {"found": by_density}


def _blocks(base: Words, agent: Words, way: Compression, runs: int) -> dict[str, Any]:
    encoder, arena = Encoder(way), Arena(16 << 20)
    pairs = list(zip(np.split(base, _BLOCKS), np.split(agent, _BLOCKS), strict=True))
    blocks = [encoder.encode(*pair) for pair in pairs]
    payloads = [np.frombuffer(block.payload, np.uint8).copy() for block in blocks]
    out = np.empty(BLOCK, np.uint16)

    def read() -> None:
        for (below, _), block, payload in zip(pairs, blocks, payloads, strict=True):
            arena.clear()
            decode([block.row], payload, below, out, arena.take)

    size = sum(block.row.nbytes + block.row.numbers.nbytes for block in blocks)
    return _figures(size, agent, lambda: [encoder.encode(*pair) for pair in pairs], read, runs)


def _xor(base: Words, agent: Words, level: int, runs: int) -> dict[str, Any]:
    compressor, decompressor = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
    frame = compressor.compress((base ^ agent).data)

    def read() -> None:
        np.bitwise_xor(base, np.frombuffer(decompressor.decompress(frame), np.uint16))

    return _figures(len(frame), agent, lambda: compressor.compress((base ^ agent).data), read, runs)


def _zipnn(base: Words, agent: Words, runs: int) -> dict[str, Any]:
    from zipnn import ZipNN

    coder = ZipNN(bytearray_dtype="bfloat16", threads=1)
    frame = coder.compress((base ^ agent).tobytes())

    def read() -> None:
        np.bitwise_xor(base, np.frombuffer(coder.decompress(frame), np.uint16))

    return _figures(len(frame), agent, lambda: coder.compress((base ^ agent).tobytes()), read, runs)


def _figures(
    size: int, agent: Words, write: Callable[[], object], read: Callable[[], object], runs: int
) -> dict[str, Any]:
    write(), read()
    speed = {
        name: [agent.nbytes / seconds(call) / 1e9 for _ in range(runs)]
        for name, call in (("write", write), ("read", read))
    }
    return {"size": size / agent.nbytes, **speed}


def render(by_size: Mapping[str, RawResults]) -> str:
    """A table of sizes, one of speeds, and the bars."""
    by_density = by_size[""].data["found"]
    ways = list(next(iter(by_density.values())))
    titles = [f"delta, {way}" if way in _WAYS else way for way in ways]
    sizes = [(_percent(density), *(f"{each[way]['size']:.4f}" for way in ways)) for density, each in by_density.items()]
    speeds = [(_percent(density), *(_speeds(each[way]) for way in ways)) for density, each in by_density.items()]
    goals = [
        Bar(
            f"deltas.{way}.{density}",
            f"{_percent(density)} moved, {way}: bytes over the agent's",
            Spread(*[by_density[str(density)][way]["size"]] * 3),
            limit,
            digits=4,
        )
        for (density, way), limit in _BARS.items()
    ]
    text = (
        f"{_BLOCKS} blocks of {BLOCK:,} elements in bfloat16, of which a share has moved, at random places. Sizes are "
        "bytes over those of the agent; speeds are GB of the agent a second on one core, written and read, digests "
        "included. A whole xor can only be read from its beginning; blocks of a delta are read in any order. ZipNN is "
        "there where the package `zipnn` is installed."
    )
    return "\n\n".join([text, table(("moved", *titles), sizes), table(("moved", *titles), speeds), bars(goals)])


def _speeds(figures: Mapping[str, Sequence[float]]) -> str:
    return " / ".join(spread(figures[name]).text(1) for name in ("write", "read"))


def _percent(density: str | float) -> str:
    return f"{100 * float(density):g} %"


SECTION = Section("deltas", "Deltas", has_sizes=False, measure=measure, render=render)
