"""Mathematics: GSM8K and MATH500, through lm-eval.

Sources: Cobbe et al., Training Verifiers to Solve Math Word Problems, 2021, arXiv 2110.14168; Hendrycks et al.,
Measuring Mathematical Problem Solving With the MATH Dataset, 2021, arXiv 2103.03874, in the 500 problems of Lightman
et al., 2023, arXiv 2305.20050. The paper names lm-eval, but neither which of its tasks nor their settings.

GSM8K is lm-eval's `gsm8k`: five examples drawn from the train split. Where a local test file comes without the train
split, it is `gsm8k_cot`: eight fixed examples that ship with lm-eval, and the same two ways to find the answer.

MATH500 is lm-eval's `minerva_math500`, four fixed examples, with its metric `math_verify`: the only one in lm-eval that
takes an answer out of `\\boxed{}`, the way chat models give it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from ramerge.evaluation.benchmark import BenchmarkSettings, Subset, Verdict
from ramerge.evaluation.data import read_records, refuse, refuse_duplicates
from ramerge.evaluation.tasks.harness import (
    NO_FILTER,
    HarnessBenchmark,
    HarnessTask,
    Judged,
    PromptedDocument,
    imported,
    load,
)
from ramerge.foundation.errors import EvaluationError

_INVALID = "[invalid]"
_MOST_SHOWN = 200

_FLEXIBLE, _STRICT = "flexible-extract", "strict-match"


class MathSettings(BenchmarkSettings):
    """How GSM8K and MATH500 are asked and scored, with lm-eval's defaults."""

    max_tokens: int = Field(
        256, ge=1, description="new tokens a request; lm-eval's for tasks that name no number, as these"
    )
    fewshot: int | None = Field(
        None,
        ge=0,
        description="examples before a question, each a turn of the chat; null: the task's own number, "
        "none where the data has whole prompts",
    )


class MathBenchmark(HarnessBenchmark[MathSettings]):
    """GSM8K and MATH500."""

    name = "math"
    data: ClassVar[Mapping[str, str]] = {
        "gsm8k": "GSM8K's test set: question, answer",
        "gsm8k_train": "GSM8K's training set, which examples are drawn from",
        "math500": "MATH500: problem, answer, or prompt, answer",
    }
    settings_type: ClassVar[type[BenchmarkSettings]] = MathSettings
    needs = ("lm_eval", "math_verify", "sympy", "antlr4")

    def subsets(self) -> Sequence[Subset]:
        return Subset("gsm8k", "GSM8K", ("flexible", "strict")), Subset("math500", "MATH500", ("accuracy",))

    def load(self, subset: str) -> HarnessTask:
        return self._load_gsm8k() if subset == "gsm8k" else self._load_math500()

    def verdict(self, subset: str, prompted: PromptedDocument, judged: Mapping[str, Judged]) -> Verdict:
        if subset == "gsm8k":
            return _gsm8k_score(judged)
        found = judged[NO_FILTER].metrics
        return Verdict({"accuracy": (float(found["math_verify"]), 1.0)}, found["parsed"], found["problem"])

    def _load_gsm8k(self) -> HarnessTask:
        """`gsm8k`, or `gsm8k_cot` where its examples cannot be drawn from a train split."""
        test, train = (self.context.data.get(name) for name in ("gsm8k", "gsm8k_train"))
        if train and not test:
            raise EvaluationError("ramerge/math: --data gsm8k_train=FILE needs --data gsm8k=FILE too")
        documents, changes = None, self._examples()
        if test:
            documents = {"test": _gsm8k_documents(test)} | ({"train": _gsm8k_documents(train)} if train else {})
            changes |= {} if train or self.settings.fewshot != 0 else {"training_split": None, "fewshot_split": None}
        return load(
            "gsm8k",
            "gsm8k_cot" if test and not train and self.settings.fewshot != 0 else "gsm8k",
            documents=documents,
            changes=changes,
            failure=_failure(test, "gsm8k", "openai/gsm8k", "question and answer"),
        )

    def _load_math500(self) -> HarnessTask:
        path, documents, changes = self.context.data.get("math500"), None, self._examples()
        if path is not None:
            whole_prompts = "prompt" in read_records(path, {})[0]
            documents = {"test": _math500_documents(path, "prompt" if whole_prompts else "problem")}
            if whole_prompts:
                changes = {"doc_to_text": "problem", "num_fewshot": 0} | changes
        return load(
            "minerva_math",
            "minerva_math500",
            documents=documents,
            changes=changes | {"process_results": _math_verify},
            failure=_failure(path, "math500", "HuggingFaceH4/MATH-500", "problem (or prompt) and answer"),
        )

    def _examples(self) -> dict[str, Any]:
        return {} if self.settings.fewshot is None else {"num_fewshot": self.settings.fewshot}


def _gsm8k_score(judged: Mapping[str, Judged]) -> Verdict:
    flexible, strict = judged[_FLEXIBLE], judged[_STRICT]
    return Verdict(
        {
            "flexible": (float(flexible.metrics["exact_match"]), 1.0),
            "strict": (float(strict.metrics["exact_match"]), 1.0),
        },
        {"flexible": flexible.answer[:_MOST_SHOWN], "strict": strict.answer[:_MOST_SHOWN]},
        "holds no number" if flexible.answer == _INVALID else None,
    )


def _math_verify(document: Mapping[str, Any], replies: Sequence[str]) -> dict[str, Any]:
    """minerva_math500's `math_verify`, without the `exact_match` next to it, which takes ten times as long."""
    utils = imported("lm_eval.tasks.minerva_math.utils")
    target = utils.parse(replies[0])
    verified = utils.verify(gold=utils.parse(document["solution"]), target=target)
    parsed = next((each[:_MOST_SHOWN] for each in target if isinstance(each, str)), None)
    return {
        "math_verify": int(verified),
        "parsed": parsed,
        "problem": None if target else "holds no expression that math_verify finds",
    }


def _gsm8k_documents(path: Path) -> list[dict[str, str]]:
    fields = {"question": str, "answer": str}
    records = read_records(path, fields)
    refuse(
        f"{path}, record {number}: answer has no #### before its number"
        for number, record in enumerate(records, 1)
        if "####" not in record["answer"]
    )
    return [{name: record[name] for name in fields} for record in records]


def _math500_documents(path: Path, text: str) -> list[dict[str, str]]:
    """With `text` the field that holds the problem. Where there is no solution, it is the answer in a box."""
    records = read_records(path, {text: str, "answer": str})
    refuse_duplicates(path, [str(record["unique_id"]) for record in records if "unique_id" in record])
    refuse(
        f"{path}, record {number}: {problem}"
        for number, record in enumerate(records, 1)
        for problem in _unboxed(record)
    )
    return [{"problem": record[text], "solution": _solution(record)} for record in records]


def _solution(record: Mapping[str, Any]) -> str:
    return record.get("solution") or f"\\boxed{{{record['answer']}}}"


def _unboxed(record: Mapping[str, Any]) -> Iterator[str]:
    boxed = _boxed(_solution(record))
    if record.get("solution") and boxed is None:
        yield "solution has no complete \\boxed{}"
    elif not record.get("solution") and boxed != record["answer"]:
        yield "answer cannot stand in \\boxed{}"


def _boxed(solution: str) -> str | None:
    """What stands in a solution's last box, as lm-eval reads it; None where it cannot."""
    utils = imported("lm_eval.tasks.hendrycks_math.utils")
    try:
        answer: str = utils.remove_boxed(utils.last_boxed_only_string(solution))
    except (TypeError, AssertionError, AttributeError, IndexError):
        return None
    return answer


def _failure(path: Path | None, name: str, hub: str, fields: str) -> str:
    if path is not None:
        return f"{path}: lm-eval cannot use it with these settings"
    return f"ramerge/math: could not load {hub} from the hub; give --data {name}=FILE, JSON lines with {fields}"
