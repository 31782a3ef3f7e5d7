"""The tasks of the demonstration: their prompts, the right answers and rewards; and the names of its agents.

A task draws prompts of one fixed length, so a batch needs no padding. A hash of its text decides whether a prompt is
for training or for testing, so the two splits are disjoint for all seeds.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "test"]

DIGITS = "0123456789"
LETTERS = "abcdefghijklmnop"
ALPHABET = DIGITS + LETTERS + "+=<#"
LENGTH = 7


@dataclass(frozen=True)
class Example:
    """A prompt of the demonstration and its only right completion."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class DemoTask:
    """A task of the demonstration, and the function that draws one example of it."""

    name: str
    description: str
    draw: Callable[[random.Random], Example]


def _addition_example(rng: random.Random) -> Example:
    a, b = rng.randint(100, 999), rng.randint(100, 999)
    return Example(f"{a}+{b}=", str(a + b))


def _reversal_example(rng: random.Random) -> Example:
    text = "".join(rng.choices(LETTERS, k=LENGTH))
    return Example(f"<{text}=", text[::-1])


def _sorting_example(rng: random.Random) -> Example:
    text = "".join(rng.choices(DIGITS, k=LENGTH))
    return Example(f"#{text}=", "".join(sorted(text)))


TASKS: tuple[DemoTask, ...] = (
    DemoTask("add", "add two three-digit numbers: 347+586= gives 933", _addition_example),
    DemoTask("reverse", "reverse seven letters: <abcdefg= gives gfedcba", _reversal_example),
    DemoTask("sort", "sort seven digits: #5281704= gives 0124578", _sorting_example),
)


@dataclass(frozen=True)
class DemoAgent:
    """An agent of the demonstration, which comes with the package."""

    name: str
    folder: str
    task: DemoTask


DEMO_AGENTS = tuple(
    DemoAgent(*names, task)
    for names, task in zip((("code", "coder"), ("tool", "tool"), ("memory", "memory")), TASKS, strict=True)
)


def _split_of(prompt: str) -> Split:
    """The split of a prompt: one in eight is held out, by hash."""
    return "test" if hashlib.sha256(prompt.encode()).digest()[0] % 8 == 0 else "train"


def prompts(task: DemoTask, split: Split, count: int, seed: int) -> list[Example]:
    """Draw `count` distinct examples of one split of a task; the same arguments give the same examples."""
    rng = random.Random(f"{task.name}/{split}/{seed}")
    examples: dict[str, Example] = {}
    while len(examples) < count:
        example = task.draw(rng)
        if _split_of(example.prompt) == split:
            examples.setdefault(example.prompt, example)
    return list(examples.values())


def reward(example: Example, completion: str) -> float:
    """Reward a completion of the demonstration: 1.0 for exactly the right one, 0.0 for any other."""
    return float(completion == example.answer)
