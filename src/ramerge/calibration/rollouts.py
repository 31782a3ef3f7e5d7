"""The forms of files with prompts and replies: ramerge's own, and trainers' rollouts.

A form is recognized by the keys of its records, and defines where prompt, reply and reward are. Texts come in three
states. Plain text is written by a user; the tokenizer puts its special tokens in front. Rendered text is all that the
model has read, with special tokens. Decoded text has lost all special tokens (`skip_special_tokens`), even those of the
chat template, and its replies have lost the end token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal

from ramerge.sdk.text import shown

Record = Mapping[str, Any]
State = Literal["plain", "rendered", "decoded"]


@dataclass(frozen=True)
class Rollout:
    """A record's prompt, and its reply if there is one, unchecked.

    Attributes:
        reward: a number; None if unknown.
        reward_fields: arguments of a reward function: data source, ground truth, extra info.
        ids: all token ids of prompt and reply; empty if the trainer has not kept them.
        start: the position in `ids` where the model's last reply begins.
    """

    prompt: object
    reply: object = None
    reward: object = None
    state: State = "plain"
    reward_fields: Record = field(default_factory=lambda: _reward_fields(None, None, None))
    ids: Sequence[object] = ()
    start: int = 0


@dataclass(frozen=True)
class Form:
    """The form of a program's rollouts.

    Attributes:
        keys: keys that its records have, and records of the forms after it do not have.
        read: returns the rollouts of a record; none if it failed. Raises `ValueError` if the record is invalid.
    """

    name: str
    keys: frozenset[str]
    read: Callable[[Record], Iterable[Rollout]]


def rollouts_of(record: object) -> Iterable[Rollout]:
    """Return the rollouts of a record of any form.

    Raises:
        ValueError: the record has none of the forms.

    Example:
        >>> [rollout.reply for rollout in rollouts_of({"prompt": "2 + 2 =", "reply": "4"})]
        ['4']
    """
    if not isinstance(record, Mapping):
        raise ValueError("must be a JSON object")
    return next(form for form in FORMS if form.keys <= record.keys()).read(record)


def _ramerge_rollouts(record: Record) -> Iterator[Rollout]:
    prompt = _first_present(record, "prompt", "messages", "question", "input")
    if prompt is None:
        raise ValueError(f"has neither prompt nor messages; its keys: {shown(', '.join(map(str, record))) or 'none'}")
    if record.get("tools") and not isinstance(prompt, str):
        raise ValueError("has tools, which are not passed to the chat template; write all that the agent reads as text")
    reply = _first_present(record, "reply", "completion", "response", "output")
    model = record.get("reward_model")
    truth = model.get("ground_truth") if isinstance(model, Mapping) else record.get("ground_truth")
    reward_fields = _reward_fields(record.get("data_source"), truth, record.get("extra_info"))
    yield Rollout(prompt, reply, _first_present(record, "reward", "score"), reward_fields=reward_fields)


def _verl_rollouts(record: Record) -> Iterator[Rollout]:
    reward_fields = _reward_fields(record.get("data_source"), record.get("gts"), record.get("extra_info"))
    yield Rollout(record["input"], record["output"], record["score"], "decoded", reward_fields)


def _trl_rollouts(record: Record) -> Iterator[Rollout]:
    """Columns after the completion hold the reward of each reward function, as float64; NaN if it does not apply."""
    columns = list(record)
    between = columns[columns.index("completion") + 1 : columns.index("advantage")]
    rewards = [record[name] for name in between if isinstance(record[name], float) and not math.isnan(record[name])]
    yield Rollout(record["prompt"], record["completion"], sum(rewards) if rewards else None, "decoded")


def _skyrl_rollouts(record: Record) -> Iterator[Rollout]:
    score = record["score"]
    extras = _mapping_or_empty(record.get("env_extras"))
    reward_fields = _reward_fields(
        record.get("data_source"),
        _mapping_or_empty(extras.get("reward_spec")).get("ground_truth"),
        extras.get("extra_info"),
    )
    reward = sum(score) if isinstance(score, list) and all(isinstance(each, float | int) for each in score) else score
    yield Rollout(record["input_prompt"], record["output_response"], reward, "rendered", reward_fields)


def _slime_rollouts(record: Record) -> Iterator[Rollout]:
    if record["status"] not in ("completed", "truncated"):
        return
    reward, tokens, length = record.get("reward"), record["tokens"], record["response_length"]
    if isinstance(reward, Mapping):
        if "score" not in reward:
            raise ValueError(f"reward has no score, but {shown(', '.join(map(str, reward))) or 'nothing'}")
        reward = reward["score"]
    ids: Sequence[object] = ()
    start = 0
    if isinstance(tokens, list) and isinstance(length, int) and 0 < length < len(tokens):
        mask = record.get("loss_mask")
        mask = mask if isinstance(mask, list) and len(mask) == length else [1] * length
        ids, start = _last_sampled_run(tokens, [0] * (len(tokens) - length) + mask)
    reward_fields = _reward_fields(None, record.get("label"), record.get("metadata"))
    yield Rollout(record["prompt"], record["response"], reward, "rendered", reward_fields, ids, start)


def _prime_rl(record: Record) -> Iterator[Rollout]:
    for trace in _list_or_empty(record["traces"]):
        if isinstance(trace, Mapping) and _mapping_or_empty(trace.get("agent")).get("trainable", True):
            yield from _trace_rollouts(trace)


def _trace_rollouts(record: Record) -> Iterator[Rollout]:
    """Return the rollouts of a trace, a graph of messages with tokens; the model's last message is the reply."""
    nodes = [_mapping_or_empty(node) for node in _list_or_empty(record.get("nodes"))]
    last = max((place for place, node in enumerate(nodes) if node.get("sampled")), default=None)
    if last is None:
        return
    path = [last]
    while isinstance(parent := nodes[path[-1]].get("parent"), int) and 0 <= parent < path[-1]:
        path.append(parent)
    nodes = [nodes[place] for place in reversed(path)]
    tokens = [token for node in nodes for token in _list_or_empty(node.get("token_ids"))]
    mask = [each for node in nodes for each in _list_or_empty(node.get("mask"))]
    ids, start = _last_sampled_run(tokens, mask) if len(tokens) == len(mask) else ((), 0)
    messages = [_mapping_or_empty(node.get("message")) for node in nodes]
    if not ids and any(message.get("tool_calls") for message in messages):
        raise ValueError("has calls of tools without token_ids, and no text shows how the model wrote them")
    turns = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = "\n".join(str(_mapping_or_empty(part).get("text", "")) for part in content)
        turns.append(
            {"role": message.get("role"), "content": "" if content is None else content}
        )  # none: calls of tools
    questions = list(takewhile(lambda message: message["role"] != "assistant", turns))
    data = _mapping_or_empty(_mapping_or_empty(record.get("task")).get("data"))
    rewards = []
    for reward in _mapping_or_empty(record.get("rewards")).values():
        if reward is None:
            continue
        parts = reward if isinstance(reward, Mapping) else {"score": reward}
        score, weight = parts.get("score"), parts.get("weight", 1.0)
        if not isinstance(score, int | float) or not isinstance(weight, int | float):
            raise ValueError("rewards must be numbers, or objects with score and weight")
        rewards.append(float(score * weight))
    reward_fields = _reward_fields(None, data.get("answer"), data)
    yield Rollout(
        questions, turns[len(questions) :], sum(rewards) if rewards else None, "plain", reward_fields, ids, start
    )


def _last_sampled_run(ids: Sequence[object], mask: Sequence[object]) -> tuple[Sequence[object], int]:
    """Return the ids up to the last sampled id, and the start of the last sampled run."""
    end = len(mask)
    while end and not mask[end - 1]:
        end -= 1
    start = end
    while start and mask[start - 1]:
        start -= 1
    return (ids[:end], start) if start > 0 else ((), 0)


def _reward_fields(source: object, truth: object, extra: object) -> dict[str, object]:
    return {"data_source": str(source or ""), "ground_truth": truth, "extra_info": dict(_mapping_or_empty(extra))}


def _first_present(record: Record, *keys: str) -> object:
    return next((record[key] for key in keys if record.get(key) is not None), None)


def _mapping_or_empty(value: object) -> Record:
    return value if isinstance(value, Mapping) else {}


def _list_or_empty(value: object) -> list[object]:
    return value if isinstance(value, list) else []


FORMS = tuple(
    Form(name, frozenset(keys.split()), read)
    for name, keys, read in (
        ("verl", "input output score step", _verl_rollouts),
        ("TRL", "step prompt completion advantage", _trl_rollouts),
        ("SkyRL", "input_prompt output_response score", _skyrl_rollouts),
        ("slime", "prompt response status tokens response_length", _slime_rollouts),
        ("prime-rl", "traces task", _prime_rl),
        ("verifiers", "nodes rewards task", _trace_rollouts),
        # that of OpenRLHF too: input, output, reward
        ("ramerge", "", _ramerge_rollouts),
    )
)
"""All forms; the first form whose keys a record has applies."""

NO_ROLLOUTS = frozenset({"aggregated_results.jsonl", "metrics.jsonl"})
"""Files with metrics that SkyRL and prime-rl write among rollouts."""
