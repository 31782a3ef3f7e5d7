"""The task `memory`: questions on contexts of 7K to 896K tokens, read chunk by chunk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle, islice
from pathlib import Path
from types import MappingProxyType

from inspect_ai import Task, task
from inspect_ai.model import ChatMessageUser, GenerateConfig
from inspect_ai.scorer import Score, Scorer, Target, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver

from ramerge import EvaluationError
from ramerge_eval.tasks import common
from ramerge_eval.tasks.memory import protocol
from ramerge_eval.tasks.memory.corpus import Corpus, ReadingQuestion, load
from ramerge_eval.tasks.memory.tokens import Tokens

SUBSETS = (
    *(f"hotpotqa_{documents}" for documents in (50, 100, 200, 400, 800, 1600, 3200, 6400)),
    *(f"squad_{kibitokens}k" for kibitokens in (8, 16, 32, 64, 128)),
)
_ANSWER_TOKENS = 32
_START = "Document"
_CONTEXT = "context"


@dataclass(frozen=True)
class Context:
    """A question and its long context, whose text is composed on each read; `order`: indices of documents."""

    corpus: Corpus
    question: ReadingQuestion
    problem: str
    order: Sequence[int]

    def text(self) -> str:
        """Return the numbered documents of the context."""
        documents = (f"{_START} {n}:\n{self.corpus.documents[index]}" for n, index in enumerate(self.order, 1))
        return "\n\n".join(documents).rstrip()


@task
@common.with_validation
def memory(
    subsets: common.Subsets = "hotpotqa_50,hotpotqa_100,squad_32k,squad_64k",
    hotpotqa: Path | None = None,
    hotpotqa_questions: Path | None = None,
    squad: Path | None = None,
    tokenizer: Path | None = None,
    samples: common.Count = 128,
    chunk_tokens: common.Count = 5000,
    repeat_documents: bool = False,
    seed: common.Seed = 0,
) -> Task:
    """The task `memory`: questions on long contexts, read chunk by chunk (MemAgent on RULER).

    Args:
        subsets: hotpotqa_50 to hotpotqa_6400 (documents), squad_8k to squad_128k (tokens).
        hotpotqa: its development set, in its own or the hub's layout; by default the hub's.
        hotpotqa_questions: MemAgent's selected questions, such as its eval_50.json; by default, the first questions.
        squad: SQuAD's development set, version 1 or 2; by default the hub's.
        tokenizer: the model's tokenizer.json or its folder; `ramerge eval` takes it from the model.
        samples: the number of questions per length, or as many as there are.
        chunk_tokens: tokens of the context per request.
        repeat_documents: repeat documents if a length needs more than there are.
        seed: the seed of contexts and of sampling.
    """
    names = common.choice(subsets, SUBSETS)
    files = {"hotpotqa": (hotpotqa, hotpotqa_questions), "squad": (squad, None)}
    corpora = common.for_each(
        dict.fromkeys(name.split("_")[0] for name in names), lambda name: load(name, *files[name])
    )
    if tokenizer is None:
        raise EvaluationError(
            "ramerge/memory: contexts are cut by the model's tokens; give its tokenizer with --tokenizer, a "
            "folder with tokenizer.json or the file"
        )
    tokens = Tokens(tokenizer)
    maker = ContextMaker(tokens, corpora, seed or 0, repeat_documents)
    contexts = common.for_each(names, lambda name: maker.contexts(name, samples))
    by_id = {f"{name}/{each.question.key}": each for name, group in contexts.items() for each in group}
    return Task(
        dataset=[
            common.sample(name, each.question.key, each.problem, each.question.answer)
            for name, group in contexts.items()
            for each in group
        ],
        solver=_chunk_reader(MappingProxyType(by_id), tokens, chunk_tokens, seed),
        scorer=_answers(),
        config=GenerateConfig(temperature=0.7, top_p=0.95, max_tokens=1024),
    )


@solver(name="ramerge/memory")
def _chunk_reader(contexts: Mapping[str, Context], tokens: Tokens, chunk_tokens: int, seed: int | None) -> Solver:
    """Solver that lets the model read chunk by chunk, and then asks for the answer."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        context = contexts[str(state.sample_id)]
        notes, read, number = protocol.NO_MEMORY, 0, 0
        chunks = tokens.chunks(context.text(), chunk_tokens)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            request = ChatMessageUser(content=protocol.section(context.problem, notes, chunk[0]))
            notes = protocol.after_thinking(common.text_of(await common.ask(state, [request], seed, number)))
            read, number = read + chunk[1], number + 1
        request = ChatMessageUser(content=protocol.final(context.problem, notes))
        output = await common.ask(state, [request], seed, number)
        order = context.order
        about = {"documents": len(order), "distinct_documents": len(set(order)), "tokens": read, "chunks": number}
        state.store.set(_CONTEXT, about)
        state.messages, state.output = [request, output.message], output
        return state

    return solve


@scorer(name="ramerge/memory", metrics=[common.shares()])
def _answers() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        nothing = dict.fromkeys(protocol.METRICS, (0.0, 1.0))
        if common.is_failed(state):
            return common.score_of(state, nothing, problem=common.FAILURE)
        details = state.store.get(_CONTEXT)
        if not (prediction := protocol.answer(common.text_of(state.output))):
            return common.score_of(state, nothing, prediction, 'the reply does not say "the answer is"', **details)
        figures = protocol.score(prediction, target.text)
        return common.score_of(state, {name: (value, 1.0) for name, value in figures.items()}, prediction, **details)

    return score


class ContextMaker:
    """Makes contexts: documents drawn from a seed, the same in every run."""

    def __init__(self, tokens: Tokens, corpora: Mapping[str, Corpus], seed: int, repeat: bool) -> None:
        self._tokens = tokens
        self._corpora = corpora
        self._seed = seed
        self._repeat = repeat
        documents = corpora["squad"].documents if "squad" in corpora else ()
        # tokens that each of SQuAD's documents takes in a context, with its heading
        self._costs = tokens.count([f"{_START} 1000:\n{text}\n\n" for text in documents])

    def contexts(self, subset: str, samples: int) -> list[Context]:
        """Return the first questions of a subset with their contexts.

        Raises:
            EvaluationError: there are too few documents, and they must not be repeated.
        """
        name, size = subset.split("_")
        length = 1024 * int(size[:-1]) if size.endswith("k") else int(size)
        corpus = self._corpora[name]
        has, unit = (len(corpus.documents), "documents") if name == "hotpotqa" else (sum(self._costs), "tokens")
        if has < length and not self._repeat:
            raise EvaluationError(
                f"{subset}: needs {length:,} {unit}, and the distinct documents of {corpus.source} are {has:,}; give "
                "the whole development set, or repeat documents with --task-set memory.repeat_documents=true"
            )
        results = []
        for question in corpus.questions[:samples]:
            generator = random.Random(f"{self._seed} {subset} {question.key}")
            order = _order(corpus, question, generator, length)
            problem, count = question.text.strip(), length
            if name == "squad":
                problem = protocol.SQUAD_PROBLEM.format(question=problem)
                room = length - _ANSWER_TOKENS - self._tokens.count([problem])[0]
                totals = accumulate(self._costs[index] for index in cycle(order))
                count = next((place for place, tokens in enumerate(totals) if tokens > room), 0)  # documents that fit
            indices = list(islice(cycle(order), max(count, len(question.own))))
            generator.shuffle(indices)
            results.append(Context(corpus, question, problem, indices))
        return results


def _order(corpus: Corpus, question: ReadingQuestion, generator: random.Random, length: int) -> list[int]:
    """Return indices of documents in the order in which they are added to a context: own, near, others.

    Returns at least `length` indices, which suffices for a length in documents or tokens, or all.
    """
    near = generator.sample(question.near, len(question.near))
    first = dict.fromkeys([*question.own, *near])
    everywhere = range(len(corpus.documents))
    sample = generator.sample(everywhere, min(len(everywhere), length + len(first)))
    return [*first, *(index for index in sample if index not in first)]
