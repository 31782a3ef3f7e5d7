"""Prompts of an agent's task, with or without replies and rewards: JSON Lines, Parquet, or a folder of rollouts.

A record has a prompt, as text or as messages, and may have a reply and its reward. What trainers dump has the same
under other names: `KEYS` lists them. Several records of one prompt are several replies to it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ramerge.foundation.errors import InputError, reason
from ramerge.foundation.jsontext import JsonLimits, dumped, parse
from ramerge.foundation.text import shown

Message = Mapping[str, str]

PROMPT_KEYS = ("prompt", "messages", "input", "input_prompt", "question")
REPLY_KEYS = ("reply", "completion", "response", "output", "output_response")
REWARD_KEYS = ("reward", "score", "total_reward")
"""Names of prompt, reply and reward: ours and those of trainers. The first that a record has counts."""

_LIMITS = JsonLimits(size=16_000_000, signs=500_000)
_SUFFIXES = (".jsonl", ".json", ".ndjson", ".parquet")
_SHOWN_PROBLEMS = 10
_MOST_RECORDS = 1_000_000


@dataclass(frozen=True)
class Reply:
    """What an agent said.

    Attributes:
        text: the reply.
        reward: what it earned; None if that is not known.
    """

    text: str
    reward: float | None = None


@dataclass(frozen=True)
class Prompt:
    """A prompt and what is known to have been replied.

    Attributes:
        place: where it stands: the file, and its line or record.
        text: the prompt; None if it is messages.
        messages: the conversation up to the reply; empty if it is a text.
        replies: in the order of the records.
        about: what a reward function in verl's form gets besides the reply: data source, ground truth, extra info.
    """

    place: str
    text: str | None
    messages: tuple[Message, ...] = ()
    replies: tuple[Reply, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False)

    @property
    def key(self) -> str:
        """Equal for equal prompts."""
        return dumped([self.text, [dict(message) for message in self.messages]], indent=None)


def read_prompts(path: Path, most: int | None = None, seed: int = 0) -> list[Prompt]:
    """The prompts of a file, or of all files of a folder; each once, with all replies to it.

    Args:
        path: JSON Lines, Parquet, or a folder of such files, as trainers dump rollouts.
        most: how many prompts to draw if there are more; None for all.
        seed: of the draw, which depends on the prompts and not on their order.

    Raises:
        InputError: a file cannot be read, holds no prompt, or has records that are wrong; with the first ten problems.

    Example:
        >>> [prompt.text for prompt in read_prompts(Path("code.jsonl"), 1)]  # doctest: +SKIP
        ['def add(a, b):']
    """
    found: dict[str, list[Prompt]] = {}
    problems: list[str] = []
    for place, record in _records(path):
        try:
            prompt = _prompt(place, record)
        except ValueError as error:
            problems.append(f"{place}: {error}")
            continue
        found.setdefault(prompt.key, []).append(prompt)
    if problems:
        more = [f"and {len(problems) - _SHOWN_PROBLEMS:,} more"] if len(problems) > _SHOWN_PROBLEMS else []
        raise InputError(problems[:_SHOWN_PROBLEMS] + more)
    if not found:
        raise InputError(f"{path}: holds no prompts; give JSON Lines or Parquet with prompt or messages")
    prompts = [replace(same[0], replies=tuple(each for one in same for each in one.replies)) for same in found.values()]
    if most is None or len(prompts) <= most:
        return prompts
    drawn = sorted(prompts, key=lambda prompt: hashlib.sha256(f"{seed}\n{prompt.key}".encode()).digest())[:most]
    keys = {prompt.key for prompt in drawn}
    return [prompt for prompt in prompts if prompt.key in keys]


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        files = sorted(each for each in path.rglob("*") if each.suffix in _SUFFIXES) if path.is_dir() else [path]
        if not files:
            raise InputError(f"{path}: holds no files of rollouts ({', '.join(_SUFFIXES)})")
        count = 0
        for file in files:
            if file.exists() and not file.is_file():
                raise InputError(f"{file}: is not a regular file; give JSON Lines or Parquet")
            for item in _rows(file) if file.suffix == ".parquet" else _lines(file):
                count += 1
                if count > _MOST_RECORDS:
                    raise InputError(f"{path}: holds more than {_MOST_RECORDS:,} records; give a part of them")
                yield item
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {reason(error)}") from error


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_LIMITS.size + 1), b""), 1):
            if not line.strip():
                continue
            try:
                yield f"{path}: line {number}", parse(line, _LIMITS)
            except ValueError as error:
                raise InputError(f"{path}: line {number}: {error}; give JSON Lines: one object a line") from error


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise InputError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or give JSON Lines") from error
    try:
        number = 0
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=256):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}: record {number}", row
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: is not Parquet: {str(error).splitlines()[0]}") from error


def _prompt(place: str, record: Any) -> Prompt:
    """Raises `ValueError` with what is wrong."""
    if not isinstance(record, dict):
        raise ValueError("must be a JSON object")
    key = next((key for key in PROMPT_KEYS if record.get(key) is not None), None)
    if key is None:
        raise ValueError(f"has no prompt or messages; has {shown(', '.join(map(str, record))) or 'nothing'}")
    given = record[key]
    replied = next((record[key] for key in REPLY_KEYS if record.get(key) is not None), None)
    reward, about = _reward(record), _about(record)
    if isinstance(given, str):
        text = _text(key, given)
        replies = () if replied is None else (Reply(_reply_text(replied), reward),)
        return Prompt(place, text, (), replies, about)
    messages = _messages(key, given)
    if replied is None and messages[-1]["role"] == "assistant":
        *messages, last = messages
        replied = last["content"]
    if not messages:
        raise ValueError(f"{key} holds a reply and no prompt")
    replies = () if replied is None else (Reply(_reply_text(replied), reward),)
    return Prompt(place, None, tuple(messages), replies, about)


def _about(record: Mapping[str, Any]) -> dict[str, Any]:
    """What verl's data sets say of a prompt."""
    model, extra = record.get("reward_model"), record.get("extra_info")
    truth = model.get("ground_truth") if isinstance(model, Mapping) else record.get("ground_truth")
    source, more = str(record.get("data_source") or ""), dict(extra) if isinstance(extra, Mapping) else {}
    return {"data_source": source, "ground_truth": truth, "extra_info": more}


def _reward(record: Mapping[str, Any]) -> float | None:
    value = next((record[key] for key in REWARD_KEYS if record.get(key) is not None), None)
    if value is None:
        return None
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"reward must be a finite number, not {shown(repr(value))}")
    return float(value)


def _reply_text(value: Any) -> str:
    if isinstance(value, list) and value:  # a conversation: its last message is the reply
        value = _messages("completion", value)[-1]["content"]
    if not isinstance(value, str):
        raise ValueError("the reply must be text")
    return _text("the reply", value, may_be_empty=True)


def _messages(key: str, value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{key} must be text, or a list of messages with role and content")
    for place, message in enumerate(value, 1):
        if not isinstance(message, dict) or not all(isinstance(message.get(each), str) for each in ("role", "content")):
            raise ValueError(f"{key}: message {place} must be an object with a text role and a text content")
        _text(f"{key}: message {place}", message["content"], may_be_empty=True)
    return [{"role": message["role"], "content": message["content"]} for message in value]


def _text(what: str, value: str, *, may_be_empty: bool = False) -> str:
    if not value and not may_be_empty:
        raise ValueError(f"{what} is empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} holds half of a surrogate pair, which is no character") from error
    return value


def halves(prompts: Sequence[Prompt], seed: int = 0) -> tuple[list[Prompt], list[Prompt]]:
    """Two halves of prompts, drawn by seed: for statistics, and to score on. The first gets one more of an odd number.

    A half keeps the order of the prompts.
    """
    order = sorted(
        range(len(prompts)), key=lambda place: hashlib.sha256(f"half {seed}\n{prompts[place].key}".encode()).digest()
    )
    first = set(order[: -(-len(order) // 2)])
    return _picked(prompts, first, True), _picked(prompts, first, False)


def _picked(prompts: Sequence[Prompt], places: set[int], inside: bool) -> list[Prompt]:
    return [prompt for place, prompt in enumerate(prompts) if (place in places) is inside]
