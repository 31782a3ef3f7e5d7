"""Text next to the page's tables: verdicts as sentences, kinds of prompts, and the real agents."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab import details, page, predictions, published, smollm, summary, tables
from lab.claims import RULES, claims
from lab.results import Results
from lab.rows import ALL, Row
from lab.settings import MAIN
from lab.statistics import Estimate, nemenyi

pytestmark = pytest.mark.full  # torch


def write_results(folder: Path, seed: int, **models: str) -> None:
    """Results of a training: a candidate that is better than RAM+ in bfloat16, on every second prompt, and the same in
    float32."""
    rewards = dict.fromkeys(("base", "sum", "fact"), "0" * 40)
    rewards |= {"ram+, bfloat16": "20" * 20, "ram+ shared=agree_max, bfloat16": "40" * 20}
    rewards["task_arithmetic, bfloat16"] = "4" * 40
    rewards |= {name.replace("bfloat16", "float32"): "4" * 40 for name in rewards if "," in name}
    content = {
        "prompts": 40,
        "prompt seed": 0,
        "seed": seed,
        "agents": {"sum": {}, "fact": {}},
        "models": {name: {"sum": digits, "fact": digits} for name, digits in (rewards | models).items()},
    }
    (folder / f"real-{seed}.json").write_text(json.dumps(content))


@pytest.fixture
def real(tmp_path: Path) -> smollm.Real:
    write_results(tmp_path, 1)
    agents = smollm.read(Results(tmp_path))
    assert agents is not None
    return agents


@pytest.fixture(scope="session")
def findings() -> str:
    """The page on tiny agents as it is kept; `test_run.py` renders it again, which takes seconds, and compares."""
    return (page.DOCS / "findings-tiny-agents.md").read_text(encoding="utf-8")


def test_trainings_of_the_real_agents_count_alike(tmp_path: Path, real: smollm.Real) -> None:
    write_results(tmp_path, 2, **{"ram+ shared=agree_max, bfloat16": "20" * 20, "of this training": "1" * 40})
    both = smollm.read(Results(tmp_path))
    assert both is not None and both.seeds == (1, 2) and both.trainings == "twice"
    names = ("ram+ shared=agree_max, bfloat16", "ram+, bfloat16")
    assert both.difference(*names).value == pytest.approx(12.5)
    # one training says yes and the other no difference
    assert both.difference(*names).low < real.difference(*names).low - 5
    assert both.seeds_by_model["of this training"] == (2,)
    assert "trained twice (seeds 1, 2)" in page._how_often(both) and "one training" in page._how_often(real)


def test_merges_are_compared_on_the_trainings_that_have_both(tmp_path: Path, real: smollm.Real) -> None:
    # RAM+ has 25 % on the first training and 100 % on the second, where TIES has 75 %
    write_results(tmp_path, 2, **{"ram+, bfloat16": "4" * 40, "ties, bfloat16": "42" * 20})
    both = smollm.read(Results(tmp_path))
    assert both is not None and both.having("ties, bfloat16").seeds == (2,)
    assert both.mean("ram+, bfloat16").value == pytest.approx(62.5)
    assert both.difference("ties, bfloat16", "ram+, bfloat16").value == pytest.approx(-25)
    table = tables.of_real_merges(both, "bfloat16", both.merges["bfloat16"])
    assert "| `ties` | 75.0 | 75.0 | 75.0" in table and "| 2 |" in table and "| 1, 2 |" in table
    text = page._like_for_like(both, "bfloat16", both.merges["bfloat16"])
    assert "training of seed 2 only" in " ".join(text.split()) and "| `ram+` | 100.0 |" in text
    assert page._like_for_like(real, "bfloat16", real.merges["bfloat16"]) == ""


def test_sentences_are_about_trainings_that_have_all_they_name(tmp_path: Path, real: smollm.Real) -> None:
    write_results(tmp_path, 2)
    content = json.loads((tmp_path / "real-2.json").read_text())
    del content["models"]["task_arithmetic, float32"]
    (tmp_path / "real-2.json").write_text(json.dumps(content))
    both = smollm.read(Results(tmp_path))
    assert both is not None and both.seeds == (1, 2) and both.whole.seeds == (1,)
    assert summary.on_real(both) == summary.on_real(real)


def test_predictions_are_judged_on_trainings_that_came_later(tmp_path: Path, real: smollm.Real) -> None:
    one = predictions.Prediction("task_arithmetic", "ram+", "bfloat16", predictions.Expectation(5, 9))
    assert one.estimate(real) is None and one.expectation.judge(None) == predictions.NO_SCORE
    write_results(tmp_path, 4)
    both = smollm.read(Results(tmp_path))
    assert both is not None
    estimate = one.estimate(both)
    assert (
        estimate is not None
        and estimate.value == pytest.approx(75)
        and one.expectation.judge(estimate) == predictions.FAILURE
    )
    assert replace(one.expectation, high=80).judge(estimate) == predictions.CAME_TRUE
    assert replace(one.expectation, high=80, apart=-1).judge(estimate) == predictions.FAILURE


def test_every_prediction_is_in_the_decision() -> None:
    page_text = (Path(page.__file__).parent / "experiments" / "010-predictions-for-ties-and-core.md").read_text(
        encoding="utf-8"
    )
    for one in predictions.PREDICTIONS:
        assert f"| {one.expectation.range.partition(',')[0]}" in page_text, one


def test_trainings_of_fewer_tasks_are_left_out(tmp_path: Path, real: smollm.Real) -> None:
    content = json.loads((tmp_path / "real-1.json").read_text())
    fewer = content | {"seed": 2, "agents": {"sum": {}}}
    (tmp_path / "real-2.json").write_text(json.dumps(fewer))
    agents = smollm.read(Results(tmp_path))
    assert agents is not None and agents.seeds == (1,)


def test_the_real_agents_are_compared_prompt_by_prompt(real: smollm.Real) -> None:
    assert real.merges == {
        dtype: ["ram+", "ram+ shared=agree_max", "task_arithmetic"] for dtype in ("bfloat16", "float32")
    }
    apart = real.difference("ram+ shared=agree_max, bfloat16", "ram+, bfloat16")
    assert apart.value == pytest.approx(25) and 15 < apart.low < 25 < apart.high < 35
    assert real.mean("ram+ shared=agree_max, bfloat16").value == pytest.approx(50)
    assert "minus the sum: in bfloat16 -50.0 points" in summary.on_real(real, smollm.SUM, "the sum")
    text = summary.on_real(real)
    assert text.count("(better)") == 1 and text.endswith(
        "in float32 +0.0 points, from +0.0 to +0.0 (no clear difference)"
    )
    assert "in one precision only" in summary.confirmation(real)


def test_the_page_shows_the_real_agents(real: smollm.Real) -> None:
    assert "| `ram+ shared=agree_max` | 50.0 | 50.0 |" in tables.of_real_merges(
        real, "bfloat16", real.merges["bfloat16"]
    )
    assert "| agent fact | 0.0 | 0.0 |" in tables.of_real_models(real)


def test_nothing_is_said_of_real_agents_without_results(tmp_path: Path) -> None:
    assert smollm.read(Results(tmp_path)) is None


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.1, 3, "x is better than y (+1.6"),
        (-3, -0.1, "x is worse than y (-1.6"),
        (-0.9, 0.9, "there is no clear difference between x and y (+0.0"),
        (-0.5, 2, "whether x is better than y is not decided by this data (+0.8"),
    ],
)
def test_words_follow_the_rule_for_differences(low: float, high: float, words: str) -> None:
    assert summary.comparison_text("x", "y", Estimate((low + high) / 2, low, high, 0.5)).startswith(words)


def test_merges_that_were_not_scored_are_named_until_they_are(real: smollm.Real) -> None:
    assert {"ties", "ties density=0.1"} <= set(smollm.asked_merges())
    assert "`ties density=0.1`" in page._unscored(real)
    names = [f"{name}, {dtype}" for name in smollm.asked_merges() for dtype in real.merges]
    rewards = real.rewards | dict.fromkeys(names, real.rewards["base"])
    assert page._unscored(replace(real, rewards=rewards, seeds_by_model=dict.fromkeys(rewards, (1,)))) == ""


def test_published_tables_are_counted() -> None:
    assert published.ahead_of_sum("RAM", "RAM+") == (2, 5)
    assert published.ahead_of_sum("average") == (0, 1)


def test_the_summary_is_short(lab_results: Results) -> None:
    assert 7 <= len(list(summary.lines(lab_results))) <= 10


def test_the_answer_comes_first_and_the_rules_last(findings: str) -> None:
    headings = [line for line in findings.splitlines() if line.startswith("## ")]
    assert headings[0] == "## In short" and headings[-1] == "## Appendix: the rules of the verdicts"


def test_the_best_method_tells_tuned_from_default_parameters(lab_results: Results) -> None:
    main, line = (
        lab_results.setting(MAIN),
        next(line for line in summary.lines(lab_results) if line.startswith("**The best method")),
    )
    assert main is not None
    best, default = ({name: one[name].mean for name in one} for one in (main.best, main.default))
    top = max((row.name for row in ALL if row.name in best), key=lambda name: best[name])
    assert f"tuned on validation prompts `{top}` has the highest mean" in line
    assert f"`ram+` {best['ram+']:.1f} %" in line and f"`{top}` has {default[top]:.1f} %" in line
    # the p-value of the text is that of the table
    (row,) = (row for row in tables.of_methods(main).splitlines() if row.startswith(f"| `{top}` |"))
    assert f"p = {row.split('|')[7].strip().strip('*')} " in line


def test_links_to_headings_name_the_page_of_the_heading() -> None:
    text = page._with_links(
        "[a](#here) [b](#all-methods) [c](x.md#here)", "one.md", {"here": "one.md", "all-methods": "two.md"}
    )
    assert text == "[a](#here) [b](two.md#all-methods) [c](x.md#here)"


def test_a_method_without_results_is_named_as_not_measured(
    lab_results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (page, summary, tables):
        monkeypatch.setattr(module, "ALL", (*ALL, Row("unmeasured", "linear")))
    text = page.pages(lab_results)["findings-tiny-agents.md"]
    (line,) = (line for line in text.splitlines() if line.startswith("Not measured yet: "))
    assert "`unmeasured`" in line and text.count("`unmeasured`") == 1


def test_one_figure_has_one_value(lab_results: Results) -> None:
    main = lab_results.setting(MAIN)
    assert main is not None
    (claim,) = (one for one in claims(lab_results) if "no agent was trained on" in one.text)
    (row,) = (row for row in tables.of_others(main).splitlines() if row.startswith("| `ram+` |"))
    assert f": {row.split('|')[5].strip()} points" in claim.evidence


def test_pages_say_the_same_of_ram_plus_against_ram(lab_results: Results) -> None:
    main, real = lab_results.setting(MAIN), smollm.read(lab_results)
    assert main is not None and real is not None
    sentences = (summary.plus_over_ram(main), summary.equal_on_real(real))
    for names in (
        ("findings-tiny-agents.md", "findings-real-agents.md"),
        ("methods/ram-plus.md",),
        ("methods/index.md",),
    ):
        text = " ".join(" ".join((page.DOCS / name).read_text(encoding="utf-8").split()) for name in names)
        assert all(one in text for one in sentences), (names, sentences)


def test_pages_say_the_same_of_merges_of_the_real_agents(lab_results: Results) -> None:
    real = smollm.read(lab_results)
    assert real is not None
    root = page.DOCS.parent
    for name in ("docs/methods/index.md", "docs/methods/task-arithmetic.md"):
        text = " ".join((root / name).read_text(encoding="utf-8").split())
        assert summary.scores_of_real(real) in text, name


def test_shared_rules_are_stated_once(lab_results: Results, findings: str) -> None:
    assert {one.rule for one in claims(lab_results)} >= RULES.keys()
    flat = " ".join(findings.split())
    assert all(flat.count(words) == 1 for words in RULES.values())


def test_the_base_is_better_after_the_characters_that_its_teacher_knew(lab_results: Results) -> None:
    # prompts are drawn again to know their kinds: in another order, kinds would not differ
    main = lab_results.setting(MAIN)
    assert main is not None
    for place, task in enumerate(main.tasks):
        early, late, *_, whole = details.by_kind(lab_results, task, main.models["base"], place, main.seeds)
        assert early > whole + 10 and late < whole - 10, task
        assert whole == pytest.approx(main.models["base"].by_task[:, place].mean())


def test_kinds_part_the_prompts_of_a_task_twice() -> None:
    for task in details.KINDS:
        kinds = details._kinds(task, 5, 40, 0)
        assert (np.array([kinds[0] ^ kinds[1], kinds[2] ^ kinds[3]])).all()


def test_lines_break_outside_of_code(findings: str) -> None:
    lines = [line for line in findings.splitlines() if not line.startswith(("|", "!", "```"))]
    assert all(len(line) <= 120 and line.count("`") % 2 == 0 for line in lines)


@pytest.mark.parametrize(
    ("models", "seeds", "possible"), [(26, 2, False), (26, 6, True), (8, 2, False), (26, 10, True)]
)
def test_a_critical_difference_beyond_all_ranks_is_left_out(models: int, seeds: int, possible: bool) -> None:
    assert (nemenyi(models, seeds) is not None) == possible
