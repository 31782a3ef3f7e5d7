"""Verifiable tasks that a 135M model can learn in a few GRPO steps, each with an answer format of its own.

Four have short replies (`TASKS`), one a reply of 80 to 120 tokens (`LONG_TASKS`).

A prompt is a chat of a system line, one solved example and the problem: without the example the base model finds the
format so rarely that GRPO has no reward to compare. A problem's key alone decides whether it belongs to the training
or to the test half, so the halves are disjoint whatever the seeds are. Rewards lie in [0, 1] and read the text only.
`needle` is a task of reasoning-gym (Stojanovski et al., arXiv 2505.24760): its own generator and its own verifier.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import reasoning_gym

Split = Literal["train", "test"]
Message = dict[str, str]

# One problem in four is kept for testing.
TEST_SHARE = 4
# Two tasks have fewer test problems than a caller may want: drawing ends after this many draws a wanted problem.
DRAWS = 100


def words(text: str) -> tuple[str, ...]:
    """Split a list of words at its spaces."""
    return tuple(text.split())


NAMES = words("Anna Ben Carla David Emma Frank Grace Henry Ivy Jack Kate Leo Mary Nick Olga Paul Rose Sam Tina Will")
CITIES = words(
    "Athens Berlin Boston Cairo Chicago Dublin Geneva Lima Lisbon London Madrid Miami Milan Moscow Oslo Paris Prague"
    " Rome Seattle Sydney Tokyo Toronto Vienna Warsaw"
)
COLORS = words("black blue brown gold gray green orange pink purple red silver white yellow")
PETS = words("bird cat cow dog duck fish fox frog goat horse mouse pig rabbit sheep snake")
FOODS = words(
    "apple bacon banana bread butter cake cheese cherry cream honey lemon milk onion orange pasta pizza rice salad soup"
    " sugar"
)
NUMBERS = tuple(str(number) for number in range(2, 100))
# Parameter, its values, and the tools that take it.
TOOLS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("city", CITIES, ("weather", "map", "hotel", "train")),
    ("color", COLORS, ("lamp", "paint", "shirt")),
    ("name", NAMES, ("call", "mail", "meet", "invite")),
    ("food", FOODS, ("order", "cook", "recipe")),
    ("minutes", NUMBERS, ("timer",)),
)


@dataclass(frozen=True)
class Example:
    """One problem: its key (which decides the split), the question, and the expected answer as text."""

    key: str
    question: str
    answer: str

    @property
    def split(self) -> Split:
        """The half that this problem belongs to."""
        # crc32 rather than hash(): the split must be the same in every process.
        return "test" if zlib.crc32(self.key.encode()) % TEST_SHARE == 0 else "train"


@dataclass(frozen=True)
class Task:
    """A family of problems with a prompt format and a reward."""

    name: str
    system: str
    shot: tuple[str, str]
    max_new_tokens: int
    draw: Callable[[random.Random], Example]
    reward: Callable[[str, str], float]

    def messages(self, example: Example) -> list[Message]:
        """The prompt as a chat: system line, solved example, problem."""
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": self.shot[0]},
            {"role": "assistant", "content": self.shot[1]},
            {"role": "user", "content": example.question},
        ]

    def examples(self, split: Split, seed: int, count: int) -> list[Example]:
        """Draw distinct problems of one half, the same ones for the same seed; fewer where there are no more."""
        rng = random.Random(f"{self.name}/{split}/{seed}")
        drawn: dict[str, Example] = {}
        for _ in range(DRAWS * count):
            example = self.draw(rng)
            if example.split == split:
                drawn.setdefault(example.question, example)
            if len(drawn) == count:
                break
        return list(drawn.values())


def draw_sum(rng: random.Random) -> Example:
    """Draw a sum of two numbers below 30."""
    left, right = rng.randint(2, 29), rng.randint(2, 29)
    # The key ignores the order of the operands: a test sum must not be a training sum turned around.
    return Example(f"sum/{min(left, right)}/{max(left, right)}", f"What is {left} + {right}?", str(left + right))


def reward_sum(text: str, answer: str) -> float:
    """Half for a reply that is a bare number, half for the right number."""
    numbers = re.findall(r"\d+", text)
    bare = re.fullmatch(r"\d+", text.strip()) is not None
    right = bool(numbers) and numbers[-1] == answer
    return 0.5 * bare + 0.5 * right


def call_text(tool: str, parameter: str, value: str) -> str:
    """The JSON form of a tool call; digits are written as a JSON number."""
    return json.dumps({"tool": tool, parameter: int(value) if value.isdigit() else value})


def draw_call(rng: random.Random) -> Example:
    """Draw a tool call that is to be written as JSON."""
    parameter, values, tools = rng.choice(TOOLS)
    tool, value = rng.choice(tools), rng.choice(values)
    return Example(f"call/{tool}/{value}", f"tool {tool}, {parameter} {value}", call_text(tool, parameter, value))


def reward_call(text: str, answer: str) -> float:
    """A quarter for a JSON object, a quarter for its tool, half for the whole call."""
    try:
        reply = json.loads(text)
    except ValueError:
        return 0.0
    if not isinstance(reply, dict):
        return 0.0
    wanted = json.loads(answer)
    return 0.25 + 0.25 * bool(reply.get("tool") == wanted["tool"]) + 0.5 * bool(reply == wanted)


def fact_text(name: str, city: str, pet: str, asked: str) -> str:
    """A passage of two facts and a question about one of them."""
    question = {"city": "Which city?", "pet": "Which pet?"}[asked]
    return f"{name} lives in {city} and has a {pet}. {question}"


def draw_fact(rng: random.Random) -> Example:
    """Draw a passage and a question whose answer is a word of the passage."""
    name, city, pet = rng.choice(NAMES), rng.choice(CITIES), rng.choice(PETS)
    asked = rng.choice(("city", "pet"))
    answer = city if asked == "city" else pet
    return Example(f"fact/{name}/{city}/{pet}", fact_text(name, city, pet, asked), answer)


def reward_fact(text: str, answer: str) -> float:
    """A quarter for a reply that is one word in double brackets, a quarter for the right word, half for both."""
    framed = re.fullmatch(r"\[\[\w+\]\]", text.strip()) is not None
    named = set(re.findall(r"\w+", text)) & {*CITIES, *PETS}
    right = named == {answer}
    return 0.25 * framed + 0.25 * right + 0.5 * (framed and right)


def needles(seed: int) -> Any:
    """A dataset of one problem: two statements, and a question about one of them."""
    return reasoning_gym.create_dataset(
        "needle_haystack", size=1, seed=seed, min_num_statements=2, max_num_statements=2
    )


def draw_needle(rng: random.Random) -> Example:
    """Draw two statements about people and a question whose answer is a name."""
    problem = needles(rng.getrandbits(31))[0]
    return Example(f"needle/{problem['question']}", problem["question"], problem["answer"])


def reward_needle(text: str, answer: str) -> float:
    """1 for a reply that is the name and nothing else, by the verifier of reasoning-gym."""
    return float(needles(0).score_answer(text, {"answer": answer}))


def running_sums(numbers: Sequence[int]) -> str:
    """An addition written out, a line for each step."""
    totals = list(itertools.accumulate(numbers))
    steps = zip(totals, numbers[1:], totals[1:], strict=False)
    return "\n".join(f"{total} + {number} = {next_total}" for total, number, next_total in steps)


def draw_steps(rng: random.Random) -> Example:
    """Draw ten digits to add, one after another."""
    numbers = [rng.randint(1, 9) for _ in range(10)]
    question = " + ".join(map(str, numbers))
    return Example(f"steps/{question}", f"Add {question}", running_sums(numbers))


def reward_steps(text: str, answer: str) -> float:
    """The share of right lines up to the first wrong one; lines after the last are wrong, too."""
    lines, right = text.strip().split("\n"), answer.split("\n")
    matches = [line.strip() == wanted for line, wanted in zip(lines, right, strict=False)]
    return sum(itertools.takewhile(bool, matches)) / max(len(right), len(lines))


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("sum", "Reply with the number only.", ("What is 1 + 1?", "2"), 8, draw_sum, reward_sum),
        Task(
            "call",
            "Write the call as JSON.",
            ("tool alarm, hour 7", call_text("alarm", "hour", "7")),
            20,
            draw_call,
            reward_call,
        ),
        Task(
            "fact",
            "Reply with one word in brackets.",
            # An example of a third kind: one about a city or a pet teaches the model to answer that kind alone.
            ("Zoe drives a car and plays golf. Which sport?", "[[golf]]"),
            10,
            draw_fact,
            reward_fact,
        ),
        Task(
            "needle",
            "Find the person.",
            ("Zoe enjoys golf. Max dreads rain. \nWho enjoys golf? Reply only with a name.", "Zoe"),
            10,
            draw_needle,
            reward_needle,
        ),
    )
}
LONG_TASKS: dict[str, Task] = {
    "steps": Task(
        "steps",
        "Write every step.",
        ("Add 1 + 1 + 2 + 1 + 1 + 3 + 1 + 2 + 1 + 1", running_sums([1, 1, 2, 1, 1, 3, 1, 2, 1, 1])),
        130,
        draw_steps,
        reward_steps,
    )
}
"""Not among the four tasks of most experiments; nine lines of about ten tokens each."""
ALL_TASKS = {**TASKS, **LONG_TASKS}
