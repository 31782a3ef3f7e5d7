"""Questions on contexts of 7K to 896K tokens, asked in one pass or chunk by chunk."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, chain, cycle, islice, takewhile
from typing import Any, ClassVar, Literal

from pydantic import Field

from ramerge.evaluation import requirements
from ramerge.evaluation.data import all_of, file_digest
from ramerge.evaluation.suite import Chat, Context, Item, Ratio, Reply, Score, Settings, Suite, Task
from ramerge.evaluation.suites.memory import prompts, scoring
from ramerge.evaluation.suites.memory.corpus import Corpus, ReadingQuestion, load
from ramerge.evaluation.suites.memory.tokens import START, Chunk, Tokens
from ramerge.foundation.errors import EvaluationError
from ramerge.foundation.extras import install

DOCUMENTS = (50, 100, 200, 400, 800, 1600, 3200, 6400)
KIBITOKENS = (8, 16, 32, 64, 128)

_HEADLINE = ("hotpotqa_50", "hotpotqa_100", "squad_32k", "squad_64k")
_ANSWER_TOKENS = 32
_MOST_TOKENS_A_BYTE = 2  # far more than tokenizers make of any text


class MemorySettings(Settings):
    """MemAgent's numbers."""

    temperature: float = Field(0.7, ge=0, le=2, description="sampling temperature; 0 is greedy")
    top_p: float = Field(0.95, gt=0, le=1, description="nucleus of sampling")
    max_tokens: int = Field(1024, ge=1, description="new tokens a request; the original's single pass allows 10000")
    workflow: Literal["memagent", "single"] = Field("memagent", description="by chunks with a memory, or all at once")
    samples: int = Field(128, ge=1, description="questions a length, or as many as there are")
    chunk_tokens: int = Field(5000, ge=1, description="memagent: tokens of the context in a request")
    longest_prompt: int | None = Field(
        120_000, ge=2, description="single: tokens of a prompt; a longer one keeps its two ends; null: all"
    )
    answer_format: Literal["sentence", "boxed"] = Field(
        "sentence", description='"Therefore, the answer is …", or \\boxed{}'
    )
    original_quirks: bool = Field(False, description="score failed requests and empty answers as the original does")
    repeat_documents: bool = Field(False, description="repeat documents where a length needs more than there are")


@dataclass(frozen=True)
class Sample:
    """A question and its context, which is made anew each time it is read."""

    corpus: Corpus
    question: ReadingQuestion
    problem: str
    order: Sequence[int]

    def pieces(self, head: str = "", tail: str = "") -> Iterator[str]:
        """The context between two texts, a document at a time, as `Tokens` takes them."""
        last = len(self.order)
        for number, index in enumerate(self.order, 1):
            document = f"{head if number == 1 else ''}{START} {number}:\n{self.corpus.documents[index]}"
            yield f"{document}\n\n" if number < last else document.rstrip() + tail


class MemorySuite(Suite[MemorySettings]):
    """Questions on contexts of 7K to 896K tokens."""

    name = "memory"
    title = "Long-context memory"
    data: ClassVar[Mapping[str, str]] = {
        "hotpotqa": "HotpotQA's development set, in its own or the hub's layout",
        "hotpotqa_questions": "MemAgent's selected questions, such as its eval_50.json; default: the first ones",
        "squad": "SQuAD's development set, version 1 or 2",
    }
    settings_type = MemorySettings

    def __init__(self, settings: MemorySettings, context: Context) -> None:
        super().__init__(settings, context)
        self._corpora: dict[str, Corpus] = {}

    def tasks(self) -> Sequence[Task]:
        by_documents = [(f"hotpotqa_{number}", f"RULER-HotpotQA, {number:,} documents") for number in DOCUMENTS]
        by_tokens = [(f"squad_{number}k", f"RULER-SQuAD, {number}K tokens") for number in KIBITOKENS]
        return [Task(name, title, scoring.METRICS, name in _HEADLINE) for name, title in by_documents + by_tokens]

    def check(self, tasks: Sequence[str]) -> None:
        names = list(dict.fromkeys(_name_and_length(task)[0] for task in tasks))
        if absent := requirements.missing(self._modules(names), who="the suite memory", install=install("eval-memory")):
            raise EvaluationError(absent)
        first: list[Callable[[], object]] = [partial(self._corpus, name) for name in names]
        if any(self._needs_tokenizer(name) for name in names):
            first.append(lambda: self._tokens)
        all_of(first)
        all_of(partial(self._refuse_short, task) for task in tasks)

    def items(self, task: str) -> Iterator[Item]:
        self._refuse_short(task)
        for question in self._corpus(_name_and_length(task)[0]).questions[: self.settings.samples]:
            yield Item(question.key, self._sample(task, question))

    async def attempt(self, task: str, item: Item, chat: Chat) -> Score:
        sample: Sample = item.value
        ask = self._by_chunks if self.settings.workflow == "memagent" else self._at_once
        reply, asked = await ask(sample, chat)
        details = {"documents": len(sample.order), "distinct_documents": len(set(sample.order)), **asked}
        if not reply and self.settings.original_quirks:
            return Score(_LEFT_OUT, None, "the reply is empty: left out, as in the original", details)
        prediction = scoring.answer(reply, self.settings.answer_format)
        if not prediction:
            problem = f"the reply gives no answer in the form {self.settings.answer_format}"
            return Score(dict.fromkeys(scoring.METRICS, (0.0, 1.0)), prediction, problem, details)
        quirks = self.settings.original_quirks
        scores = scoring.score(prediction, sample.question.answer, original_quirks=quirks)
        return Score({name: (value, 1.0) for name, value in scores.items()}, prediction, None, details)

    def gold(self, task: str, item: Item) -> Sequence[Reply]:
        sample: Sample = item.value
        answer = sample.question.answer
        boxed = self.settings.answer_format == "boxed"
        final = Reply(f"\\boxed{{{answer}}}" if boxed else f"Therefore, the answer is {answer}.")
        if self.settings.workflow == "single":
            return [final]
        chunks = self._tokens.chunks(sample.pieces(), self.settings.chunk_tokens)
        return [*(Reply(f"Found so far: {answer}") for _ in chunks), final]

    def failed(self, task: str, item: Item) -> Mapping[str, Ratio]:
        return _LEFT_OUT if self.settings.original_quirks else super().failed(task, item)

    def versions(self) -> Mapping[str, str]:
        digest = {} if self.context.tokenizer is None else {"tokenizer": file_digest(self._tokens.path)}
        return {**requirements.versions(["tokenizers", "datasets"]), **digest}

    def uses(self, task: str) -> Sequence[str]:
        name, _ = _name_and_length(task)
        return [each for each in self.data if each.startswith(name)]

    # --- asking ---

    async def _by_chunks(self, sample: Sample, chat: Chat) -> tuple[str, dict[str, Any]]:
        memory, tokens, number = prompts.NO_MEMORY, 0, 0
        chunks = self._tokens.chunks(sample.pieces(), self.settings.chunk_tokens)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            reply = await chat(
                prompts.section(sample.problem, memory, chunk.text),
                recorded=prompts.section(sample.problem, memory, _placeholder(chunk)),
            )
            memory = scoring.after_thinking(reply.text)
            tokens, number = chunk.end, number + 1
        reply = await chat(prompts.final(sample.problem, memory, self.settings.answer_format))
        return reply.text, {"tokens": tokens, "chunks": number}

    async def _at_once(self, sample: Sample, chat: Chat) -> tuple[str, dict[str, Any]]:
        head, tail = prompts.WHOLE_HEAD, prompts.whole_tail(sample.problem, self.settings.answer_format)
        text, details = await asyncio.to_thread(self._shortened, sample, head, tail)
        recorded = f"{head}[{len(sample.order):,} documents, {len(text):,} characters in all]{tail}"
        reply = await chat(prompts.whole(text), recorded=prompts.whole(recorded))
        return reply.text, details

    def _shortened(self, sample: Sample, head: str, tail: str) -> tuple[str, dict[str, Any]]:
        """The prompt, without its middle where it is too long, and how many tokens it had and kept."""
        longest = self.settings.longest_prompt
        text = "".join(sample.pieces(head, tail))
        if longest is None or len(text.encode()) <= longest // _MOST_TOKENS_A_BYTE:
            return text, {}
        ids = array("I", chain.from_iterable(self._tokens.ids(sample.pieces(head, tail))))
        details = {"tokens": len(ids), "kept_tokens": min(len(ids), longest)}
        if len(ids) <= longest:
            return text, details
        kept = ids[: longest // 2] + ids[longest // 2 - longest :]
        return self._tokens.decode(kept, special=False), details

    # --- data ---

    def _modules(self, names: Sequence[str]) -> list[str]:
        from_hub = any(name not in self.context.data for name in names)
        return ["tokenizers", *(["datasets"] if from_hub else [])]

    def _needs_tokenizer(self, name: str) -> bool:
        return name == "squad" or self.settings.workflow == "memagent" or self.settings.longest_prompt is not None

    @cached_property
    def _tokens(self) -> Tokens:
        if self.context.tokenizer is None:
            raise EvaluationError(
                "the suite memory: contexts are cut by the model's tokens; give its tokenizer with --tokenizer, a "
                "folder with tokenizer.json or the file"
            )
        return Tokens(self.context.tokenizer)

    def _corpus(self, name: str) -> Corpus:
        if name not in self._corpora:
            self._corpora[name] = load(name, self.context.data)
        return self._corpora[name]

    @cached_property
    def _costs(self) -> list[int]:
        """Tokens that each of SQuAD's documents takes in a context, with its heading."""
        return self._tokens.count([f"{START} 1000:\n{text}\n\n" for text in self._corpus("squad").documents])

    def _refuse_short(self, task: str) -> None:
        name, length = _name_and_length(task)
        corpus = self._corpus(name)
        has, unit = (len(corpus.documents), "documents") if name == "hotpotqa" else (sum(self._costs), "tokens")
        if has < length and not self.settings.repeat_documents:
            raise EvaluationError(
                f"{task}: needs {length:,} {unit}, and the distinct documents of {corpus.source} are {has:,}; give the "
                "whole development set, or repeat documents with --set memory.repeat_documents=true"
            )

    def _sample(self, task: str, question: ReadingQuestion) -> Sample:
        name, length = _name_and_length(task)
        corpus = self._corpus(name)
        # a seed of null keeps seeds out of requests; it is no reason for data that differ from run to run
        generator = random.Random(f"{self.settings.seed or 0} {task} {question.key}")
        order = _order(corpus, question, generator, length)
        problem = question.text.strip()
        if name == "squad":
            problem = prompts.SQUAD_PROBLEM.format(question=problem)
            length = self._fitting(order, length - _ANSWER_TOKENS - self._tokens.count([problem])[0])
        indices = list(islice(cycle(order), max(length, len(question.own))))
        generator.shuffle(indices)
        return Sample(corpus, question, problem, array("L", indices))

    def _fitting(self, order: Sequence[int], room: int) -> int:
        """How many documents have no more tokens than there is room for."""
        used = accumulate(self._costs[index] for index in cycle(order))
        return sum(1 for _ in takewhile(lambda tokens: tokens <= room, used))


_LEFT_OUT: Mapping[str, Ratio] = dict.fromkeys(scoring.METRICS, (0.0, 0.0))


def _name_and_length(task: str) -> tuple[str, int]:
    """The data set of a task, and how many documents or tokens its contexts have."""
    name, length = task.split("_")
    return name, 1024 * int(length[:-1]) if length.endswith("k") else int(length)


def _order(corpus: Corpus, question: ReadingQuestion, generator: random.Random, length: int) -> list[int]:
    """Indices of documents in the order in which they come into a context: own, near, others.

    At least as many as the length has documents or tokens, which is enough for it, or all.
    """
    near = generator.sample(question.near, len(question.near))
    first = dict.fromkeys([*question.own, *near])
    everywhere = range(len(corpus.documents))
    drawn = generator.sample(everywhere, min(len(everywhere), length + len(first)))
    return [*first, *(index for index in drawn if index not in first)]


def _placeholder(chunk: Chunk) -> str:
    return f"[tokens {chunk.first:,} to {chunk.end - 1:,} of the context]"
