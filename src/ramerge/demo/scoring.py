"""Scores a model on the tasks of the demonstration: greedy completions must equal the answers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from ramerge.demo.tasks import TASKS, DemoTask, Example, prompts, reward

SEED = 20260113
EXAMPLES = 200  # prompts of each task
BATCH = 256
PART = 50  # prompts of each task that `rewards` scores at a time


def rewards(
    model_dir: Path, split: Literal["validation", "test"] = "validation", *, examples: int = EXAMPLES
) -> Iterator[dict[str, list[float]]]:
    """Yield rewards of the demo's held-out prompts, a part of every task at a time: a score for `ramerge search`.

    Test prompts come after validation prompts in the draw, so no prompt is in both.
    """
    with _silence_libraries():
        # versions of transformers differ in the dtype they load by default; widening bf16 is exact
        model = AutoModelForCausalLM.from_pretrained(model_dir, local_files_only=True).float().eval()
        tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
        first = 0 if split == "validation" else examples
        prompts_by_task = {
            task.name: prompts(task, "test", 2 * examples, SEED)[first : first + examples] for task in TASKS
        }
        for start in range(0, examples, PART):
            parts = {name: held_out[start : min(start + PART, examples)] for name, held_out in prompts_by_task.items()}
            yield {name: _reply_rewards(model, tokenizer, part) for name, part in parts.items()}


def accuracy(model: object, tokenizer: object, task: DemoTask, *, examples: int, seed: int) -> float:
    """The share of `examples` held-out prompts of a demo task with the right greedy completion."""
    held_out = prompts(task, "test", examples, seed)
    batches = [held_out[start : start + BATCH] for start in range(0, examples, BATCH)]
    return sum(sum(_reply_rewards(model, tokenizer, batch)) for batch in batches) / examples


def complete(
    model: Any, tokenizer: Any, examples: Sequence[Example], *, sample: bool = False
) -> tuple[torch.Tensor, list[str]]:
    """Complete prompts of equal length; return the token ids of the completions and their texts."""
    ids = torch.tensor(tokenizer([example.prompt for example in examples])["input_ids"])
    longest = max(len(example.answer) for example in examples)
    sequences = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=longest + 1,
        do_sample=sample,
        # The pure distribution of the policy: without this, transformers samples among the 50 likeliest tokens only.
        **({"top_k": 0, "temperature": 1.0} if sample else {}),
    )
    completions = sequences[:, ids.shape[1] :]
    return completions, tokenizer.batch_decode(completions, skip_special_tokens=True)


def _reply_rewards(model: object, tokenizer: object, examples: Sequence[Example]) -> list[float]:
    _, texts = complete(model, tokenizer, examples)
    return [reward(example, text) for example, text in zip(examples, texts, strict=True)]


@contextmanager
def _silence_libraries() -> Iterator[None]:
    """Run on one thread, without messages or progress bars; restore the caller's settings afterwards."""
    threads, verbosity, bars = torch.get_num_threads(), logging.get_verbosity(), logging.is_progress_bar_enabled()
    # The models are so small that a second thread costs more than it gives, much more on a busy machine.
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
