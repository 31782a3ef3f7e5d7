"""What a drop mask gives to a kernel: keys of agents and tensors, thresholds and factors."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from ramerge.core.kernels.elementwise import Inputs
from ramerge.core.kernels.piece import Piece
from ramerge.core.methods.drop_mask import DropMask, key


def piece(tensor: str, start: int) -> Piece:
    words = np.zeros(4, np.uint32)
    none = np.empty((0, 0), np.uint8)
    return Piece(
        tensor, (8,), start, 4, Inputs(2), ("F32", "F32", "F32"), [words, words, words], "F32", words.copy(), none
    )


def test_key_digests_seed_agent_and_tensor() -> None:
    digest = hashlib.sha256(b"ramerge dare\n-3\ncode\nmodel.norm.weight").digest()
    assert key(-3, "code", "model.norm.weight") == tuple(np.frombuffer(digest[:8], "<u4").tolist())


def test_what_a_kernel_gets() -> None:
    drop = DropMask(7, ("code", "tool"), (0.5, 0.0), rescale=True).drop(piece("w", 4))
    assert drop.keys == (key(7, "code", "w"), key(7, "tool", "w"))
    assert drop.below == (2**31, 0)
    assert drop.scales == (2.0, 1.0)
    assert drop.start == 4


def test_kept_elements_are_unchanged_without_rescaling() -> None:
    drop = DropMask(7, ("code",), (0.9,), rescale=False).drop(piece("w", 0))
    assert drop.scales == (1.0,)
    assert drop.below == (pytest.approx(0.9 * 2**32, abs=1),)
