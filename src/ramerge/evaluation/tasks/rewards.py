"""Your own prompts, scored by a reward function in verl's form.

Records are those of verl's data sets (docs/preparation/prepare_data of verl): `prompt` is a text or a list of messages,
`reward_model` holds `ground_truth`, and `data_source` and `extra_info` are passed on. The function is verl's
`compute_score(data_source, solution_str, ground_truth, extra_info)`; it returns a number, or a mapping with `score` (of
earlier versions: `reward`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from ramerge.evaluation.benchmark import Benchmark, BenchmarkSettings, Chat, Item, Message, Subset, Verdict
from ramerge.evaluation.data import read_records, refuse
from ramerge.evaluation.functions import in_words, load
from ramerge.evaluation.guard import guarded
from ramerge.foundation.errors import EvaluationError
from ramerge.foundation.text import shown

PROMPTS = "prompts"
_ROLES = ("system", "user", "assistant", "tool", "developer")


class RewardsSettings(BenchmarkSettings):
    """Generation, and the function."""

    function: str = Field("", description="the reward function: file.py:compute_score or module:compute_score")
    reward_seconds: float = Field(10.0, gt=0, le=3600, description="seconds that one call of the function may take")


@dataclass(frozen=True)
class Prompt:
    """One record."""

    messages: tuple[Message, ...]
    data_source: str
    ground_truth: Any
    extra_info: Mapping[str, Any]


class RewardsBenchmark(Benchmark[RewardsSettings]):
    """Prompts of a user, and what a reward function says of the answers."""

    name = "rewards"
    data: ClassVar[Mapping[str, str]] = {
        PROMPTS: "JSON lines or verl's parquet: prompt, reward_model with ground_truth, data_source, extra_info"
    }
    settings_type = RewardsSettings

    def subsets(self) -> Sequence[Subset]:
        return (Subset(PROMPTS, "Reward", ("reward",)),)

    def check(self, subsets: Sequence[str]) -> None:
        if PROMPTS not in self.context.data:
            raise EvaluationError("ramerge/rewards: needs --data prompts=FILE, JSON lines or verl's parquet")
        if not self.settings.function:
            raise EvaluationError("ramerge/rewards: needs --task-set rewards.function=file.py:compute_score")
        assert self._function and self._prompts

    def items(self, subset: str) -> Iterator[Item]:
        for number, prompt in enumerate(self._prompts, 1):
            yield Item(str(number), prompt)

    async def ask(self, subset: str, item: Item, chat: Chat) -> str:
        return (await chat(item.value.messages)).text

    async def score(self, subset: str, item: Item, answers: str) -> Verdict:
        found, problem = guarded(self._call, item.value, answers, seconds=self.settings.reward_seconds)
        reward, details = found if found is not None else (0.0, {})
        return Verdict({"reward": (reward, 1.0)}, answers, problem, details)

    def target(self, subset: str, item: Item) -> str:
        return str(item.value.ground_truth)

    def _call(self, prompt: Prompt, answer: str) -> tuple[float, Mapping[str, Any]]:
        """The reward, and what else the function says."""
        returned = self._function[1](
            data_source=prompt.data_source,
            solution_str=answer,
            ground_truth=prompt.ground_truth,
            extra_info=dict(prompt.extra_info),
        )
        details = dict(returned) if isinstance(returned, Mapping) else {}
        value: Any = details.get("score", details.get("reward")) if details else returned
        reward = float(value)
        if not math.isfinite(reward):
            raise ValueError(f"the reward is {reward}")
        return reward, details

    @cached_property
    def _function(self) -> Any:
        try:
            return load(self.settings.function)
        except Exception as error:
            text = f"ramerge/rewards: --task-set rewards.function={self.settings.function}: {in_words(error)}"
            raise EvaluationError(text) from error

    @cached_property
    def _prompts(self) -> list[Prompt]:
        path = self.context.data[PROMPTS]
        records = _parquet(path) if path.suffix == ".parquet" else read_records(path, {})
        refuse(f"{path}, record {number}: {text}" for number, one in enumerate(records, 1) for text in _problems(one))
        return [_prompt(record) for record in records]


def _parquet(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of verl's.

    Raises:
        EvaluationError: it is none, or pyarrow is not here.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise EvaluationError(f"{path}: needs pyarrow, which is not here: pip install pyarrow") from error
    try:
        records: list[dict[str, Any]] = read_table(path).to_pylist()
    except (ArrowException, OSError) as error:
        raise EvaluationError(f"{path}: is no parquet file that pyarrow reads ({shown(error)})") from error
    if not records:
        raise EvaluationError(f"{path}: holds no record")
    return records


def _problems(record: Any) -> Iterator[str]:
    if not isinstance(record, dict):
        yield "must be an object"
        return
    prompt = record.get("prompt")
    if prompt is None:
        yield f"lacks prompt; has {shown(', '.join(record)) or 'nothing'}"
    elif not isinstance(prompt, str) and not (isinstance(prompt, list) and prompt and all(map(_is_message, prompt))):
        yield "prompt: must be a text, or a list of messages with role and content"
    if _ground_truth(record) is None:
        yield "lacks reward_model with ground_truth"
    if not isinstance(record.get("extra_info"), dict | None):
        yield "extra_info: must be an object"


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, dict) and message.get("role") in _ROLES and isinstance(message.get("content"), str | list)
    )


def _ground_truth(record: Mapping[str, Any]) -> Any:
    model = record.get("reward_model")
    return model.get("ground_truth") if isinstance(model, dict) else record.get("ground_truth")


def _prompt(record: Mapping[str, Any]) -> Prompt:
    prompt = record["prompt"]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    source = str(record.get("data_source") or "")
    return Prompt(tuple(messages), source, _ground_truth(record), record.get("extra_info") or {})
