"""The suite `tool`: agreement with bfcl-eval's own evaluation, right and wrong answers, hostile ones, bad data."""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramerge.core.foundation.errors import EndpointError, EvaluationError
from ramerge_eval import arithmetic
from ramerge_eval.tasks import bfcl
from ramerge_eval.tasks.tool import SUBSETS, tool
from ramerge_eval.time_limit import call_within_limit
from suites import bfcl_calls
from suites.chats import Item, Reply, Suite, attempt, main_metric
from suites.gold import gold_of

pytestmark = pytest.mark.full  # clients of models, checkers, the sandbox

ABSENT = [name for name in bfcl._MODULES if find_spec(name) is None]
needs_bfcl = pytest.mark.skipif(bool(ABSENT), reason=f"needs {', '.join(ABSENT)}: {bfcl._INSTALL}")

TASKS = {
    "live_multiple": 1053,
    "live_parallel": 16,
    "live_relevance": 16,
    "live_simple": 258,
    "live_parallel_multiple": 24,
    "live_irrelevance": 884,
    "multiple": 200,
    "irrelevance": 240,
    "simple_java": 100,
    "simple_javascript": 50,
    "parallel_multiple": 200,
    "parallel": 200,
    "simple_python": 400,
}
IRRELEVANCE = ("irrelevance", "live_irrelevance")
MODES = ("prompting", "native")
# Possible answers that no answer satisfies: they name a parameter that the function does not declare (862), leave out
# one that it requires (964), allow no value for one that it requires (106, 112), or hold numbers in a Java list of
# `any`, which the package converts to texts (36, 65).
UNSATISFIABLE = {
    "live_multiple_862-181-3",
    "live_multiple_964-207-0",
    "live_simple_106-63-0",
    "live_simple_112-68-0",
    "simple_java_36",
    "simple_java_65",
}


def suite_in(mode: str, data: Path | None = None) -> Suite:
    return Suite(tool, mode=mode, bfcl=data)


def test_the_tasks_are_those_of_the_paper_in_its_order() -> None:
    assert list(SUBSETS) == list(TASKS)


# gold and other answers


@needs_bfcl
@pytest.mark.parametrize("most", [100, pytest.param(10_000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("task", TASKS)
def test_gold_is_right_and_another_items_gold_is_wrong(task: str, mode: str, most: int) -> None:
    suite = suite_in(mode)
    items = list(suite.items(task))
    assert len(items) == TASKS[task]
    assert len({item.key for item in items}) == len(items)

    every = -(-len(items) // most)
    items = [item for place, item in enumerate(items) if place % every == 0 or item.key in UNSATISFIABLE]
    refused = {item.key for item in items if main_metric(suite, task, item, gold_of(suite, task, item)) != 1}
    assert refused == {item.key for item in items} & UNSATISFIABLE

    if "relevance" in task:
        return
    others = items[len(items) // 2 :] + items[: len(items) // 2]
    wrong = [
        main_metric(suite, task, item, gold_of(suite, task, other)) for item, other in zip(items, others, strict=True)
    ]
    assert sum(wrong) / len(wrong) < 0.07  # two of the 16 items of live_parallel ask the same


@needs_bfcl
@pytest.mark.parametrize("mode", MODES)
def test_relevance_asks_for_a_call_and_irrelevance_for_none(mode: str) -> None:
    suite = suite_in(mode)
    call = next(iter(gold_of(suite, "live_relevance", next(suite.items("live_relevance")))))
    for task in IRRELEVANCE:
        item = next(suite.items(task))
        assert main_metric(suite, task, item, [call]) == 0
        assert main_metric(suite, task, item, ["I cannot do that."]) == 1
        assert attempt(suite, task, item, ["I cannot do that."]).problem is None
    item = next(suite.items("live_relevance"))
    assert main_metric(suite, "live_relevance", item, ["I cannot do that."]) == 0
    assert attempt(suite, "live_relevance", item, ["I cannot do that."]).problem


@needs_bfcl
def test_two_runs_have_the_same_items() -> None:
    suite = suite_in("native")
    one, two = (list(each.items("live_parallel")) for each in (suite, suite_in("native")))
    assert [(each.key, each.messages, each.about) for each in one] == [
        (each.key, each.messages, each.about) for each in two
    ]


@needs_bfcl
def test_what_is_asked() -> None:
    suite = suite_in("prompting")
    item = next(item for item in suite.items("simple_java") if item.key == "simple_java_0")
    assert not item.about["tools"]
    system, user = item.messages
    assert system["role"] == "system" and "Java 8 SDK" in system["content"]
    assert user["role"] == "user"

    native = next(suite_in("native").items("simple_java"))
    assert [message["role"] for message in native.messages] == ["user"]
    assert "." not in native.about["tools"][0]["function"]["name"]


@needs_bfcl
def test_a_failed_request_is_passed_on() -> None:
    suite = suite_in("prompting")
    with pytest.raises(EndpointError):
        attempt(suite, "parallel", next(suite.items("parallel")), [None])


# agreement with the package's own evaluation


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The package's own evaluation, imported apart from the suite's copy: its runner, data loaders and handlers."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("BFCL_PROJECT_ROOT", str(tmp_path_factory.mktemp("bfcl")))
        patch.setenv("OPENAI_API_KEY", "none")
        config = ModuleType("bfcl_eval.constants.model_config")
        config.MODEL_CONFIG_MAPPING = {  # type: ignore[attr-defined]
            mode: SimpleNamespace(underscore_to_dot=mode == "native") for mode in MODES
        }
        patch.setitem(sys.modules, config.__name__, config)
        for name, attributes in {"dotenv": ["load_dotenv"], "overrides": ["final", "override"]}.items():
            if find_spec(name) is None:
                module = ModuleType(name)
                for each in attributes:
                    setattr(module, each, lambda value: value)
                patch.setitem(sys.modules, name, module)
        handlers = import_module("bfcl_eval.model_handler.api_inference.openai_completion")
        yield SimpleNamespace(
            runner=import_module("bfcl_eval.eval_checker.eval_runner"),
            utils=import_module("bfcl_eval.utils"),
            enums=import_module("bfcl_eval.constants.enums"),
            handlers={mode: handlers.OpenAICompletionsHandler(mode, 0, mode, mode == "native") for mode in MODES},
        )
        for name in [name for name in sys.modules if name.startswith("bfcl_eval")]:
            del sys.modules[name]


def official_verdict(official: SimpleNamespace, mode: str, task: str, entry: Any, answer: Any, reply: Reply) -> Any:
    """What the package's runner says of one output, or the exception that it ends with."""
    output: Any = reply.text.encode(errors="replace").decode()  # as it is in ramerge, of whole characters
    if mode == "native" and reply.tool_calls:
        output = [{name: arguments} for name, arguments in reply.tool_calls]
    arguments = (official.handlers[mode], entry["id"], output)
    try:
        if answer is None:
            return official.runner._evaluate_single_relevance_entry(*arguments, entry, mode, task)
        language = {"simple_java": "JAVA", "simple_javascript": "JAVASCRIPT"}.get(task, "PYTHON")
        enums = official.enums
        return official.runner._evaluate_single_ast_entry(
            *arguments, answer, entry, mode, task, enums.Language[language], enums.ReturnFormat[language]
        )
    except Exception as error:
        return error


def outputs(suite: Suite, task: str, item: Item, other: Item, rng: random.Random) -> Iterator[Reply]:
    """Right and wrong outputs of many kinds for one item."""
    yield from gold_of(suite, task, item)
    yield from gold_of(suite, task, other)
    yield Reply("I am sorry, but I cannot help with that.")
    yield Reply("")
    calls = right_calls(task, item)
    for changed in changes(calls):
        yield spoken(suite, task, changed)
    yield from native_texts(calls) if suite.arguments["mode"] == "native" else texts(suite, task, calls, rng)


def right_calls(task: str, item: Item) -> list[bfcl_calls.Call]:
    """Calls to vary: of the possible answers, or any where there are none."""
    functions, answer = item.about["functions"], item.about["possible_answers"]
    if answer is None:
        return [(functions[0]["name"] if functions else "f", {"x": 1, "y": "a"})]
    calls = bfcl_calls.calls(answer, functions)
    if task not in ("simple_java", "simple_javascript"):
        return calls
    write = bfcl_calls.java if task == "simple_java" else bfcl_calls.javascript
    return [(name, bfcl_calls.source(arguments, functions[0], write)) for name, arguments in calls]


def changes(calls: list[bfcl_calls.Call]) -> Iterator[list[bfcl_calls.Call]]:
    (name, arguments), rest = calls[0], calls[1:]
    yield calls[::-1]
    yield calls * 2
    yield rest
    yield [(name.replace(".", "_"), arguments), *rest]
    yield [(name + "s", arguments), *rest]
    yield [(name, {**arguments, "surprise": "1"}), *rest]
    yield [(name, {}), *rest]
    for key, value in arguments.items():
        yield [(name, {other: each for other, each in arguments.items() if other != key}), *rest]
        for wrong in (
            str(value),
            f" {value}-",
            [value],
            {"a": value},
            17,
            2.5,
            None,
            True,
            "",
            (value,),
            str(value).upper(),
        ):
            yield [(name, {**arguments, key: wrong}), *rest]


def spoken(suite: Suite, task: str, calls: Sequence[bfcl_calls.Call]) -> Reply:
    if suite.arguments["mode"] == "native":
        return Reply("", tuple((name.replace(".", "_"), json.dumps(arguments)) for name, arguments in calls))
    spell = bfcl_calls.python
    if task in ("simple_java", "simple_javascript"):
        calls = [(name, {key: str(value) for key, value in arguments.items()}) for name, arguments in calls]
        spell = bfcl_calls.quoted
    return Reply(f"[{', '.join(spell(name, arguments) for name, arguments in calls)}]")


def texts(suite: Suite, task: str, calls: list[bfcl_calls.Call], rng: random.Random) -> Iterator[Reply]:
    right = spoken(suite, task, calls).text
    name, arguments = calls[0]
    yield from map(Reply, (f"```\n{right}\n```", f"```python\n{right}\n```", f"Here it is: {right}", right[1:-1]))
    yield from map(Reply, (f"'{right}'", right + " Done.", right * 2, right + "\n" + right, "[]", "[[]]", "[{}]", "()"))
    values = (
        "60*60",
        "1+1",
        "-3",
        "not 1",
        "2**8",
        "'a'+'b'",
        "'ab'*2",
        "[0]*3",
        "[1]+[2]",
        "7//2",
        "1/0",
        "1<<3",
        "3-1.5",
    )
    values += (
        "(1,2)",
        "{1,2}",
        "a",
        "a.b",
        "a[0]",
        "f(1)",
        "f(y=2)",
        "f(1, y=2)",
        "lambda: 1",
        "...",
        "None",
        "1 if 1 else 2",
    )
    values += (
        "{'a': 1}",
        "{'a': {'b': [1]}}",
        "true",
        "True",
        "f'{1}'",
        "*a",
        "b'x'",
        "1j",
        "1e400",
        "'\\d'",
        "9" * 5000,
    )
    values += ("{a: 1}", "new A()", "a + b", "len(a) + 1", "1 + undefined(2)", "0x" + "f" * 5000, "[" * 150 + "]" * 150)
    for value in values:
        for key in [*arguments, "x"][:2]:
            spelled = ", ".join(
                f"{each}={value if each == key else repr(arguments[each])}" for each in [*arguments] or ["x"]
            )
            yield Reply(f"[{name}({spelled})]")
    yield Reply(f"[{name}({', '.join(map(repr, arguments.values()))})]")
    for _ in range(15):
        start = rng.randrange(len(right))
        yield Reply(right[:start] + right[start + rng.randrange(4) :])
        yield Reply(right[:start] + rng.choice("[](){}'\",.= \\é#\n\0\ud800") + right[start:])
    yield Reply(right[: len(right) // 2])


def native_texts(calls: list[bfcl_calls.Call]) -> Iterator[Reply]:
    name = calls[0][0].replace(".", "_")
    for arguments in (
        "",
        "{",
        "null",
        "[]",
        "1",
        '"a"',
        "{}",
        '{"a": NaN}',
        "[" * 5000,
        '{"a": ' * 300,
        '{"a": 1' + "0" * 5000,
    ):
        yield Reply("", ((name, arguments),))
    yield Reply(spoken(suite_in("prompting"), "simple_python", calls).text)
    yield Reply("I call it.", ((name, json.dumps(calls[0][1], default=str)),))


@needs_bfcl
@pytest.mark.filterwarnings("ignore:invalid escape sequence")
@pytest.mark.filterwarnings("ignore:invalid decimal literal")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("task", TASKS)
def test_scores_are_those_of_the_packages_own_evaluation(task: str, mode: str, official: SimpleNamespace) -> None:
    suite, rng = suite_in(mode), random.Random(task + mode)
    entries = official.utils.load_dataset_entry(task, include_prereq=False, include_language_specific_hint=False)
    answers: list[Any] = [None] * len(entries)
    if "relevance" not in task:
        answers = [each["ground_truth"] for each in official.utils.load_ground_truth_entry(task)]
    items = list(suite.items(task))
    scores = []
    for place in (0, 5, len(items) // 3, len(items) // 2, len(items) - 1):
        for reply in outputs(suite, task, items[place], items[place - 1], rng):
            score = attempt(suite, task, items[place], [reply])
            verdict = official_verdict(official, mode, task, entries[place], answers[place], reply)
            is_right = not isinstance(verdict, Exception) and verdict["valid"]
            assert score.metrics["accuracy"] == (float(is_right), 1.0), (reply, score, verdict)
            if "error_type" in score.details:
                assert score.details["error_type"] == verdict["error_type"]
            scores.append(is_right)
    assert len(scores) > 100
    assert 0 < sum(scores) < len(scores)


@needs_bfcl
@pytest.mark.parametrize("task", TASKS)
def test_questions_are_what_the_packages_handlers_send(task: str, official: SimpleNamespace) -> None:
    asked = {mode: list(suite_in(mode).items(task)) for mode in MODES}
    for place, entry in enumerate(official.utils.load_dataset_entry(task)):
        assert asked["prompting"][place].key == entry["id"]
        assert asked["native"][place].messages == entry["question"][0]
        compiled = official.handlers["native"]._compile_tools({}, entry)["tools"]
        assert asked["native"][place].about["tools"] == compiled
        official.handlers["prompting"]._pre_query_processing_prompting(entry)
        assert asked["prompting"][place].messages == entry["question"][0]


# hostile and broken answers

HOSTILE = (
    "[{f}(x=__import__('os').system('touch {path}')+1)]",
    "[{f}(x=1+__import__('os').system('touch {path}'))]",
    "[{f}(x=[{{'a': (open('{path}', 'w'), 1) + (2,)}}])]",
    "[{f}(x=g(y=open('{path}', 'w').write('') * 2))]",
    "[{f}(x=[open('{path}', 'w') for _ in '1'] + [])]",
    "[{f}(x=(lambda: open('{path}', 'w'))() + 1)]",
    "[{f}(x=lambda: open('{path}', 'w'))]",
    "[{f}(x=open('{path}', 'w')[0])]",
    "[{f}(x={{**open('{path}', 'w')}})]",
    "[{f}(x=f\"{{open('{path}', 'w')}}\" + 'a')]",
    "[{f}(x=(y := open('{path}', 'w')) + 1)]",
    "[{f}(x=-open('{path}', 'w'))]",
    "[{f}(x=().__class__.__base__.__subclasses__() + [])]",
)


@needs_bfcl
@pytest.mark.parametrize("task", TASKS)
def test_nothing_in_an_answer_is_executed(task: str, tmp_path: Path) -> None:
    suite = suite_in("prompting")
    item, path = next(suite.items(task)), tmp_path / "executed"
    for hostile in HOSTILE:
        score = attempt(suite, task, item, [hostile.format(f=item.about["functions"][0]["name"], path=path)])
        if item.about["possible_answers"] is not None:
            assert score.metrics["accuracy"] == (0.0, 1.0)
    assert not path.exists()


@pytest.mark.parametrize(
    "source",
    [
        "9**9**9**9",
        "1 << 10**9",
        "1 << 99999 << 99999",
        "2**-10**9",
        "'a' * 10**9",
        "10**9 * 'a'",
        "b'a' * 10**9",
        "[0] * 10**9",
        "[[[0] * 999] * 999] * 999",
        "(0,) * -10**9",
        "'a' * 999 * 999",
        "'%999999999d' % 1",
        "b'%999999999d' % 1",
        "'{:999999999}'.format(1) + ''",
        "f'{1:999999999}' + ''",
        "0x" + "f" * 5000 + " * 2",
        "a + 1",
        "a.b + 1",
        "f() + 1",
        "(1 if 1 else 2) + 1",
        "(yield) + 1",
        "[1][0] + 1",
    ],
)
def test_what_is_not_harmless_is_refused(source: str) -> None:
    with pytest.raises(arithmetic.UncomputableError):
        arithmetic.compute(source)


@pytest.mark.parametrize(
    "source",
    [
        *("2*3600", "1+2-3", "7//2", "7/2", "7%4", "2**10", "2**-1", "2**.5", "1<<4", "256>>2", "6|1", "6&3", "6^3"),
        *("~5+1", "-(1+2)", "+1-1", "not 1+1", "1.5*2", "True+1", "1j*1j", "10**100", "-2**2"),
        *("'a'+'b'", "3*'ab'", "[0]*3+[1]", "(1,)+(2,)", "{'a': 1} | {'b': 2}", "[1+1, (2*2,)]+[None]", "b'a'*2"),
        *("'x'*0", "[[1]]*2"),
    ],
)
def test_harmless_arithmetic_is_as_in_python(source: str) -> None:
    expected = eval(source)  # noqa: S307
    assert arithmetic.compute(source) == expected
    assert type(arithmetic.compute(source)) is type(expected)


NUMBERS = (
    st.integers(0, 99).map(str) | st.floats(0, 99).map(repr) | st.sampled_from(["'a'", "b'a'", "[1]", "(2,)", "True"])
)


@given(
    st.recursive(
        NUMBERS,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "&", "|", "^", "<<"]), inner).map(
                lambda parts: f"({' '.join(parts)})"
            ),
            st.tuples(st.sampled_from(["-", "+", "~", "not "]), inner).map(lambda parts: f"({parts[0]}{parts[1]})"),
        ),
        max_leaves=5,
    )
)
def test_what_is_computed_is_what_python_computes(source: str) -> None:
    try:
        computed = arithmetic.compute(source)
    except arithmetic.UncomputableError:
        return
    except Exception as error:
        with pytest.raises(type(error)):
            eval(source)  # noqa: S307
        return
    assert computed == eval(source)  # noqa: S307


@pytest.mark.parametrize("source", ["1/0", "1 + 'a'", "1 @ 2", "10.0**1000", "1 << -1", "-'a' + 1", "1 +"])
def test_what_python_cannot_compute_fails_as_in_python(source: str) -> None:
    with pytest.raises((ArithmeticError, SyntaxError, TypeError, ValueError)) as expected:
        eval(source)  # noqa: S307
    with pytest.raises(type(expected.value)):
        arithmetic.compute(source)


BROKEN = (
    "",
    " ",
    "a" * 1_000_000,
    "[f(x=" + "1," * 500_000 + ")]",
    "\ud800",
    "[f(x='\ud800')]",
    "\0",
    "[f(x='\0')]",
    *("[f(x=" + opened * 1_000_000 for opened in "([{-~"),
    *("[f(x=" + opened * 150 + closed * 150 + ")]" for opened, closed in ("()", "[]", "{}")),
    *("[f(x=" + opened * 1_900 + "1" + closed * 1_900 + ")]" for opened, closed in ("()", "[]", "{}")),
    *("[f" + chain * 40_000 + "(x=1)]" for chain in (".a", "()", "[0]", "+1", "(x=1)")),
    *("[f" + chain * 1_000 + "(x=1)]" for chain in (".a", "()", "[0]", "+1", "<A")),
    *("[f(x=" + word * 900 + "1)]" for word in ("not ", "a=>", "lambda:", "!", "1?1:", "if(1)", "`${", "1+")),
)


@needs_bfcl
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("task", ["parallel", "simple_java", "simple_javascript", "irrelevance", "live_relevance"])
def test_broken_answers_are_scored(task: str, mode: str) -> None:
    suite = suite_in(mode)
    item = next(suite.items(task))
    name = "f" if mode == "prompting" else item.about["functions"][0]["name"].replace(".", "_")
    for text in BROKEN:
        reply = Reply(text) if mode == "prompting" else Reply("", ((name, text),))
        score = attempt(suite, task, item, [reply])
        json.dumps(score.parsed)
        if item.about["possible_answers"] is not None:
            assert score.metrics["accuracy"] == (0.0, 1.0)
            assert score.problem or score.details


@needs_bfcl
@pytest.mark.parametrize(
    "value", ["(1, 2)", "{1, 2}", "b'a'", "1j", "1e999", "...", "{(1, 2): 3}", "'\\ud800'", "0x" + "f" * 9000]
)
def test_what_was_parsed_can_be_written_as_json(value: str) -> None:
    suite = suite_in("prompting")
    for task, text in (("simple_python", f"[f(x={value})]"), ("parallel", f"[f(x={value}), f(x={value})]")):
        score = attempt(suite, task, next(suite.items(task)), [text])
        json.dumps([score.parsed, score.details], allow_nan=False)
        assert score.metrics["accuracy"] == (0.0, 1.0)
        assert score.problem or score.details


@needs_bfcl
def test_a_checker_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramerge_eval.tasks.tool.call_within_limit", partial(call_within_limit, seconds=0.3))
    suite = suite_in("prompting")
    item = next(item for item in suite.items("simple_javascript") if item.key == "simple_javascript_2")
    endless = "[[" + "],[" * 60 + "x"  # exponential time in the package's pattern for arrays of arrays
    [(name, arguments)] = right_calls("simple_javascript", item)
    score = attempt(
        suite, "simple_javascript", item, [f"[{bfcl_calls.quoted(name, {**arguments, 'status': endless})}]"]
    )
    assert score.metrics["accuracy"] == (0.0, 1.0)
    assert score.problem == "the checker did not end within 0.3 seconds"


@needs_bfcl
def test_an_answer_leaves_output_and_the_question_alone(capsys: pytest.CaptureFixture[str]) -> None:
    suite = suite_in("prompting")
    for task in ("simple_python", "simple_javascript", "parallel"):
        for item, again in zip(suite.items(task), list(suite.items(task))[:20], strict=False):
            attempt(suite, task, item, [r"[f(x='\d \p', y=1is 2, z={a: {b: }})]"])
            attempt(suite, task, item, gold_of(suite, task, item))
            assert (item.messages, item.about) == (again.messages, again.about)
    assert capsys.readouterr() == ("", "")


# data

FUNCTION = {
    "name": "shop.buy",
    "description": "Buys fruit.",
    "parameters": {
        "type": "dict",
        "properties": {
            "fruit": {"type": "string", "description": "which"},
            "number": {"type": "integer", "description": "how many"},
        },
        "required": ["fruit"],
    },
}
QUESTION = {"id": "simple_python_0", "question": [[{"role": "user", "content": "Two pears."}]], "function": [FUNCTION]}
ANSWER = {"id": "simple_python_0", "ground_truth": [{"shop.buy": {"fruit": ["pear", "pears"], "number": [2, ""]}}]}


def write(folder: Path, questions: Any = (QUESTION,), answers: Any = (ANSWER,)) -> Path:
    (folder / "possible_answer").mkdir(exist_ok=True)
    for place, records in ((folder, questions), (folder / "possible_answer", answers)):
        data = records if isinstance(records, bytes) else "\n".join(map(json.dumps, records)).encode()
        (place / "BFCL_v4_simple_python.json").write_bytes(data)
    return folder


@needs_bfcl
def test_a_folder_of_the_user(tmp_path: Path) -> None:
    suite = suite_in("prompting", write(tmp_path))
    suite.check(["simple_python"])
    [item] = suite.items("simple_python")
    assert gold_of(suite, "simple_python", item) == [Reply("[shop.buy(fruit='pear', number=2)]")]
    share = partial(main_metric, suite, "simple_python", item)
    assert [share([text]) for text in ("shop.buy(fruit='Pears')", "[shop.buy(fruit='pear', number=1+1)]")] == [1, 1]
    wrong = (
        "shop_buy(fruit='pear')",
        "shop.buy(fruit='fig')",
        "shop.buy(number=2)",
        "shop.buy(fruit='pear', number='2')",
    )
    assert [share([text]) for text in wrong] == [0, 0, 0, 0]

    native = suite_in("native", tmp_path)
    [item] = native.items("simple_python")
    assert gold_of(native, "simple_python", item) == [Reply("", (("shop_buy", '{"fruit": "pear", "number": 2}'),))]
    assert main_metric(native, "simple_python", item, [Reply("", (("shop.buy", '{"fruit": "pear"}'),))]) == 0
    assert main_metric(native, "simple_python", item, [Reply("", (("shop_buy", '{"fruit": "pear"}'),))]) == 1


BAD = {
    "a missing field": ({"questions": [{"id": "a", "question": []}]}, "lacks function"),
    "a wrong type": ({"questions": [{**QUESTION, "function": "f"}]}, "function: must be list"),
    "an id twice": ({"questions": [QUESTION, QUESTION]}, "more than once"),
    "an answer twice": ({"answers": [ANSWER, ANSWER]}, "more than once"),
    "no answer": ({"answers": [{**ANSWER, "id": "other"}]}, "lacks possible answers to simple_python_0"),
    "an empty answer": ({"answers": [{**ANSWER, "ground_truth": []}]}, "lacks possible answers to simple_python_0"),
    "an answer for no function": (
        {"answers": [{**ANSWER, "ground_truth": [{"shop.sell": {"fruit": ["pear"]}}]}]},
        "simple_python_0: is not a question",
    ),
    "no turn": ({"questions": [{**QUESTION, "question": []}]}, "simple_python_0: is not a question"),
    "no parameters": ({"questions": [{**QUESTION, "function": [{"name": "f"}]}]}, "simple_python_0: is not a question"),
    "Latin-1": ({"questions": '{"id": "é"}'.encode("latin-1")}, "is not UTF-8"),
    "nothing": ({"questions": b""}, "holds no record"),
    "no JSON": ({"questions": b"id,question\n"}, "is not JSON"),
}


@needs_bfcl
@pytest.mark.parametrize("what", BAD)
def test_bad_data_is_named(what: str, tmp_path: Path) -> None:
    written, message = BAD[what]
    suite = suite_in("prompting", write(tmp_path, **written))
    with pytest.raises(EvaluationError, match=message) as caught:
        suite.check(["simple_python"])
    assert "BFCL_v4_simple_python.json" in str(caught.value)


@needs_bfcl
def test_all_files_with_problems_are_named(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError) as caught:
        suite_in("prompting", tmp_path).check(["simple_python", "parallel"])
    assert len(caught.value.problems) == 2


# the package


def test_absent_packages_are_named_with_what_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    bfcl.load.cache_clear()
    monkeypatch.setattr(bfcl, "find_spec", lambda name: None if name in ("bfcl_eval", "tree_sitter") else name)
    with pytest.raises(EvaluationError) as caught:
        suite_in("prompting").check(["parallel"])
    assert "needs bfcl-eval, tree-sitter: " in str(caught.value)
    assert "pip install --no-deps bfcl-eval" in str(caught.value)


@needs_bfcl
def test_a_package_that_cannot_be_imported_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    bfcl.load.cache_clear()
    monkeypatch.setattr(bfcl, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    with pytest.raises(EvaluationError, match="bfcl-eval cannot be imported"):
        suite_in("prompting").check(["parallel"])


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_module_needs_nothing_of_the_extra() -> None:
    program = "import sys, {}; print([name for name in sys.modules if '.' not in name])"
    before, after = (
        set(ast.literal_eval(run(program.format(name)))) for name in ("ramerge", "ramerge_eval.tasks.tool")
    )
    assert "bfcl_eval" not in after - before


PRIVATE = """
import os, sys
import bfcl_eval.constants.enums as others
import bfcl_eval.constants.eval_config
from ramerge_eval.tasks import bfcl
before, environment = {name: module for name, module in sys.modules.items() if "bfcl" in name}, dict(os.environ)
package = bfcl.load()
after = {name: module for name, module in sys.modules.items() if "bfcl" in name}
assert before == after and environment == dict(os.environ)
assert package.enums is not others
assert "model_config" not in str(sorted(after))
assert not hasattr(others, "eval") and package.handler.eval("1+1") == 2
print(package.handler.default_decode_ast_prompting("f(x=1+1)"))
"""


@needs_bfcl
def test_other_users_of_the_package_keep_theirs(tmp_path: Path) -> None:
    assert run(PRIVATE, BFCL_PROJECT_ROOT=str(tmp_path)).strip() == "[{'f': {'x': 2}}]"


BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

class Nothing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        known = {{*sys.stdlib_module_names, *{allowed!r}}}
        if name.partition(".")[0] not in known:
            raise ModuleNotFoundError(name)

from ramerge_eval.tasks import bfcl
sys.meta_path.insert(0, Nothing())
bfcl.load()
print("imported")
"""


@needs_bfcl
def test_the_package_needs_no_more_than_is_asked_for() -> None:
    allowed = [*bfcl._MODULES, "filelock", "tenacity", "ramerge", "ramerge_eval"]
    assert run(BLOCKED.format(allowed=allowed)).strip() == "imported"
