"""Following instructions that a program can check: IFEval, through lm-eval.

Source: Zhou et al., Instruction-Following Evaluation for Large Language Models, 2023, arXiv 2311.07911; lm-eval's task
`ifeval`. Each prompt holds one to three instructions. Strict judges the reply as it is; loose also without its first or
last line and without asterisks, whichever follows. Prompt figures count prompts with all instructions followed,
instruction figures count instructions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from ramerge.evaluation.benchmark import BenchmarkSettings, Item, Ratio, Subset, Verdict
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

_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "key": (int, str),
    "prompt": str,
    "instruction_id_list": list,
    "kwargs": list,
}
_PUNKT = "punkt_tab"
_NEEDS_PUNKT = {"length_constraints:number_sentences", "change_case:capital_word_frequency"}


class IfevalSettings(BenchmarkSettings):
    """How IFEval is generated, with the task's own defaults."""

    max_tokens: int = Field(1280, ge=1, description="new tokens a request; as in lm-eval's ifeval")


class IfevalBenchmark(HarnessBenchmark[IfevalSettings]):
    """IFEval with its four figures."""

    name = "ifeval"
    data: ClassVar[Mapping[str, str]] = {"ifeval": "IFEval: key, prompt, instruction_id_list, kwargs"}
    settings_type: ClassVar[type[BenchmarkSettings]] = IfevalSettings
    needs = ("lm_eval", "langdetect", "immutabledict", "nltk")

    def subsets(self) -> Sequence[Subset]:
        return (
            Subset("ifeval", "IFEval", ("prompt_strict", "instruction_strict", "prompt_loose", "instruction_loose")),
        )

    def load(self, subset: str) -> HarnessTask:
        path = self.context.data.get(subset)
        loaded = load(
            "ifeval",
            "ifeval",
            documents=None if path is None else {"train": _documents(path)},  # the hub's only split has this name
            failure=f"{path}: lm-eval cannot use it" if path else _not_from_hub(),
        )
        # draws samples of the text, without a seed each time others
        imported("langdetect").DetectorFactory.seed = 0
        refuse(f"{path or 'google/IFEval'}, {problem}" for problem in _problems(loaded))
        return loaded

    def key(self, number: int, document: Mapping[str, Any]) -> str:
        return str(document["key"])

    def verdict(self, subset: str, prompted: PromptedDocument, judged: Mapping[str, Judged]) -> Verdict:
        found = judged[NO_FILTER].metrics
        followed = {each: list(found[f"inst_level_{each}_acc"]) for each in ("strict", "loose")}
        metrics: dict[str, Ratio] = {}
        for each, hits in followed.items():
            metrics[f"prompt_{each}"] = (float(found[f"prompt_level_{each}_acc"]), 1.0)
            metrics[f"instruction_{each}"] = (float(sum(hits)), float(len(hits)))
        return Verdict(metrics, details={"instructions": prompted.document["instruction_id_list"], **followed})

    def failed(self, subset: str, item: Item) -> Mapping[str, Ratio]:
        instructions = float(len(item.value.document["instruction_id_list"]))
        return {
            metric: (0.0, instructions if metric.startswith("instruction") else 1.0)
            for metric in self.subsets()[0].metrics
        }


def _documents(path: Path) -> list[dict[str, Any]]:
    records = read_records(path, _FIELDS)
    refuse_duplicates(path, [str(record["key"]) for record in records])
    refuse(
        f"{path}, record {number}: instruction_id_list must be a list of texts, and not empty"
        for number, record in enumerate(records, 1)
        if not record["instruction_id_list"] or not all(isinstance(each, str) for each in record["instruction_id_list"])
    )
    return [
        {name: record[name] for name in _FIELDS} | {"gold": record.get("gold", record.get("response"))}
        for record in records
    ]


def _not_from_hub() -> str:
    return (
        f"ramerge/ifeval: could not load google/IFEval from the hub; give --data ifeval=FILE, "
        f"JSON lines with {', '.join(_FIELDS)}"
    )


def _problems(loaded: HarnessTask) -> Iterator[str]:
    known = imported("lm_eval.tasks.ifeval.instructions_registry").INSTRUCTION_DICT
    documents = [prompted.document for prompted in loaded.questions()]
    for number, document in enumerate(documents, 1):
        instructions, arguments = document["instruction_id_list"], document["kwargs"]
        if unknown := [each for each in instructions if each not in known]:
            yield f"record {number}: lm-eval knows no instruction {', '.join(unknown)}"
        elif len(instructions) != len(arguments):
            yield f"record {number}: has {len(instructions)} instructions and kwargs for {len(arguments)}"
        elif problem := loaded.judge(document, "")[1]:  # sets the checkers up and goes no further
            yield f"record {number}: kwargs do not fit the instructions ({problem})"
    counting = sum(not _NEEDS_PUNKT.isdisjoint(document["instruction_id_list"]) for document in documents)
    if counting and not _has_punkt():
        yield (
            f"{counting:,} records: counting sentences or words takes NLTK's {_PUNKT}, which is not there: "
            f"python -c \"import nltk; nltk.download('{_PUNKT}')\", or set NLTK_DATA to a folder that has "
            f"tokenizers/{_PUNKT}"
        )


def _has_punkt() -> bool:
    try:
        imported("nltk").data.find(f"tokenizers/{_PUNKT}/english/")
    except LookupError:
        return False
    return True
