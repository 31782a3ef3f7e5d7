"""Questions on contexts of 7K to 896K tokens, asked chunk by chunk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, cycle, islice, takewhile
from typing import Any, ClassVar

from pydantic import Field

from ramerge.evaluation import requirements
from ramerge.evaluation.benchmark import Benchmark, BenchmarkSettings, Chat, Context, Item, Subset, Verdict
from ramerge.evaluation.data import all_of
from ramerge.evaluation.tasks.memory import protocol
from ramerge.evaluation.tasks.memory.corpus import Corpus, ReadingQuestion, load
from ramerge.evaluation.tasks.memory.tokens import Tokens
from ramerge.foundation.errors import EvaluationError
from ramerge.foundation.extras import install

DOCUMENTS = (50, 100, 200, 400, 800, 1600, 3200, 6400)
KIBITOKENS = (8, 16, 32, 64, 128)

_HEADLINE = ("hotpotqa_50", "hotpotqa_100", "squad_32k", "squad_64k")
_ANSWER_TOKENS = 32
_START = "Document"


class MemorySettings(BenchmarkSettings):
    """MemAgent's numbers."""

    temperature: float = Field(0.7, ge=0, le=2, description="sampling temperature; 0 is greedy")
    top_p: float = Field(0.95, gt=0, le=1, description="nucleus of sampling")
    max_tokens: int = Field(1024, ge=1, description="new tokens a request")
    samples: int = Field(128, ge=1, description="questions a length, or as many as there are")
    chunk_tokens: int = Field(5000, ge=1, description="tokens of the context in a request")
    repeat_documents: bool = Field(False, description="repeat documents where a length needs more than there are")


@dataclass(frozen=True)
class Sample:
    """A question and its context, which is made again each time it is read: `order` has the indices of documents."""

    corpus: Corpus
    question: ReadingQuestion
    problem: str
    order: Sequence[int]

    def text(self) -> str:
        """The context."""
        documents = (f"{_START} {n}:\n{self.corpus.documents[index]}" for n, index in enumerate(self.order, 1))
        return "\n\n".join(documents).rstrip()


class MemoryBenchmark(Benchmark[MemorySettings]):
    """Questions on contexts of 7K to 896K tokens."""

    name = "memory"
    data: ClassVar[Mapping[str, str]] = {
        "hotpotqa": "HotpotQA's development set, in its own or the hub's layout",
        "hotpotqa_questions": "MemAgent's selected questions, such as its eval_50.json; default: the first ones",
        "squad": "SQuAD's development set, version 1 or 2",
    }
    settings_type = MemorySettings

    def __init__(self, settings: MemorySettings, context: Context) -> None:
        super().__init__(settings, context)
        self._corpora: dict[str, Corpus] = {}

    def subsets(self) -> Sequence[Subset]:
        by_documents = [(f"hotpotqa_{number}", f"RULER-HotpotQA, {number:,} documents") for number in DOCUMENTS]
        by_tokens = [(f"squad_{number}k", f"RULER-SQuAD, {number}K tokens") for number in KIBITOKENS]
        return [Subset(name, title, protocol.METRICS, name in _HEADLINE) for name, title in by_documents + by_tokens]

    def check(self, subsets: Sequence[str]) -> None:
        names = list(dict.fromkeys(_name_and_length(subset)[0] for subset in subsets))
        if absent := requirements.missing(self._modules(names), who="ramerge/memory", install=install("eval")):
            raise EvaluationError(absent)
        first: list[Callable[[], object]] = [partial(self._corpus, name) for name in names]
        all_of([*first, lambda: self._tokens])
        all_of(partial(self._refuse_short, subset) for subset in subsets)

    def items(self, subset: str) -> Iterator[Item]:
        self._refuse_short(subset)
        for question in self._corpus(_name_and_length(subset)[0]).questions[: self.settings.samples]:
            yield Item(question.key, self._sample(subset, question))

    async def ask(self, subset: str, item: Item, chat: Chat) -> dict[str, Any]:
        """Asks chunk by chunk: the last reply, and how the context was cut."""
        sample: Sample = item.value
        memory, tokens, number = protocol.NO_MEMORY, 0, 0
        chunks = self._tokens.chunks(sample.text(), self.settings.chunk_tokens)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            reply = await chat(protocol.section(sample.problem, memory, chunk.text))
            memory = protocol.after_thinking(reply.text)
            tokens, number = chunk.end, number + 1
        reply = await chat(protocol.final(sample.problem, memory))
        return {"reply": reply.text, "tokens": tokens, "chunks": number}

    async def score(self, subset: str, item: Item, answers: Mapping[str, Any]) -> Verdict:
        sample: Sample = item.value
        details = {"documents": len(sample.order), "distinct_documents": len(set(sample.order))}
        details |= {key: value for key, value in answers.items() if key != "reply"}
        prediction = protocol.answer(answers["reply"])
        if not prediction:
            problem = 'the reply does not say "the answer is"'
            return Verdict(dict.fromkeys(protocol.METRICS, (0.0, 1.0)), prediction, problem, details)
        scores = protocol.score(prediction, sample.question.answer)
        return Verdict({name: (value, 1.0) for name, value in scores.items()}, prediction, None, details)

    def target(self, subset: str, item: Item) -> str:
        answer: str = item.value.question.answer
        return answer

    def _modules(self, names: Sequence[str]) -> list[str]:
        from_hub = any(name not in self.context.data for name in names)
        return ["tokenizers", *(["datasets"] if from_hub else [])]

    @cached_property
    def _tokens(self) -> Tokens:
        if self.context.tokenizer is None:
            raise EvaluationError(
                "ramerge/memory: contexts are cut by the model's tokens; give its tokenizer with --tokenizer, a "
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
        return self._tokens.count([f"{_START} 1000:\n{text}\n\n" for text in self._corpus("squad").documents])

    def _refuse_short(self, subset: str) -> None:
        name, length = _name_and_length(subset)
        corpus = self._corpus(name)
        has, unit = (len(corpus.documents), "documents") if name == "hotpotqa" else (sum(self._costs), "tokens")
        if has < length and not self.settings.repeat_documents:
            raise EvaluationError(
                f"{subset}: needs {length:,} {unit}, and the distinct documents of {corpus.source} are {has:,}; give "
                "the whole development set, or repeat documents with --task-set memory.repeat_documents=true"
            )

    def _sample(self, subset: str, question: ReadingQuestion) -> Sample:
        name, length = _name_and_length(subset)
        corpus = self._corpus(name)
        # a seed of null keeps seeds out of requests; it is no reason for data that differ from run to run
        generator = random.Random(f"{self.settings.seed or 0} {subset} {question.key}")
        order = _order(corpus, question, generator, length)
        problem = question.text.strip()
        if name == "squad":
            problem = protocol.SQUAD_PROBLEM.format(question=problem)
            length = self._fitting(order, length - _ANSWER_TOKENS - self._tokens.count([problem])[0])
        indices = list(islice(cycle(order), max(length, len(question.own))))
        generator.shuffle(indices)
        return Sample(corpus, question, problem, indices)

    def _fitting(self, order: Sequence[int], room: int) -> int:
        """How many documents have no more tokens than there is room for."""
        used = accumulate(self._costs[index] for index in cycle(order))
        return sum(1 for _ in takewhile(lambda tokens: tokens <= room, used))


def _name_and_length(subset: str) -> tuple[str, int]:
    """The data set of a subset, and how many documents or tokens its contexts have."""
    name, length = subset.split("_")
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
