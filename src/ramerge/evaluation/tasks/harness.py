"""lm-eval's tasks as items and scores: it makes the prompts and judges the answers, and asks no model itself.

Source: Gao et al., The Language Model Evaluation Harness, 2024, package `lm_eval`. Prompts, examples, stop texts,
filters and metrics are the package's own, called for one document at a time. Messages are what its chat endpoints
send: `apply_chat_template` with `fewshot_as_multiturn`. Needs `lm_eval`, which is imported when a task is loaded.
"""

from __future__ import annotations

import functools
import logging
import os
import random
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ramerge.evaluation.benchmark import Benchmark, BenchmarkSettings, Chat, Context, Item, Message, Verdict
from ramerge.evaluation.data import all_of
from ramerge.evaluation.guard import guarded
from ramerge.evaluation.requirements import missing
from ramerge.foundation.errors import EvaluationError
from ramerge.foundation.extras import install

_SEED = 1234  # of lm-eval, for the examples in front of a question
NO_FILTER = "none"
"""lm-eval's name for the answer as it is, where a task has no filters."""


@dataclass(frozen=True)
class PromptedDocument:
    """A document of a task, and the chat that asks it."""

    document: Mapping[str, Any]
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Judged:
    """What one of a task's filters made of a reply, and lm-eval's metrics of that."""

    answer: str
    metrics: Mapping[str, Any]


class HarnessTask:
    """A task of lm-eval that has its data."""

    def __init__(self, task: Any) -> None:
        """With a `ConfigurableTask`."""
        self._task = task

    @property
    def stop(self) -> tuple[str, ...]:
        """The texts that end an answer."""
        return tuple(self._task.config.generation_kwargs["until"])

    def questions(self) -> Iterator[PromptedDocument]:
        """All documents in their order, each with its messages.

        Examples are drawn as `simple_evaluate` draws them: by one generator, document after document.
        """
        self._task.set_fewshot_seed(_SEED)
        for document in self._task.task_docs:
            messages = self._task.fewshot_context(
                document,
                num_fewshot=self._task.config.num_fewshot or 0,
                apply_chat_template=True,
                fewshot_as_multiturn=True,
                chat_template=_as_messages,
            )
            yield PromptedDocument(document, tuple(messages))

    def judge(self, document: Mapping[str, Any], reply: str) -> tuple[dict[str, Judged] | None, str | None]:
        """A reply by the names of the task's filters; or None, and why lm-eval could not judge it."""
        return guarded(self._judge, document, reply)

    def _judge(self, document: Mapping[str, Any], reply: str) -> dict[str, Judged]:
        instance = import_module("lm_eval.api.instance").Instance("generate_until", document, (), 0)
        instance.resps = [reply]
        with _contained():
            for ensemble in self._task._filters:
                ensemble.apply([instance])
            return {
                name: Judged(answer, self._task.process_results(document, [answer]))
                for name, answer in instance.filtered_resps.items()
            }


def load(
    folder: str,
    name: str,
    *,
    documents: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    changes: Mapping[str, Any] | None = None,
    failure: str,
) -> HarnessTask:
    """One of lm-eval's tasks.

    Args:
        folder: the task's folder among `lm_eval.tasks`.
        documents: by split, kept in memory; None takes the task's own from the hub.
        changes: entries of the task's configuration to replace.
        failure: begins the error's sentence.

    Raises:
        EvaluationError: the data cannot be had or used, or no prompt can be made with these examples.
    """
    local = {} if documents is None else {"custom_dataset": functools.partial(_dataset, documents)}
    entry = {"task": name, **(changes or {}), **local}
    try:
        with _contained(), _no_downloads_of_nltk(), _without_logs():
            tasks = _tasks()
            manager = tasks.TaskManager(include_path=str(Path(tasks.__file__).parent / folder), include_defaults=False)
            # a group is lm-eval's way to load a task with changes
            task = HarnessTask(manager.load({"group": "ramerge", "task": [entry]})["tasks"][name])
            next(task.questions())
    except Exception as error:  # of lm-eval, datasets, pyarrow and the hub, which share no base
        raise EvaluationError(f"{failure}: {f'{type(error).__name__}: {error}'[:500]}") from error
    return task


def imported(module: str) -> Any:
    """A module of lm-eval or of its helpers, whose warnings are kept off the terminal."""
    with _contained(), _no_downloads_of_nltk():
        return import_module(module)


S = TypeVar("S", bound=BenchmarkSettings)


class HarnessBenchmark(Benchmark[S]):
    """A benchmark whose items ask one question each, and are made and judged by lm-eval."""

    needs: ClassVar[tuple[str, ...]]
    """Modules that must be there."""

    def __init__(self, settings: S, context: Context) -> None:
        super().__init__(settings, context)
        self._loaded: dict[str, HarnessTask] = {}

    @abstractmethod
    def load(self, subset: str) -> HarnessTask:
        """The task with its data, checked.

        Raises:
            EvaluationError: all that is wrong with the data, the settings or the packages.
        """

    @abstractmethod
    def verdict(self, subset: str, prompted: PromptedDocument, judged: Mapping[str, Judged]) -> Verdict:
        """The task's metrics from lm-eval's."""

    def key(self, number: int, document: Mapping[str, Any]) -> str:
        """A document's key: its place in the data, unless the suite has a better one."""
        return str(number)

    def check(self, subsets: Sequence[str]) -> None:
        all_of(functools.partial(self._task, subset) for subset in subsets)

    def items(self, subset: str) -> Iterator[Item]:
        for number, prompted in enumerate(self._task(subset).questions()):
            yield Item(self.key(number, prompted.document), prompted)

    async def ask(self, subset: str, item: Item, chat: Chat) -> str:
        return (await chat(item.value.messages, stop=self._task(subset).stop)).text

    async def score(self, subset: str, item: Item, answers: str) -> Verdict:
        judged, problem = self._task(subset).judge(item.value.document, answers)
        if judged is None:
            return Verdict(self.failed(subset, item), problem=problem)
        return self.verdict(subset, item.value, judged)

    def _task(self, subset: str) -> HarnessTask:
        if subset not in self._loaded:
            if absent := missing(self.needs, who=f"ramerge/{self.name}", install=install("eval")):
                raise EvaluationError(absent)
            self._loaded[subset] = self.load(subset)
        return self._loaded[subset]


def _as_messages(messages: Sequence[Message], *, add_generation_prompt: bool) -> Sequence[Message]:
    """A chat template that leaves the chat as it is, for an endpoint that has its own."""
    return messages


@functools.cache
def _tasks() -> Any:
    tasks, templates = imported("lm_eval.tasks"), imported("lm_eval.utils").env
    for module in ("datasets.utils", "huggingface_hub.utils"):
        import_module(module).disable_progress_bars()
    for noisy in ("lm_eval", "math_verify"):  # a line for each answer that they cannot read
        logging.getLogger(noisy).setLevel(logging.CRITICAL + 1)
    # lm-eval compiles a template whenever it fills one in, which is nearly all of the time that a prompt takes
    templates.from_string = functools.cache(templates.from_string)
    return tasks


def _dataset(documents: Mapping[str, Sequence[Mapping[str, Any]]], **_metadata: object) -> Any:
    datasets = import_module("datasets")
    return datasets.DatasetDict({split: datasets.Dataset.from_list(list(each)) for split, each in documents.items()})


@contextmanager
def _contained() -> Iterator[None]:
    """Keep warnings and random numbers of lm-eval in here.

    Some checkers draw at random what a document leaves open; with the same seed each time, an answer's score does not
    depend on what came before it.
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
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)


@contextmanager
def _no_downloads_of_nltk() -> Iterator[None]:
    """Importing IFEval's checkers downloads into the home folder, unless the process says that it is not the first."""
    before = os.environ.get("LOCAL_RANK")
    os.environ["LOCAL_RANK"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["LOCAL_RANK"]
        else:
            os.environ["LOCAL_RANK"] = before
