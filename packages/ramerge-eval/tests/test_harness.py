"""IFEval, GSM8K and MATH500 through lm-eval: prompts and scores are those of its own `simple_evaluate`."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ramerge.core.foundation.errors import EndpointError, EvaluationError
from ramerge_eval.tasks import harness
from ramerge_eval.time_limit import call_within_limit
from suites.chats import Scripted, Suite, asked_and_scored, attempt, main_metric
from suites.gold import document_of, gold_of

pytestmark = pytest.mark.full  # clients of models, checkers, the sandbox

for package in ("lm_eval", "math_verify", "langdetect", "immutabledict", "nltk"):
    pytest.importorskip(package)

# one response that follows each of IFEval's instructions
FOLLOWED: list[tuple[list[str], list[dict[str, Any]], str]] = [
    (["keywords:existence"], [{"keywords": ["tide", "moon"]}], "The moon, as we know, pulls the tide."),
    (["keywords:frequency"], [{"keyword": "sea", "frequency": 2, "relation": "at least"}], "Sea, sea and sand."),
    (["keywords:forbidden_words"], [{"forbidden_words": ["rain", "a"]}], "It is sunny, with clouds."),
    (
        ["keywords:letter_frequency"],
        [{"letter": "z", "let_frequency": 3, "let_relation": "at least"}],
        "Zebras, buzzing.",
    ),
    (["language:response_language"], [{"language": "de"}], "Das Wetter ist heute schön, aber morgen wird es regnen."),
    (
        ["length_constraints:number_sentences"],
        [{"num_sentences": 3, "relation": "at least"}],
        "One is here, Dr. Low. Two is here. Three is here.",
    ),
    (["length_constraints:number_paragraphs"], [{"num_paragraphs": 2}], "First, a start.\n***\nSecond."),
    (["length_constraints:number_words"], [{"num_words": 4, "relation": "less than"}], "Only, three words"),
    (
        ["length_constraints:nth_paragraph_first_word"],
        [{"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "later"}],
        "First, one.\n\nLater comes this.",
    ),
    (["detectable_content:number_placeholders"], [{"num_placeholders": 2}], "Dear [name], come to [address]."),
    (["detectable_content:postscript"], [{"postscript_marker": "P.S."}], "That was it, so far.\nP.S. One more."),
    (["detectable_format:number_bullet_lists"], [{"num_bullets": 2}], "* bread, butter\n* milk"),
    (["detectable_format:constrained_response"], [{}], "My answer is yes."),
    (["detectable_format:number_highlighted_sections"], [{"num_highlights": 1}], "This, *above all*, counts."),
    (
        ["detectable_format:multiple_sections"],
        [{"section_spliter": "SECTION", "num_sections": 2}],
        "SECTION 1\nA start, then\nSECTION 2\nan end.",
    ),
    (["detectable_format:json_format"], [{}], '{"color": "red", "size": 3}'),
    (["detectable_format:title"], [{}], "<<On tides>>\nThey come, they go."),
    (["combination:two_responses"], [{}], "One, first.\n******\nTwo."),
    (["combination:repeat_prompt"], [{"prompt_to_repeat": "Say hello"}], "Say hello, Hello to you."),
    (["startend:end_checker"], [{"end_phrase": "That is all."}], "Once, long ago. That is all."),
    (
        ["change_case:capital_word_frequency"],
        [{"capital_frequency": 2, "capital_relation": "at least"}],
        "This is VERY, VERY loud.",
    ),
    (["change_case:english_capital"], [{}], "THIS SENTENCE, ABOUT THE WEATHER IN THE NORTH, IS IN ENGLISH."),
    (["change_case:english_lowercase"], [{}], "this sentence, about the weather in the north, is in english."),
    (["punctuation:no_comma"], [{}], "There is nothing like that in here."),
    (["startend:quotation"], [{}], '"All of it, and no less, is quoted."'),
    (
        ["punctuation:no_comma", "startend:quotation", "length_constraints:number_words"],
        [{}, {}, {"num_words": 5, "relation": "at least"}],
        '"Five words are in here."',
    ),
]
IFEVAL = [
    {"key": number, "prompt": f"Prompt {number}", "instruction_id_list": ids, "kwargs": kwargs, "gold": gold}
    for number, (ids, kwargs, gold) in enumerate(FOLLOWED, 1000)
]
GSM8K = [
    {"question": f"Ann has {n} pears and buys {n * 7} more. How many?", "answer": f"{n}+{n * 7}={n * 8}\n#### {n * 8}"}
    for n in range(2, 14)
]
GSM8K_TRAIN = [
    {"question": f"Bob had {n + 9} plums and ate {n}. How many are left?", "answer": f"{n + 9}-{n}=9\n#### 9"}
    for n in range(1, 30)
]
ANSWERS = [
    "12",
    "\\frac{14}{3}",
    "p - q",
    "\\left( 3, \\frac{\\pi}{2} \\right)",
    "\\text{Evelyn}",
    "90^\\circ",
    "x^2+1",
]
MATH500 = [
    {"problem": f"Problem {number}?", "solution": f"So it is $\\boxed{{{answer}}}$.", "answer": answer}
    for number, answer in enumerate(ANSWERS)
]
MATH500_PROMPTS = [
    {"prompt": f"Problem {number}? Put your answer within \\boxed{{}}.", "answer": answer}
    for number, answer in enumerate(ANSWERS)
]


@pytest.fixture(scope="module", autouse=True)
def punkt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A sentence splitter that knows no abbreviations, where NLTK's own is not installed."""
    folder = tmp_path_factory.mktemp("nltk")
    english = folder / "tokenizers" / "punkt_tab" / "english"
    english.mkdir(parents=True)
    for name in ("abbrev_types.txt", "collocations.tab", "sent_starters.txt", "ortho_context.tab"):
        (english / name).write_text("")
    paths = import_module("nltk").data.path
    paths.append(str(folder))
    yield
    paths.remove(str(folder))


def write(folder: Path, name: str, records: Sequence[Mapping[str, Any]]) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def suite(task: str, data: Mapping[str, Path], **settings: Any) -> Suite:
    """The suite that has a task, made."""
    makes = {"ifeval": ["ifeval"], "gsm8k": ["gsm8k", "gsm8k_train"], "math500": ["math500"]}
    taken = {name: data[name] for name in makes[task] if name in data}
    made = Suite(harness.ifeval if task == "ifeval" else harness.math, **taken, **settings)
    made.task(task)
    return made


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Path]:
    records = {"ifeval": IFEVAL, "gsm8k": GSM8K, "gsm8k_train": GSM8K_TRAIN, "math500": MATH500}
    return {name: write(tmp_path, name, each) for name, each in records.items()}


# --- lm-eval itself


def evaluated(
    folder: Path,
    yaml: str,
    splits: Mapping[str, Path],
    changes: Mapping[str, Any],
    replies: Sequence[str],
    **options: Any,
) -> tuple[dict[str, Any], list[Any], list[dict[str, Any]]]:
    """Figures, prompts and samples of lm-eval's own run on local files, with a model that gives these replies."""
    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    class Canned(LM):
        tokenizer_name = "canned"

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            self.prompts = [json.loads(request.args[0]) for request in requests]
            assert len(requests) == len(replies)
            return list(replies)

        def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
            return json.dumps(chat_history)

        def loglikelihood(self, requests: Any) -> Any:
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    entry = {
        "include": str(Path(import_module("lm_eval.tasks").__file__ or "").parent / yaml),
        "task": "local",
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {
            "data_files": {split: str(path) for split, path in splits.items()},
            "cache_dir": str(folder / "cache"),
        },
        **changes,
    }
    (folder / "local.yaml").write_text(json.dumps(entry))  # JSON is YAML
    model = Canned()
    results = simple_evaluate(
        model=model,
        tasks=["local"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        apply_chat_template=True,
        fewshot_as_multiturn=True,
        bootstrap_iters=0,
        **options,
    )
    assert results is not None
    samples: list[dict[str, Any]] = results["samples"]["local"]
    return results["results"]["local"], model.prompts, samples


CASES = {
    "gsm8k": ("gsm8k", "gsm8k/gsm8k.yaml", {}, {}),
    "gsm8k, 2 examples": ("gsm8k", "gsm8k/gsm8k.yaml", {"fewshot": 2}, {}),
    "gsm8k_cot": ("gsm8k", "gsm8k/gsm8k-cot.yaml", {}, {}),
    "math_verify": ("math500", "minerva_math/minerva_math500.yaml", {}, {}),
    "ifeval": ("ifeval", "ifeval/ifeval.yaml", {}, {}),
}
METRICS = {
    "gsm8k": {"flexible": "exact_match,flexible-extract", "strict": "exact_match,strict-match"},
    "math_verify": {"accuracy": "math_verify,none"},
    "ifeval": {
        "prompt_strict": "prompt_level_strict_acc,none",
        "instruction_strict": "inst_level_strict_acc,none",
        "prompt_loose": "prompt_level_loose_acc,none",
        "instruction_loose": "inst_level_loose_acc,none",
    },
}


def mixed(golds: Sequence[str], shift: int) -> list[str]:
    """Replies right, wrong, right but wrapped, and of no use."""
    wraps = [
        lambda own, other: own,
        lambda own, other: other,
        lambda own, other: f"Sure!\n**{own}**\nI hope it is correct.",
        lambda own, other: f"First {other}, no: {own} is it, {other}",
        lambda own, other: "no idea",
    ]
    others = [*golds[1:], golds[0]]
    return [
        wraps[(n + shift) % len(wraps)](own, other) for n, (own, other) in enumerate(zip(golds, others, strict=True))
    ]


@pytest.mark.parametrize("shift", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_prompts_and_scores_are_those_of_lm_eval(
    case: str, shift: int, data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, yaml, settings, changes = CASES[case]
    if case == "gsm8k_cot":
        del data["gsm8k_train"]
    ours = suite(task, data, **settings)
    items = list(ours.items(task))
    golds = [gold_of(ours, task, item)[0].text for item in items]
    replies = mixed(golds, shift)

    chats = [Scripted([reply]) for reply in replies]
    scores = [asyncio.run(asked_and_scored(ours, task, item, chat)) for item, chat in zip(items, chats, strict=True)]

    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda _results: None)  # lists all installed packages
    splits = {"train" if task == "ifeval" else "test": data[task]}
    if case.startswith("gsm8k") and "cot" not in case:
        splits["train"] = data["gsm8k_train"]
    options = {"num_fewshot": settings["fewshot"]} if "fewshot" in settings else {}
    figures, prompts, samples = evaluated(tmp_path, yaml, splits, changes, replies, **options)

    assert [chat.asked[0]["messages"] for chat in chats] == prompts
    assert list(chats[0].asked[0]["stop"]) == samples[0]["arguments"][0][1]["until"]
    for metric, name in METRICS.get(case, METRICS["gsm8k"]).items():
        ratios = [score.metrics[metric] for score in scores]
        assert sum(hit for hit, _ in ratios) / sum(weight for _, weight in ratios) == pytest.approx(figures[name])
        theirs_name, filter_name = name.split(",")
        theirs = [sample[theirs_name] for sample in samples if sample["filter"] == filter_name]
        theirs = [sum(each) if isinstance(each, list) else float(each) for each in theirs]
        assert [hit for hit, _ in ratios] == theirs
        assert 0 < sum(theirs) < len(theirs)


# --- gold, and what is not


def test_gold_is_right_and_the_gold_of_others_is_not(data: dict[str, Path]) -> None:
    # an answer that happens to follow another prompt's instruction, such as one without a comma, is right there too
    for task, most in {"gsm8k": 0.0, "math500": 0.0, "ifeval": 0.2}.items():
        ours = suite(task, data)
        items = list(ours.items(task))
        golds = [gold_of(ours, task, item) for item in items]
        assert [main_metric(ours, task, item, gold) for item, gold in zip(items, golds, strict=True)] == [1.0] * len(
            items
        )
        others = [main_metric(ours, task, item, gold) for item, gold in zip(items, golds[1:], strict=False)]
        assert sum(others) / len(others) <= most


def test_gold_of_prompts_that_hold_their_instruction(tmp_path: Path) -> None:
    ours = suite("math500", {"math500": write(tmp_path, "math", MATH500_PROMPTS)})
    items = list(ours.items("math500"))
    assert [item.messages for item in items] == [
        [{"role": "user", "content": record["prompt"]}] for record in MATH500_PROMPTS
    ]
    assert all(main_metric(ours, "math500", item, gold_of(ours, "math500", item)) == 1.0 for item in items)


def real(name: str) -> Path:
    folder = os.environ.get("RAMERGE_EVAL_DATA")
    if folder is None:
        pytest.skip("needs real data: set RAMERGE_EVAL_DATA to a folder that has it")
    return Path(folder) / name


@pytest.mark.parametrize(
    ("task", "name", "size", "some"),
    [("gsm8k", "gsm8k_test.jsonl", 1319, 300), ("math500", "math500.jsonl", 500, 100)],
)
def test_gold_of_the_real_data(task: str, name: str, size: int, some: int) -> None:
    ours = suite(task, {task: real(name)})
    items = list(ours.items(task))
    assert len(items) == size
    golds = [gold_of(ours, task, item) for item in items]
    scores = [attempt(ours, task, item, gold) for item, gold in zip(items[:some], golds, strict=False)]
    assert all(ratio == (1.0, 1.0) for score in scores for ratio in score.metrics.values())
    others = [main_metric(ours, task, item, gold) for item, gold in zip(items[:some], golds[1:], strict=False)]
    assert sum(others) / some < 0.03


def test_every_instruction_of_lm_eval_is_followed_once() -> None:
    registry = import_module("lm_eval.tasks.ifeval.instructions_registry")
    assert {each for ids, _, _ in FOLLOWED for each in ids} == set(registry.INSTRUCTION_DICT)


HOSTILE = {
    "empty": "",
    "blank": " \n\t",
    "enormous": "word 7 " * 150_000,
    "surrogates": "\ud800\udfff #### \ud800",
    "NULs": "\x00" * 1000,
    "nested": "\\boxed{" * 3000 + "[" * 3000,
    "unbalanced": "\\boxed{\\frac{1}{",
    "expression": "\\boxed{(((9!)!)!)!}",
}


# math_verify's alarm may go off within hypothesis's callback of the garbage collector, which cannot raise
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("task", ["gsm8k", "math500"])
def test_hostile_replies_are_wrong(task: str, kind: str, data: dict[str, Path]) -> None:
    ours = suite(task, data)
    item = next(ours.items(task))
    before = signal.getsignal(signal.SIGALRM)
    score = attempt(ours, task, item, [HOSTILE[kind]])
    assert set(score.metrics.values()) == {(0.0, 1.0)}
    json.dumps(score.parsed)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_replies_follow_no_instruction_that_asks_for_something(kind: str, data: dict[str, Path]) -> None:
    ours = suite("ifeval", data)
    for item in ours.items("ifeval"):
        if kind == "enormous" and document_of(ours, "ifeval", item)["instruction_id_list"][0] not in (
            "keywords:existence",
            "length_constraints:nth_paragraph_first_word",
        ):
            continue
        score = attempt(ours, "ifeval", item, [HOSTILE[kind]])
        for hits, weight in score.metrics.values():
            assert 0.0 <= hits <= weight > 0
        if kind in ("empty", "blank") or document_of(ours, "ifeval", item)["instruction_id_list"] == [
            "keywords:existence"
        ]:
            assert all(hits == 0.0 for hits, _ in score.metrics.values())


def test_a_checker_that_does_not_end_is_stopped(data: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    ours = suite("ifeval", data)
    item = next(ours.items("ifeval"))

    def stuck(_self: object, _value: str) -> bool:
        while True:
            pass

    monkeypatch.setattr("lm_eval.tasks.ifeval.instructions.KeywordChecker.check_following", stuck)
    monkeypatch.setattr("ramerge_eval.tasks.harness.call_within_limit", partial(call_within_limit, seconds=0.2))
    score = attempt(ours, "ifeval", item, ["The tide"])
    assert score.problem is not None and "did not end" in score.problem
    assert score.metrics == ours.failed("ifeval", item)


def test_a_checker_with_alarms_of_its_own_is_stopped() -> None:
    def checker() -> None:
        for _ in range(200):
            signal.alarm(5)
            until = time.monotonic() + 0.05
            while time.monotonic() < until:
                pass
            signal.alarm(0)

    handlers = [signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGPROF)]
    began = time.monotonic()
    assert call_within_limit(checker, seconds=0.2) == (None, "the checker did not end within 0.2 seconds")
    assert time.monotonic() - began < 9
    assert [signal.getitimer(clock)[0] for clock in (signal.ITIMER_REAL, signal.ITIMER_PROF)] == [0, 0]
    assert [signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGPROF)] == handlers


def test_a_reply_without_an_answer_says_so(data: dict[str, Path]) -> None:
    for task, text in {"gsm8k": "holds no number", "math500": "holds no expression"}.items():
        ours = suite(task, data)
        problem = attempt(ours, task, next(ours.items(task)), ["I do not know"]).problem
        assert problem is not None and problem.startswith(text)


def test_failed_requests_keep_their_weight(data: dict[str, Path]) -> None:
    for task in ("gsm8k", "math500", "ifeval"):
        ours = suite(task, data)
        *_, item = ours.items(task)
        with pytest.raises(EndpointError):
            attempt(ours, task, item, [None])
        right = attempt(ours, task, item, gold_of(ours, task, item))
        assert ours.failed(task, item) == {name: (0.0, weight) for name, (_, weight) in right.metrics.items()}
    assert ours.failed("ifeval", item)["instruction_strict"] == (0.0, 3.0)


# --- the same in every run


def test_items_are_the_same_in_every_run(data: dict[str, Path]) -> None:
    for task in ("gsm8k", "math500", "ifeval"):
        ours = suite(task, data)
        first, anew = list(ours.items(task)), list(suite(task, data).items(task))
        assert [(each.key, each.messages) for each in first] == [(each.key, each.messages) for each in anew]
        assert len({item.key for item in first}) == len(first)


def test_examples_are_the_same_for_every_seed_of_sampling(data: dict[str, Path]) -> None:
    def asked(**settings: Any) -> list[Any]:
        return [item.messages for item in suite("gsm8k", data, **settings).items("gsm8k")]

    assert asked() == asked(seed=7)


def test_scores_do_not_depend_on_luck(tmp_path: Path) -> None:
    # the number of words is left open, so that lm-eval draws one; the language of "Hallo" is uncertain
    records = [
        {"key": 1, "prompt": "?", "instruction_id_list": ["length_constraints:number_words"], "kwargs": [{}]},
        {
            "key": 2,
            "prompt": "?",
            "instruction_id_list": ["language:response_language"],
            "kwargs": [{"language": "de"}],
        },
    ]
    ours = suite("ifeval", {"ifeval": write(tmp_path, "open", records)})
    for item, reply in zip(ours.items("ifeval"), ["word " * 300, "Hallo in Info"], strict=True):
        random.seed(11)
        state = random.getstate()
        first = attempt(ours, "ifeval", item, [reply])
        assert random.getstate() == state
        assert all(attempt(ours, "ifeval", item, [reply]) == first for _ in range(20))


# --- settings


def test_defaults_are_the_tasks_own(data: dict[str, Path]) -> None:
    for task, most in (("ifeval", 1280), ("gsm8k", 256)):
        made = suite(task, data).task(task).config
        assert (made.max_tokens, made.temperature) == (most, 0.0)
    for task, turns, stop in (
        ("gsm8k", 11, ("Question:", "</s>", "<|im_end|>")),
        ("math500", 9, ("Problem:",)),
        ("ifeval", 1, ()),
    ):
        ours = suite(task, data)
        item = next(ours.items(task))
        chat = Scripted(["7"])
        asyncio.run(asked_and_scored(ours, task, item, chat))
        assert len(chat.asked[0]["messages"]) == turns
        assert chat.asked[0]["stop"] == stop


def test_gsm8k_without_a_train_split_takes_examples_that_ship_with_lm_eval(data: dict[str, Path]) -> None:
    del data["gsm8k_train"]
    ours = suite("gsm8k", data)
    assert len(next(ours.items("gsm8k")).messages) == 17
    none = suite("gsm8k", data, fewshot=0)
    assert next(none.items("gsm8k")).messages == [
        {"role": "user", "content": f"Question: {GSM8K[0]['question']}\nAnswer:"}
    ]


@pytest.mark.parametrize(
    ("settings", "absent", "message"),
    [
        ({}, "gsm8k", "needs --data gsm8k=FILE"),
        ({"fewshot": 9}, "gsm8k_train", "exceeds the 8"),
        ({"fewshot": 30}, "", "larger than population"),
    ],
)
def test_examples_that_cannot_be_had(
    settings: dict[str, Any], absent: str, message: str, data: dict[str, Path]
) -> None:
    data.pop(absent, None)
    with pytest.raises(EvaluationError, match=message):
        suite("gsm8k", data, **settings)


@pytest.mark.parametrize("wrong", [{"fewshot": -1}, {"shots": 3}])
def test_settings_that_are_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(EvaluationError, match=r"ramerge/math: (fewshot|shots)"):
        suite("gsm8k", {}, **wrong)


# --- data and packages that are wrong


def ifeval(**changes: Any) -> dict[str, Any]:
    return {**IFEVAL[0], **changes}


@pytest.mark.parametrize(
    ("task", "records", "message"),
    [
        ("gsm8k", [{"question": "How many?"}], "line 1: lacks answer"),
        ("gsm8k", [{"question": "How many?", "answer": "seven"}], "record 1: answer has no ####"),
        ("gsm8k", [{"question": 7, "answer": "#### 7"}], "question: must be str, not int"),
        ("math500", [{"problem": "?"}], "lacks answer"),
        ("math500", [{"problem": "?", "answer": "1}{"}], r"record 1: solution, or answer"),
        ("math500", [{"problem": "?", "answer": "1", "solution": "one"}], "record 1: solution, or answer"),
        ("math500", [{"problem": "?", "answer": "1", "unique_id": "a"}] * 2, "more than once: 'a'"),
        ("ifeval", [{"key": 1, "prompt": "?"}], "lacks instruction_id_list, kwargs"),
        ("ifeval", [IFEVAL[0], IFEVAL[0]], "more than once: '1000'"),
        ("ifeval", [ifeval(instruction_id_list=["keywords:absence"])], "knows no such.*keywords:absence"),
        ("ifeval", [ifeval(instruction_id_list=[], kwargs=[])], "must be a list of texts, and not empty"),
        ("ifeval", [ifeval(instruction_id_list=[[]])], "must be a list of texts"),
        ("ifeval", [ifeval(kwargs=[{}, {}])], "has 1 instructions and kwargs for 2"),
        ("ifeval", [ifeval(kwargs=[{"key_words": ["a"]}])], "no such instructions with these kwargs"),
        ("ifeval", [ifeval(kwargs=["a"])], "no such instructions with these kwargs"),
        ("ifeval", [ifeval(kwargs=[{}]), ifeval(key="x")], "lm-eval cannot use it"),
    ],
)
def test_bad_records(task: str, records: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    path = write(tmp_path, "bad", records)
    with pytest.raises(EvaluationError, match=message) as caught:
        suite(task, {task: path})
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("task", ["gsm8k", "math500", "ifeval"])
@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "holds no record"), ('{"question": "é"}'.encode("latin-1"), "is not UTF-8"), (b"question\n", "is not JSON")],
)
def test_bad_files(task: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(EvaluationError, match=message):
        suite(task, {task: path})


def test_all_problems_are_told_up_to_ten(tmp_path: Path) -> None:
    path = write(tmp_path, "bad", [{"question": "?", "answer": str(number)} for number in range(13)])
    with pytest.raises(EvaluationError) as caught:
        suite("gsm8k", {"gsm8k": path})
    assert len(caught.value.problems) == 11
    assert caught.value.problems[-1] == "and 3 more"


def test_a_check_tells_the_problems_of_all_tasks(tmp_path: Path) -> None:
    paths = {task: tmp_path / task for task in ("gsm8k", "math500")}
    with pytest.raises(EvaluationError) as caught:
        Suite(harness.math, **paths).check(["gsm8k", "math500"])
    assert [str(path) in problem for path, problem in zip(paths.values(), caught.value.problems, strict=True)] == [
        True
    ] * 2


@pytest.mark.parametrize("task", ["gsm8k", "math500", "ifeval"])
def test_without_the_hub_the_file_is_asked_for(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_arguments: Any, **_options: Any) -> Any:
        raise ConnectionError("no such host")

    monkeypatch.setattr("datasets.load_dataset", offline)
    with pytest.raises(EvaluationError, match=f"--data {task}=FILE.*no such host"):
        suite(task, {})


@pytest.mark.parametrize("task", ["gsm8k", "math500", "ifeval"])
def test_data_of_the_hub_goes_the_same_way(task: str, data: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset, DatasetDict

    local = {
        "gsm8k": {"train": GSM8K_TRAIN, "test": GSM8K},
        "math500": {"test": MATH500},
        "ifeval": {"train": IFEVAL},
    }[task]
    hub = DatasetDict({split: Dataset.from_list(records) for split, records in local.items()})
    expected = [item.messages for item in suite(task, data).items(task)]
    monkeypatch.setattr("datasets.load_dataset", lambda *_arguments, **_options: hub)
    assert [item.messages for item in suite(task, {}).items(task)] == expected


def test_without_punkt_the_message_says_how_to_get_it(data: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_arguments: Any, **_options: Any) -> Any:
        raise LookupError

    monkeypatch.setattr("nltk.data.find", absent)
    with pytest.raises(EvaluationError, match=r"2 records: .*nltk.download\('punkt_tab'\).*NLTK_DATA"):
        suite("ifeval", data)


SILENT = """
import socket, sys
from pathlib import Path

def no_network(*_arguments, **_options):
    raise AssertionError("asked the network")

socket.getaddrinfo = socket.socket.connect = no_network
from ramerge_eval.time_limit import call_within_limit
from ramerge_eval.tasks.harness import ifeval, math
assert not {"lm_eval", "datasets", "sympy", "nltk"} & set(sys.modules)

import asyncio
from suites.chats import Scripted, Suite, asked_and_scored
from suites.gold import gold_of

folder = Path(sys.argv[1])
data = {path.stem: path for path in folder.glob("*.jsonl")}
suites = {"ifeval": Suite(ifeval, ifeval=data.pop("ifeval"))}
suites |= dict.fromkeys(("gsm8k", "math500"), Suite(math, **data))
for name, suite in suites.items():
    for item in suite.items(name):
        for reply in (gold_of(suite, name, item)[0], "\\\\frac{", "7 \\x00"):
            asyncio.run(asked_and_scored(suite, name, item, Scripted([reply])))
"""


def test_local_data_takes_no_network_and_leaves_terminal_and_home_alone(data: dict[str, Path], tmp_path: Path) -> None:
    counted = ("length_constraints:number_sentences", "change_case:capital_word_frequency")
    write(tmp_path, "ifeval", [each for each in IFEVAL if each["instruction_id_list"][0] not in counted])
    home = tmp_path / "home"
    home.mkdir()
    tests = Path(__file__).parent
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_", "NLTK_"))}
    done = subprocess.run(
        [sys.executable, "-c", SILENT, str(tmp_path)],
        env={**kept, "HOME": str(home), "PYTHONPATH": str(tests)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(home.rglob("*")) == []
