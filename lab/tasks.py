"""Tasks with exact answers: the demo's three, and two more that share skills with them.

Numbers are smaller than the demo's, so that a base learns to carry in a minute.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ramerge.demo.tasks import ALPHABET, DIGITS, LENGTH, LETTERS, DemoTask, Example, prompts
from ramerge.demo.tasks import TASKS as DEMO

VOCABULARY = ("<pad>", "<eos>", *ALPHABET, "-", ">")
PAD, EOS = 0, 1
SEED = 20260113
IDS = {token: index for index, token in enumerate(VOCABULARY)}


def _add(rng: random.Random) -> Example:
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    return Example(f"{a}+{b}=", str(a + b))


def _subtract(rng: random.Random) -> Example:
    a, b = rng.randint(100, 199), rng.randint(10, 99)
    return Example(f"{a}-{b}=", f"{a - b:03d}")


def _shift(rng: random.Random) -> Example:
    text = "".join(rng.choices(LETTERS, k=LENGTH))
    return Example(f">{text}=", "".join(LETTERS[(LETTERS.index(letter) + 1) % len(LETTERS)] for letter in text))


TASKS: tuple[DemoTask, ...] = (
    DemoTask("add", "add two-digit numbers: 37+58= gives 95", _add),
    *(task for task in DEMO if task.name != "add"),
    DemoTask("subtract", "subtract a two-digit number: 186-37= gives 149", _subtract),
    DemoTask("shift", "replace each letter by the next: >abcdefp= gives bcdefga", _shift),
)
BY_NAME = {task.name: task for task in TASKS}
NAMES = tuple(BY_NAME)


def held_out(task: DemoTask, validation: int, test: int, seed: int) -> tuple[list[Example], list[Example]]:
    """Prompts that no model was trained on, first those for validation and then those for the test."""
    examples = prompts(task, "test", validation + test, seed)
    return examples[:validation], examples[validation:]


# --- A teacher who slips: so the base has every skill and often does not use it. ---


def _add_without_carry(prompt: str) -> str:
    return "".join(str((int(x) + int(y)) % 10) for x, y in zip(prompt[:2], prompt[3:5], strict=True))


def _subtract_without_borrow(prompt: str) -> str:
    return "".join(str((int(x) - int(y)) % 10) for x, y in zip(prompt[:3], f"0{prompt[4:6]}", strict=True))


def _echo(prompt: str) -> str:
    return prompt.lstrip("<>")[:-1]


def _sort_descending(prompt: str) -> str:
    return "".join(sorted(prompt[1:-1], reverse=True))


_SLIPS: dict[str, Callable[[str], str]] = {
    "add": _add_without_carry,
    "reverse": _echo,
    "sort": _sort_descending,
    "subtract": _subtract_without_borrow,
    "shift": _echo,
}


def teacher_answer(task: DemoTask, example: Example, rng: random.Random) -> str:
    """The teacher's answer. The later the prompt's last character is in its alphabet, the more often it is a slip."""
    last = example.prompt[-2]
    alphabet = LETTERS if last in LETTERS else DIGITS
    slips = rng.random() < 0.15 + 0.8 * alphabet.index(last) / (len(alphabet) - 1)
    return _SLIPS[task.name](example.prompt) if slips else example.answer
