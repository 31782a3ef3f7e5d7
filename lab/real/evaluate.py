"""Score checkpoints on the test halves of the three tasks: greedy replies, mean reward, standard error over prompts.

Works on any Hugging Face checkpoint directory with a chat template. All models see the same prompts, none of which
occurs in training. Weights are widened to float32 (exact from bf16), so that scores do not depend on bf16 kernels.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tasks import TASKS, Example, Task
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

Row = dict[str, Any]


def named_directory(text: str) -> tuple[str, Path]:
    """Parse one NAME=DIR flag."""
    name, separator, directory = text.partition("=")
    if not (name and separator and Path(directory).is_dir()):
        raise argparse.ArgumentTypeError(f"expected NAME=DIR with an existing directory, got {text!r}")
    return name, Path(directory)


def batches(places: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Consecutive slices of at most `size` places."""
    for start in range(0, len(places), size):
        yield places[start : start + size]


@torch.no_grad()
def reply(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, examples: Sequence[Example]
) -> list[str]:
    """Greedy replies to one batch of problems.

    What all prompts begin with is computed once, and a row leaves the batch when its reply ends.
    """
    prompts = [
        tokenizer.apply_chat_template(task.messages(example), add_generation_prompt=True, return_dict=False)
        for example in examples
    ]
    shared = common_beginning(prompts)
    rest = tokenizer.pad({"input_ids": [prompt[len(shared) :] for prompt in prompts]}, return_tensors="pt")
    cache = model(torch.tensor([shared]), use_cache=True).past_key_values
    cache.batch_repeat_interleave(len(prompts))
    seen = torch.ones(len(prompts), len(shared), dtype=torch.long)
    seen = torch.cat([seen, rest["attention_mask"]], 1)
    ids = rest["input_ids"]
    rows = torch.arange(len(prompts))
    replies: list[list[int]] = [[] for _ in prompts]
    for _ in range(task.max_new_tokens):
        places = (seen.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        found = model(ids, attention_mask=seen, position_ids=places, past_key_values=cache, logits_to_keep=1)
        chosen = found.logits[:, -1].argmax(-1)
        going = torch.nonzero(chosen != tokenizer.eos_token_id).squeeze(1)
        if not len(going):
            break
        if len(going) < len(rows):
            cache.batch_select_indices(going)
            rows, seen, chosen = rows[going], seen[going], chosen[going]
        for row, token in zip(rows.tolist(), chosen.tolist(), strict=True):
            replies[row].append(token)
        ids, seen = chosen.unsqueeze(1), torch.cat([seen, torch.ones(len(rows), 1, dtype=torch.long)], 1)
    return [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in replies]


def common_beginning(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all prompts begin with, without the last one of the shortest."""
    columns = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*prompts, strict=False))
    return [column[0] for column in columns][: min(map(len, prompts)) - 1]


def score(rewards: Sequence[float]) -> dict[str, float]:
    """Mean, its standard error over prompts, and the share of prompts with full reward."""
    error = statistics.stdev(rewards) / math.sqrt(len(rewards)) if len(rewards) > 1 else math.nan
    solved = sum(reward == 1.0 for reward in rewards) / len(rewards)
    return {"mean": statistics.fmean(rewards), "standard_error": error, "solved": solved}


def replies_to(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, examples: Sequence[Example], batch: int
) -> list[str]:
    """Greedy replies to problems; those of about one length share a batch, so that little is padded."""
    by_length = sorted(range(len(examples)), key=lambda place: len(tokenizer(examples[place].question)["input_ids"]))
    texts = dict[int, str]()
    for places in batches(by_length, batch):
        found = reply(model, tokenizer, task, [examples[place] for place in places])
        texts |= zip(places, found, strict=True)
    return [texts[place] for place in range(len(examples))]


def evaluate_task(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, flags: Row) -> Row:
    """Score one model on one task."""
    examples = task.examples("test", flags["seed"], flags["prompts"])
    texts = replies_to(model, tokenizer, task, examples, flags["batch"])
    rewards = [task.reward(text, example.answer) for text, example in zip(texts, examples, strict=True)]
    sample = {"prompt": examples[0].question, "reply": texts[0], "answer": examples[0].answer}
    return {**score(rewards), "sample": sample, "rewards": rewards}


def evaluate_model(directory: Path, flags: Row) -> Row:
    """Score one checkpoint on every task."""
    start = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
    scores = {name: evaluate_task(model, tokenizer, task, flags) for name, task in TASKS.items()}
    # Tasks are independent samples of prompts, so their errors add in squares.
    squares = sum(entry["standard_error"] ** 2 for entry in scores.values())
    mean = statistics.fmean(entry["mean"] for entry in scores.values())
    overall = {"mean": mean, "standard_error": math.sqrt(squares) / len(scores)}
    return {"tasks": scores, "overall": overall, "seconds": round(time.perf_counter() - start, 1)}


def cell(entry: Row) -> str:
    """A mean with its standard error, in percent."""
    return f"{100 * entry['mean']:.1f} ± {100 * entry['standard_error']:.1f}"


def table(results: dict[str, Row]) -> str:
    """The scores as a Markdown table: models by tasks."""
    head = ["model", *TASKS, "mean"]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for name, result in results.items():
        lines.append([name, *(cell(result["tasks"][task]) for task in TASKS), cell(result["overall"])])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sample_line(name: str, result: Row) -> str:
    """The first reply of a model to each task, on one line."""
    replies = (f"{task}: {result['tasks'][task]['sample']['reply']!r}" for task in TASKS)
    return f"{name}: {'; '.join(replies)}"


def question_line(result: Row) -> str:
    """The problems that the sample lines reply to."""
    prompts = (f"{task}: {result['tasks'][task]['sample']['prompt']!r}" for task in TASKS)
    return f"(problems): {'; '.join(prompts)}"


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=named_directory, action="append", required=True, metavar="NAME=DIR")
    parser.add_argument("--prompts", type=int, default=64, help="test prompts a task")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0, help="seed of the test prompts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="results as JSON")
    return parser.parse_args()


def main() -> None:
    """Score every model and print the table."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    flags = {name: getattr(arguments, name) for name in ("prompts", "batch", "seed")}
    results = {name: evaluate_model(directory, flags) for name, directory in arguments.model}
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"settings": flags, "models": results}, indent=1) + "\n")
    print(table(results), "", question_line(next(iter(results.values()))), sep="\n")
    print(*(sample_line(name, result) for name, result in results.items()), sep="\n")


if __name__ == "__main__":
    main()
