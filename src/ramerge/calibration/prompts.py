"""The user's prompts, with or without replies and rewards, from JSON Lines, Parquet, or a folder of rollouts.

A record has a prompt, as text or as messages, and may have a reply and its reward. Rollouts that trainers dump have the
same under other names (`rollouts`). Several records of one prompt are several replies to it.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ramerge import CheckpointError, InputError
from ramerge.calibration.rollouts import NO_ROLLOUTS, Rollout, State, rollouts_of
from ramerge.core.formats.torchfile.load import load_file
from ramerge.core.foundation.text import MOST_ALIKE
from ramerge.scoring.records import parquet_rows
from ramerge.sdk.text import JsonLimits, dumped, first_of, parse, reason, shown, unknown

Message = Mapping[str, str]

# a line may hold a conversation of 100,000 tokens with their ids and likelihoods
_LIMITS = JsonLimits(size=64_000_000, signs=4_000_000)
_MOST_PROMPTS = 1_000_000
_MOST_REPLIES = 64
_CONVERT = (
    "its pickle is not executed; where slime wrote it, convert it to JSON Lines: "
    "torch.load(FILE, weights_only=False)['samples'], one object a line"
)


@dataclass(frozen=True)
class Reply:
    """A reply in a file of prompts, with its reward if known.

    Attributes:
        reward: its reward; None if unknown.
        turns: messages of the agent and its tools between the prompt and the reply.
        ids: token ids of prompt and reply, if the trainer kept them; they take precedence over text.
        start: the position in `ids` where the reply begins.
    """

    text: str
    reward: float | None = None
    turns: tuple[Message, ...] = ()
    ids: tuple[int, ...] = ()
    start: int = 0


@dataclass(frozen=True)
class Prompt:
    """A prompt and the replies to it in the files.

    Attributes:
        text: the prompt; None if it is a list of messages.
        messages: the conversation up to the reply; empty if it is a text.
        replies: in the order of the records, without duplicates; if there are too many, the best and newest.
        reward_fields: further arguments of a reward function in verl's form: data source, ground truth, extra info.
    """

    place: str
    text: str | None
    messages: tuple[Message, ...] = ()
    replies: tuple[Reply, ...] = ()
    reward_fields: Mapping[str, object] = field(default_factory=dict, hash=False, compare=False)
    state: State = "plain"

    @property
    def key(self) -> str:
        """A text that is the same for equal prompts."""
        return dumped([self.text, [dict(message) for message in self.messages]], indent=None)

    @property
    def content(self) -> tuple[object, ...]:
        """All that determines the replies to the prompt and their rewards."""
        return self.key, self.state, self.replies, self.reward_fields

    @property
    def best(self) -> Reply:
        """The reply with the highest reward; of equals the last, because trainers append. There must be a reply."""
        return max(reversed(self.replies), key=_reward_key)


def read_prompts(path: Path, most: int | None = None, seed: int = 0) -> list[Prompt]:
    """Read the prompts of a file, or of all files of a folder, each with all its replies.

    Files are streamed; only the drawn prompts are held in memory.

    Args:
        path: JSON Lines, Parquet, slime's rollouts, or a folder of such files, as trainers dump them.
        seed: the seed of the draw, which depends on the prompts, but not on their order.

    Raises:
        InputError: a file cannot be read, holds no prompt, or has wrong records; the first ten problems are listed.

    Example:
        >>> [prompt.text for prompt in read_prompts(Path("code.jsonl"), 1)]  # doctest: +SKIP
        ['def add(a, b):']
    """
    draw = _PromptDraw(_MOST_PROMPTS if most is None else most, seed)
    problems: list[str] = []
    wrong = 0
    for place, record in _read_records(path):
        try:
            for rollout in rollouts_of(record):
                draw.add(_prompt_of_rollout(place, rollout))
        except ValueError as error:
            wrong += 1
            if wrong <= MOST_ALIKE:
                problems.append(f"{place}: {error}")
        if most is None and draw.is_short:
            raise InputError(f"{path}: holds more than {_MOST_PROMPTS:,} prompts; give a part of them")
    if problems:
        raise InputError(first_of(problems, wrong))
    if not draw.prompts:
        raise InputError(f"{path}: holds no prompts; give JSON Lines or Parquet with prompt or messages")
    return list(draw.prompts.values())


class _PromptDraw:
    """Draws prompts by seed: those with the smallest digests, with all their replies.

    A prompt in the final draw is among the smallest from its first record on, so none of its replies is lost.
    """

    def __init__(self, most: int, seed: int) -> None:
        self.prompts: dict[int, Prompt] = {}
        self.is_short = False
        self._most, self._seed = most, seed
        self._largest: list[int] = []

    def add(self, prompt: Prompt) -> None:
        """Keep a prompt while it is among the drawn; add its replies if it is known."""
        digest = int.from_bytes(hashlib.sha256(f"{self._seed}\n{prompt.key}".encode()).digest(), "big")
        if (earlier := self.prompts.get(digest)) is not None:
            for reply in prompt.replies:
                if reply not in earlier.replies:
                    replies = (*earlier.replies, reply)
                    if len(replies) > _MOST_REPLIES:
                        worst = min(range(len(replies)), key=lambda place: _reward_key(replies[place]))
                        replies = replies[:worst] + replies[worst + 1 :]
                    earlier = replace(earlier, replies=replies)
            self.prompts[digest] = earlier
            return
        heapq.heappush(self._largest, -digest)
        self.prompts[digest] = prompt
        if len(self.prompts) > self._most:
            self.is_short = True
            del self.prompts[-heapq.heappop(self._largest)]


def _reward_key(reply: Reply) -> float:
    return -math.inf if reply.reward is None else reply.reward


def _read_records(path: Path) -> Iterator[tuple[str, object]]:
    try:
        files = files_of(path)
        if not files:
            raise InputError(f"{path}: holds no files of rollouts ({', '.join(_READERS)})")
        for file in files:
            if file.exists() and not file.is_file():
                raise InputError(f"{file}: is not a regular file; give JSON Lines or Parquet")
            yield from _READERS.get(file.suffix, _json_records)(file)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {reason(error)}") from error


def files_of(path: Path) -> list[Path]:
    """Return the file itself, or the files of a folder of rollouts ordered by number: step 2 before step 10."""
    if not path.is_dir():
        return [path]
    files = [each for each in path.rglob("*") if each.suffix in _READERS and each.name not in NO_ROLLOUTS]
    home = path.resolve()
    if outside := [each for each in files if not each.resolve().is_relative_to(home)]:
        raise InputError(f"{each}: leads out of the folder {path}; name that file itself" for each in outside)
    return sorted(
        files,
        key=lambda each: [
            int(part) if place % 2 else part for place, part in enumerate(re.split("([0-9]+)", str(each)))
        ],
    )


def _json_records(path: Path) -> Iterator[tuple[str, object]]:
    if path.suffix == ".pkl":
        raise InputError(f"{path}: is a pickle, which is not executed; give JSON Lines, such as SkyRL's dumped_evals")
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_LIMITS.size + 1), b""), 1):
            if not line.strip():
                continue
            try:
                yield f"{path}: line {number}", parse(line, _LIMITS)
            except ValueError as error:
                raise InputError(f"{path}: line {number}: {error}; give JSON Lines: one object a line") from error


def _parquet_records(path: Path) -> Iterator[tuple[str, object]]:
    yield from ((f"{path}: {place}", row) for place, row in parquet_rows(path, InputError))


def _torch_records(path: Path) -> Iterator[tuple[str, object]]:
    try:
        content = load_file(path)
    except CheckpointError as error:
        raise InputError(f"{error}; {_CONVERT}") from error
    samples = content.get("samples") if isinstance(content, dict) else None
    if not isinstance(samples, list):
        raise InputError(f"{path}: holds no samples of slime; give what --save-debug-rollout-data writes")
    for number, sample in enumerate(samples, 1):
        yield f"{path}: sample {number}", sample


_READERS: dict[str, Callable[[Path], Iterator[tuple[str, object]]]] = {
    ".jsonl": _json_records,
    ".json": _json_records,
    ".ndjson": _json_records,
    ".parquet": _parquet_records,
    ".pt": _torch_records,
}


def _prompt_of_rollout(place: str, rollout: Rollout) -> Prompt:
    """Convert a rollout into a prompt. Raises `ValueError` if it is invalid."""
    if isinstance(rollout.prompt, str):
        text, messages = _checked_text("prompt", rollout.prompt), []
    else:
        text, messages = None, _parse_messages("the prompt", rollout.prompt)
    reply_text = rollout.reply
    if reply_text is None and messages and messages[-1]["role"] == "assistant":
        *messages, last = messages
        reply_text = last["content"]
    if text is None and not messages:
        raise ValueError("holds a reply and no prompt")
    reply = None if reply_text is None else _parse_reply(reply_text, rollout)
    # an empty reply has no likelihood: the agent generates one
    replies = () if reply is None or not (reply.text or reply.ids) else (reply,)
    return Prompt(place, text, tuple(messages), replies, rollout.reward_fields, rollout.state)


def _parse_reply(reply_value: object, rollout: Rollout) -> Reply:
    turns: list[Message] = []
    if isinstance(reply_value, list) and reply_value:  # a conversation: its last message is the reply
        *turns, last = _parse_messages("the reply", reply_value)
        reply_value = last["content"]
    if not isinstance(reply_value, str):
        raise ValueError("the reply must be text")
    ids = tuple(token for token in rollout.ids if type(token) is int and token >= 0)
    if len(ids) < len(rollout.ids):
        raise ValueError("tokens must be token ids")
    text, reward = _checked_text("the reply", reply_value, may_be_empty=True), rollout.reward
    if reward is not None and (not isinstance(reward, int | float) or not math.isfinite(reward)):
        raise ValueError(f"reward must be a finite number, not {shown(repr(reward))}")
    return Reply(text, None if reward is None else float(reward), tuple(turns), ids, rollout.start)


def _parse_messages(key: str, value: object) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{key} must be text, or a list of messages with role and content")
    for place, message in enumerate(value, 1):
        if not isinstance(message, dict) or not all(isinstance(message.get(each), str) for each in ("role", "content")):
            raise ValueError(f"{key}: message {place} must be an object with a text role and a text content")
        _checked_text(f"{key}: message {place}", message["content"], may_be_empty=True)
    return [{"role": message["role"], "content": message["content"]} for message in value]


def _checked_text(what: str, value: str, *, may_be_empty: bool = False) -> str:
    if not value and not may_be_empty:
        raise ValueError(f"{what} is empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} holds half of a surrogate pair, which is no character") from error
    return value


def problems_of_names(agents: Sequence[str], prompts: Iterable[str]) -> list[str]:
    """Return the problems: prompts for unknown agents, and agents without prompts."""
    names = [*prompts]
    return [
        *(f"--prompts {name}: {unknown('agent', name, agents)}" for name in names if name not in agents),
        *(
            f"{name}: has no prompts; give --prompts {name}=FILE, or in a recipe prompts: {{{name}: FILE}}"
            for name in agents
            if name not in names
        ),
    ]


def halves(prompts: Sequence[Prompt], seed: int = 0) -> tuple[list[Prompt], list[Prompt]]:
    """Divide prompts into two halves by seed, for statistics and for scoring. With an odd number, the first is larger.

    A half keeps the order of the prompts.
    """
    order = sorted(
        range(len(prompts)), key=lambda place: hashlib.sha256(f"half {seed}\n{prompts[place].key}".encode()).digest()
    )
    first = set(order[: -(-len(order) // 2)])
    others = set(order) - first
    return [prompts[place] for place in sorted(first)], [prompts[place] for place in sorted(others)]
