"""The tasks `ifeval` and `math`: IFEval, GSM8K and MATH500 with prompts and judgments of lm-eval, which itself queries
no model.

Sources: Gao et al., The Language Model Evaluation Harness, 2024, package `lm_eval`; Zhou et al., IFEval, 2023, arXiv
2311.07911; Cobbe et al., GSM8K, 2021, arXiv 2110.14168; Hendrycks et al., MATH, 2021, arXiv 2103.03874, in the 500
problems of Lightman et al., 2023, arXiv 2305.20050. The paper names lm-eval, but neither its tasks nor their settings.

Prompts, examples, stop texts, filters and metrics are the package's own, called for one document at a time. Messages
are those of its chat endpoints: `apply_chat_template` with `fewshot_as_multiturn`. IFEval's strict figures judge the
unchanged reply, loose figures also the reply without its first or last line and without asterisks. MATH500 is
`minerva_math500`, four fixed examples, with `math_verify`: the only metric in lm-eval that extracts an answer from
`\\boxed{}`, as chat models write it.
"""

from __future__ import annotations

import functools
import logging
import os
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import Score, Scorer, Target, scorer
from inspect_ai.solver import TaskState
from pydantic import Field

from ramerge import EvaluationError
from ramerge_eval.data import read_records, refuse, refuse_duplicates
from ramerge_eval.tasks import common
from ramerge_eval.time_limit import call_within_limit

Records = Sequence[Mapping[str, Any]]

_SEED = 1234  # of lm-eval, for the examples in front of a question
_INVALID = "[invalid]"
_MOST_CHARACTERS = 200
_METRICS = {
    "ifeval": {
        f"{level}_{way}": ("none", f"{short}_level_{way}_acc")
        for way in ("strict", "loose")
        for level, short in (("prompt", "prompt"), ("instruction", "inst"))
    },
    "gsm8k": {"flexible": ("flexible-extract", "exact_match"), "strict": ("strict-match", "exact_match")},
    "math500": {"accuracy": ("none", "math_verify")},
}
"""Figures of a subset: the filter that lm-eval applies to the answer, and lm-eval's name of the metric."""

_IFEVAL_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "key": (int, str),
    "prompt": str,
    "instruction_id_list": list,
    "kwargs": list,
}
_NEEDS_PUNKT = {"length_constraints:number_sentences", "change_case:capital_word_frequency"}


@task
@common.with_validation
def ifeval(ifeval: Path | None = None, seed: common.Seed = 0) -> Task:
    """The task `ifeval`: instructions that a program can check (IFEval, with lm-eval's checkers).

    Args:
        ifeval: JSON lines with key, prompt, instruction_id_list and kwargs; by default the hub's.
        seed: the seed of sampling.
    """
    # draws samples of the text, without a seed each time others
    _import("langdetect").DetectorFactory.seed = 0
    documents = None if ifeval is None else {"train": _ifeval_documents(ifeval)}  # the hub's only split has this name
    task = _load("ifeval", "ifeval", ifeval, documents, {}, f"google/IFEval, {', '.join(_IFEVAL_FIELDS)}")
    refuse(f"{ifeval or 'google/IFEval'}, {problem}" for problem in _ifeval_problems(task))
    return _task({"ifeval": task}, seed, max_tokens=1280)


@task
@common.with_validation
def math(
    subsets: common.Subsets = "gsm8k,math500",
    gsm8k: Path | None = None,
    gsm8k_train: Path | None = None,
    math500: Path | None = None,
    fewshot: Annotated[int | None, Field(ge=0)] = None,
    seed: common.Seed = 0,
) -> Task:
    """The task `math`: GSM8K and MATH500, with lm-eval's prompts and checkers.

    Args:
        subsets: gsm8k, math500, or both.
        gsm8k: JSON lines with question and answer; by default the hub's.
        gsm8k_train: its training set, from which examples are drawn. A local test set without a training set uses
            lm-eval's `gsm8k_cot`, with the eight fixed examples of lm-eval.
        math500: JSON lines with problem and answer, or whole prompts as prompt and answer; by default the hub's.
        fewshot: the number of examples before a question, each a turn of the chat; by default lm-eval's number, or none
            if the data has whole prompts.
        seed: the seed of sampling.
    """
    names = common.choice(subsets, ("gsm8k", "math500"))
    examples: dict[str, object] = {} if fewshot is None else {"num_fewshot": fewshot}
    if gsm8k_train and not gsm8k:
        raise EvaluationError("ramerge/math: --data gsm8k_train=FILE needs --data gsm8k=FILE too")

    def load(name: str) -> _LoadedTask:
        documents, changes = None, dict(examples)
        if name == "gsm8k":
            if gsm8k:
                files = (("test", gsm8k), ("train", gsm8k_train))
                documents = {split: _gsm8k_documents(path) for split, path in files if path}
                if not gsm8k_train and fewshot == 0:
                    changes |= {"training_split": None, "fewshot_split": None}
                elif not gsm8k_train:
                    name = "gsm8k_cot"
            return _load("gsm8k", name, gsm8k, documents, changes, "openai/gsm8k, question and answer")
        if math500 is not None:
            whole_prompts = "prompt" in read_records(math500, {})[0]
            documents = {"test": _math500_documents(math500, "prompt" if whole_prompts else "problem")}
            if whole_prompts:
                changes = {"doc_to_text": "problem", "num_fewshot": 0} | changes
        changes["process_results"] = _math_verify
        about = "HuggingFaceH4/MATH-500, problem (or prompt) and answer"
        return _load("minerva_math", "minerva_math500", math500, documents, changes, about, data="math500")

    return _task(common.for_each(names, load), seed, max_tokens=256)


# --- documents -------------------------------------------------------------------------------------------------------


def _ifeval_documents(path: Path) -> Records:
    records = read_records(path, _IFEVAL_FIELDS)
    refuse_duplicates(path, [str(record["key"]) for record in records])
    refuse(
        f"{path}, record {number}: instruction_id_list must be a list of texts, and not empty"
        for number, record in enumerate(records, 1)
        if not record["instruction_id_list"] or not all(isinstance(each, str) for each in record["instruction_id_list"])
    )
    return [{name: record[name] for name in _IFEVAL_FIELDS} for record in records]


def _ifeval_problems(task: _LoadedTask) -> Iterator[str]:
    documents = [document for document, _ in task.questions()]
    for number, document in enumerate(documents, 1):
        instructions, arguments = document["instruction_id_list"], document["kwargs"]
        if len(instructions) != len(arguments):
            yield f"record {number}: has {len(instructions)} instructions and kwargs for {len(arguments)}"
        elif problem := call_within_limit(task.judge, document, "")[1]:  # sets the checkers up and goes no further
            yield f"record {number}: lm-eval knows no such instructions with these kwargs ({problem})"
    counting = sum(not _NEEDS_PUNKT.isdisjoint(document["instruction_id_list"]) for document in documents)
    try:
        _import("nltk").data.find("tokenizers/punkt_tab/english/")
    except LookupError:
        if counting:
            yield (
                f"{counting:,} records: counting sentences or words takes NLTK's punkt_tab, which is not there: "
                "python -c \"import nltk; nltk.download('punkt_tab')\", or set NLTK_DATA to a folder that has "
                "tokenizers/punkt_tab"
            )


def _gsm8k_documents(path: Path) -> Records:
    fields = {"question": str, "answer": str}
    records = read_records(path, fields)
    refuse(
        f"{path}, record {number}: answer has no #### before its number"
        for number, record in enumerate(records, 1)
        if "####" not in record["answer"]
    )
    return [{name: record[name] for name in fields} for record in records]


def _math500_documents(path: Path, text: str) -> Records:
    """Read MATH500. `text`: the field of the problem. Without a solution, the solution is the answer in a box."""
    records = read_records(path, {text: str, "answer": str})
    refuse_duplicates(path, [str(record["unique_id"]) for record in records if "unique_id" in record])
    solutions = [record.get("solution") or f"\\boxed{{{record['answer']}}}" for record in records]
    refuse(
        f"{path}, record {number}: solution, or answer where there is none, holds no complete \\boxed{{}}"
        for number, (record, solution) in enumerate(zip(records, solutions, strict=True), 1)
        if (answer := _boxed_answer(solution)) is None or (not record.get("solution") and answer != record["answer"])
    )
    return [{"problem": record[text], "solution": each} for record, each in zip(records, solutions, strict=True)]


def _boxed_answer(solution: str) -> str | None:
    """Return the content of a solution's last box, as lm-eval reads it; None if it cannot."""
    utils = _import("lm_eval.tasks.hendrycks_math.utils")
    try:
        answer: str = utils.remove_boxed(utils.last_boxed_only_string(solution))
    except (TypeError, AssertionError, AttributeError, IndexError):
        return None
    return answer


def _math_verify(document: Mapping[str, Any], replies: Sequence[str]) -> dict[str, Any]:
    """Compute minerva_math500's `math_verify` without its `exact_match`, which takes ten times as long."""
    utils = _import("lm_eval.tasks.minerva_math.utils")
    target = utils.parse(replies[0])
    is_right = utils.verify(gold=utils.parse(document["solution"]), target=target)
    parsed = next((each[:_MOST_CHARACTERS] for each in target if isinstance(each, str)), None)
    problem = None if target else "holds no expression that math_verify finds"
    return {"math_verify": int(is_right), "parsed": parsed, "problem": problem}


# --- lm-eval ---------------------------------------------------------------------------------------------------------


class _LoadedTask:
    """A `ConfigurableTask` of lm-eval with its data."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self.documents: dict[str, Mapping[str, Any]] = {}

    def questions(self) -> Iterator[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]:
        """Yield all documents of a task of lm-eval in order, each with its messages.

        Examples are drawn as `simple_evaluate` draws them: by one generator, document after document.
        """
        self._task.set_fewshot_seed(_SEED)
        for document in self._task.task_docs:
            messages = self._task.fewshot_context(
                document,
                num_fewshot=self._task.config.num_fewshot or 0,
                apply_chat_template=True,
                fewshot_as_multiturn=True,
                chat_template=lambda messages, add_generation_prompt: messages,  # an endpoint has its own
            )
            yield document, messages

    def samples(self, subset: str) -> Iterator[Sample]:
        """Yield the documents of a task of lm-eval as samples, numbered by place in the data if they have no key."""
        stop = self._task.config.generation_kwargs["until"]
        for number, (document, messages) in enumerate(self.questions()):
            item = common.sample(subset, str(document.get("key", number)), messages, **{common.STOP: stop})
            self.documents[str(item.id)] = document
            yield item

    def judge(self, document: Mapping[str, Any], reply: str) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """Judge a reply: return the results of each filter of lm-eval's task, with its metrics."""
        instance = import_module("lm_eval.api.instance").Instance("generate_until", document, (), 0)
        instance.resps = [reply]
        with _containment():
            for ensemble in self._task._filters:  # noqa: SLF001  # lm-eval has no name for them
                ensemble.apply([instance])
            return {
                name: (answer, self._task.process_results(document, [answer]))
                for name, answer in instance.filtered_resps.items()
            }


def _task(by_subset: Mapping[str, _LoadedTask], seed: int | None, max_tokens: int) -> Task:
    return Task(
        dataset=[each for subset, one in by_subset.items() for each in one.samples(subset)],
        solver=common.answer(seed),
        scorer=_judging(functools.partial(_score, by_subset)),
        config=GenerateConfig(temperature=0.0, top_p=1.0, max_tokens=max_tokens),
    )


@scorer(name="ramerge/lm_eval", metrics=[common.shares()])
def _judging(score_of: Callable[[TaskState], Score]) -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        return score_of(state)

    return score


def _score(by_subset: Mapping[str, _LoadedTask], state: TaskState) -> Score:
    subset = state.metadata["subset"]
    document = by_subset[subset].documents[str(state.sample_id)]
    verdicts, problem = None, common.FAILURE
    if not common.is_failed(state):
        verdicts, failure = call_within_limit(by_subset[subset].judge, document, common.text_of(state.output))
        problem = failure or ""
    if verdicts is None:
        weights = len(document.get("instruction_id_list", [None]))
        nothing = {name: (0.0, weights if name.startswith("instruction") else 1.0) for name in _METRICS[subset]}
        return common.score_of(state, nothing, problem=problem)
    figures = {name: verdicts[way][1][figure] for name, (way, figure) in _METRICS[subset].items()}
    details = {name: list(each) for name, each in figures.items() if isinstance(each, list)}
    first, metrics = next(iter(verdicts.values()))
    parsed = metrics.get("parsed", {way: each[:_MOST_CHARACTERS] for way, (each, _) in verdicts.items()})
    unread = metrics.get("problem") or ("holds no number" if first == _INVALID else None)
    ratios = {
        name: (float(sum(each)), float(len(each))) if isinstance(each, list) else (float(each), 1.0)
        for name, each in figures.items()
    }
    return common.score_of(state, ratios, parsed, unread, **details)


def _load(
    folder: str,
    name: str,
    path: Path | None,
    documents: Mapping[str, Records] | None,
    changes: Mapping[str, Any],
    about: str,
    data: str | None = None,
) -> _LoadedTask:
    """Load one of lm-eval's tasks with its data.

    Args:
        folder: the task's folder among `lm_eval.tasks`.
        path: the file of the documents, if any.
        documents: by split, in memory; None loads the task's own from the hub.
        changes: entries of the task's configuration to replace.
        about: names the hub's data set, and the fields of a file that replaces it.
        data: the file's name; by default the task's.

    Raises:
        EvaluationError: the data cannot be loaded or used, or no prompt can be made with these examples.
    """
    local = {} if documents is None else {"custom_dataset": functools.partial(_dataset, documents)}
    entry = {"task": name, **changes, **local}
    try:
        with _containment(), _no_downloads_of_nltk(), _without_logs():
            tasks = _tasks()
            manager = tasks.TaskManager(include_path=str(Path(tasks.__file__).parent / folder), include_defaults=False)
            # a group is lm-eval's way to load a task with changes
            task = _LoadedTask(manager.load({"group": "ramerge", "task": [entry]})["tasks"][name])
            next(task.questions())
    except Exception as error:  # of lm-eval, datasets, pyarrow and the hub, which share no base
        repository, _, fields = about.partition(", ")
        hub = f"could not load {repository} from the hub; give --data {data or name}=FILE, JSON lines with {fields}"
        where = f"{path}: lm-eval cannot use it with these settings" if path else hub
        raise EvaluationError(f"{where}: {f'{type(error).__name__}: {error}'[:500]}") from error
    return task


def _import(module: str) -> Any:
    """Import a module of lm-eval or of its helpers, and hide its warnings."""
    with _containment(), _no_downloads_of_nltk():
        return import_module(module)


@functools.cache
def _tasks() -> Any:
    tasks, templates = _import("lm_eval.tasks"), _import("lm_eval.utils").env
    for module in ("datasets.utils", "huggingface_hub.utils"):
        import_module(module).disable_progress_bars()
    for noisy in ("lm_eval", "math_verify"):  # a line for each answer that they cannot read
        logging.getLogger(noisy).setLevel(logging.CRITICAL + 1)
    # lm-eval compiles a template whenever it fills one in, which is nearly all of the time that a prompt takes
    templates.from_string = functools.cache(templates.from_string)
    return tasks


def _dataset(documents: Mapping[str, Records], **_metadata: object) -> Any:
    datasets = import_module("datasets")
    return datasets.DatasetDict({split: datasets.Dataset.from_list(list(each)) for split, each in documents.items()})


@contextmanager
def _containment() -> Iterator[None]:
    """A context that hides lm-eval's warnings, and keeps its random numbers from affecting others.

    Some checkers draw random values that a document leaves open; with the same seed each time, an answer's score does
    not depend on earlier answers.
    """
    luck = random.getstate()
    random.seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(luck)


@contextmanager
def _without_logs() -> Iterator[None]:
    with ExitStack() as after:
        after.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        yield


@contextmanager
def _no_downloads_of_nltk() -> Iterator[None]:
    """A context without downloads: IFEval's checkers download to the home folder when imported, except if `LOCAL_RANK`
    is set.
    """
    before = os.environ.get("LOCAL_RANK")
    os.environ["LOCAL_RANK"] = "1"
    try:
        yield
    finally:
        os.environ.pop("LOCAL_RANK")
        if before is not None:
            os.environ["LOCAL_RANK"] = before
