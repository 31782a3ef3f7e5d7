"""Exchanges, which are prompts with replies as token ids, and their file `replies.jsonl`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ramerge import InputError
from ramerge.core.foundation.files import read_regular
from ramerge.sdk.records import to_model
from ramerge.sdk.text import JsonLimits, parse, reason

REPLIES = "replies.jsonl"
MOST_BYTES = 1 << 30
"""The maximum size of one agent's file."""
_MOST_ID = 1 << 31
_LIMITS = JsonLimits(size=64_000_000, signs=4_000_000)


@dataclass(frozen=True)
class Exchange:
    """A prompt and a reply, as token ids.

    Attributes:
        start: the position where the reply begins, at least 1.
        reward: the reply's reward; None if unknown.
        generated: whether the agent generated the reply.
        truncated: whether ids were cut off, because the model has no more positions.
        ended: whether the reply ends with an end token.
        held_out: whether no statistic uses the exchange, so that merges can be scored on it.
    """

    place: str
    ids: tuple[int, ...]
    start: int
    text: str
    reward: float | None = None
    generated: bool = True
    truncated: bool = False
    ended: bool = True
    key: str = ""
    held_out: bool = False

    @property
    def labels(self) -> int:
        """The number of tokens of the reply."""
        return len(self.ids) - self.start


def to_lines(exchanges: Iterable[Exchange]) -> str:
    """Return the text of `replies.jsonl`: one JSON object per line."""
    return "".join(json.dumps(asdict(each)) + "\n" for each in exchanges)


def read_exchanges(path: Path, content: bytes | None = None, *, partial: bool = False) -> list[Exchange]:
    """Read the exchanges of a file `replies.jsonl`.

    Args:
        partial: whether the file may end in the middle of a line, as after a kill; an incomplete line is ignored.
    """
    exchanges = []
    try:
        lines = (read_regular(path, MOST_BYTES) if content is None else content).split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {reason(error)}") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}; run `ramerge calibrate` again") from error
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            exchanges.append(_parse_exchange(parse(line, _LIMITS)))
        except ValueError as error:
            if partial and number == len(lines):
                break
            raise InputError(f"{path}: line {number}: is no reply; run `ramerge calibrate` again") from error
    return exchanges


def _parse_exchange(values: Mapping[str, Any]) -> Exchange:
    exchange = to_model(values, Exchange)
    if not all(0 <= each < _MOST_ID for each in exchange.ids) or not 0 < exchange.start < len(exchange.ids):
        raise ValueError("ids")
    if exchange.reward is not None and not math.isfinite(exchange.reward):
        raise ValueError("reward")
    return exchange
