"""Time and memory of a context of 896K tokens in `ramerge eval --task ramerge/memory`.

By itself, `python -m benchmarks.long_context DATA TOKENIZER` prepares one context of 6,400 documents and makes
all requests from it, which are answered at once, and prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import run, spread, tell

_TASK = "hotpotqa_6400"
_TOKENS = 896 * 1024
_BARS = {"seconds": (60, "s"), "megabytes": (500, "MB")}

# HotpotQA's development set has as many questions with ten paragraphs each, and about as many characters
_QUESTIONS, _PARAGRAPHS, _SENTENCES, _WORDS = 7405, 10, 4, 20
_VOCABULARY = 16_384
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def measure(options: Options) -> dict[str, Any]:
    """Whole processes, on documents and a tokenizer that are made up from a seed and kept in the work folder."""
    data, tokenizer = made_up(options.work)
    command, runs = [sys.executable, "-m", "benchmarks.long_context", str(data), str(tokenizer)], []
    for turn in range(options.runs):
        runs.append(json.loads(run(command).output))
        tell(f"long_context: run {turn + 1}: {runs[-1]['seconds']:.1f} s, {runs[-1]['megabytes']:.0f} MB")
    return {"bytes": data.stat().st_size, "vocabulary": _VOCABULARY, "runs": runs}


def made_up(work: Path) -> tuple[Path, Path]:
    """Questions with documents, and a tokenizer trained on them."""
    data, tokenizer = work / "long_context.json", work / "long_context-tokenizer.json"
    if not data.is_file():
        tell("long_context: making up documents")
        data.write_text(json.dumps(list(_records(random.Random(0)))))
    if not tokenizer.is_file():
        tell("long_context: training a tokenizer")
        _train(data, tokenizer)
    return data, tokenizer


def _records(generator: random.Random) -> Iterator[dict[str, Any]]:
    """Questions in HotpotQA's layout, with words of a long-tailed distribution, as texts have."""
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = ["".join(generator.choices(letters, k=generator.randint(2, 11))) for _ in range(30_000)]
    weights = list(accumulate(1 / (rank + 10) for rank in range(len(words))))

    def sentence() -> str:
        return f" {' '.join(generator.choices(words, cum_weights=weights, k=_WORDS)).capitalize()}."

    for number in range(_QUESTIONS):
        paragraphs = [[words[generator.randrange(30_000)].title(), [sentence() for _ in range(_SENTENCES)]]]
        paragraphs += [
            [f"Title {number} {each}", [sentence() for _ in range(_SENTENCES)]] for each in range(1, _PARAGRAPHS)
        ]
        yield {"_id": f"{number}", "question": "Who was it?", "answer": paragraphs[0][0], "context": paragraphs}


def _train(data: Path, out: Path) -> None:
    """A byte-level tokenizer of Qwen's kind."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(_QWEN), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    texts = ("".join(sentences) for record in json.loads(data.read_text())[:500] for _, sentences in record["context"])
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(out))


def render(by_size: Mapping[str, RawResults]) -> str:
    """A table of what was prepared, and the bars."""
    data = by_size[""].data
    first = data["runs"][0]
    durations = {name: spread([each[name] for each in data["runs"]]) for name in ("reading", *_BARS)}
    text = (
        f"The first sample of `{_TASK}`, from reading {data['bytes'] / 1e6:,.0f} MB of made-up questions in HotpotQA's "
        "layout to the request with its last chunk of 5,000 tokens, without a model. A byte-level tokenizer with "
        f"Qwen's splits and {data['vocabulary']:,} tokens, trained on a part of them. Memory is VmHWM of the process."
    )
    head = ("documents", "tokens", "chunks", "reading and checking, s", "all, s", "VmHWM, MB")
    counts = [f"{first[name]:,}" for name in ("documents", "tokens", "chunks")]
    row = (*counts, durations["reading"].text(), durations["seconds"].text(), durations["megabytes"].text(0))
    goals = [
        Bar("long_context.tokens", "tokens of the context", spread([first["tokens"]]), _TOKENS, True, 0),
        *(
            Bar(f"long_context.{name}", f"a context of {first['tokens']:,} tokens", durations[name], limit, unit=unit)
            for name, (limit, unit) in _BARS.items()
        ),
    ]
    return "\n\n".join([text, table(head, [row]), bars(goals)])


SECTION = Section("long_context", "Long contexts", has_sizes=False, measure=measure, render=render)


def _main(data: Path, tokenizer: Path) -> None:
    from inspect_ai.model import ModelName, ModelOutput
    from inspect_ai.solver import TaskState

    from ramerge_eval.tasks import common
    from ramerge_eval.tasks.memory.task import memory

    class Model:
        async def generate(self, *_messages: object, **_options: object) -> ModelOutput:
            return ModelOutput.from_content("model", "Therefore, the answer is unknown.")

    patch.object(common, "get_model", Model).start()
    start = time.perf_counter()
    task: Any = memory(_TASK, hotpotqa=data, tokenizer=tokenizer)
    read = time.perf_counter()
    state = TaskState(ModelName("a/model"), task.dataset[0].id, 1, task.dataset[0].input, [])
    asyncio.run(task.solver(state, None))
    figures = {
        **{name: value for name, value in state.store.get("context").items() if name != "distinct_documents"},
        "reading": read - start,
        "seconds": time.perf_counter() - start,
        "megabytes": _peak() / 1e6,
    }
    print(json.dumps(figures))


def _peak() -> int:
    """Bytes of memory that this process has had at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
