"""DARE's drop mask: which elements of a task vector are dropped (Yu et al. 2024, arXiv 2311.03099).

Whether an element is dropped depends only on the seed, the agent's name, the tensor's name and the element's index. The
key for an agent's tensor is the first 8 bytes of the SHA-256 of the UTF-8 text
"ramerge dare\\n{seed}\\n{agent}\\n{tensor}" (\\n is a line feed), as two little-endian 32-bit words.
`kernels.elementwise` draws one word of Threefry-2x32-20 under that key for each element. An element is dropped if its
word is below floor(p * 2^32).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ramerge.core.kernels.elementwise import Drop, Each
from ramerge.core.kernels.piece import Piece
from ramerge.core.kernels.threefry import key_words


@dataclass(frozen=True)
class DropMask:
    """Drops elements of each agent at its rate. `rescale`: multiply the others by 1 / (1 - rate)."""

    seed: int
    agents: tuple[str, ...]
    rates: Each
    rescale: bool

    def drop(self, piece: Piece) -> Drop:
        return Drop(
            keys=tuple(key(self.seed, agent, piece.tensor) for agent in self.agents),
            below=tuple(int(rate * 2**32) for rate in self.rates),
            scales=tuple(1 / (1 - rate) if self.rescale else 1.0 for rate in self.rates),
            start=piece.start,
        )


def key(seed: int, agent: str, tensor: str) -> tuple[int, int]:
    return key_words(hashlib.sha256(f"ramerge dare\n{seed}\n{agent}\n{tensor}".encode()).digest())
