"""More kinds of real agents, and runs: pairing, Holm, worst situations and predictions, from made-up rewards."""

import json
from pathlib import Path

import pytest

from lab import kinds, sections
from lab.predictions import CAME_TRUE, FAILURE, NO_SCORE, Expectation
from lab.results import SECOND_BASE, Results

pytestmark = pytest.mark.full  # torch


def write(folder: Path, name: str, content: object) -> Results:
    (folder / f"{name}.json").write_text(json.dumps(content))
    return Results(folder)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Two trainings: the sum solves all, core three quarters of all, RAM+ half; and core only in the first of SFT."""
    models = {"agents": "4", "task_arithmetic": "4", "core": "3", "core+": "3", "ram+": "2"}
    four = {name: dict.fromkeys(("sum", "fact"), digit * 20) for name, digit in models.items()}
    sft = {
        name: dict.fromkeys(("sum", "fact"), digit * 20) for name, digit in (("task_arithmetic", "1"), ("ram+", "2"))
    }
    content = {
        "prompts": 20,
        "base": {},
        "situations": {
            "four, bfloat16": {"5": four, "6": four},
            "SFT": {"5": sft | {"core": four["core"]}, "6": sft},
        },
    }
    write(tmp_path, "kinds", content)
    rows = dict.fromkeys((row for row, _ in sections._ROWS_OF_RUNS), "2" * 20)
    run = {"prompts": 20, "rows": rows | {"uniform 3": "3" * 20}, "first component": {"50": 0.9}}
    return write(tmp_path, "checkpoints", {f"{task} {seed}": run for task in ("sum", "fact") for seed in (5, 6)})


def test_models_are_compared_on_the_trainings_that_have_both(results: Results) -> None:
    comparisons = kinds.situations(results)
    assert comparisons["SFT"].models == ["task_arithmetic", "ram+"]
    assert comparisons["SFT"].having("core").by_training.keys() == {"5"}
    difference = comparisons["SFT"].difference("task_arithmetic", "core")
    assert difference is not None and difference.value == pytest.approx(-50)
    assert comparisons["SFT"].difference("swudi", "core") is None
    assert comparisons["four, bfloat16"].mean("core").value == pytest.approx(75)


def test_the_worst_situation_of_a_rule_is_that_where_it_is_farthest_below(results: Results) -> None:
    comparisons = kinds.situations(results)
    assert kinds.behind(comparisons, "task_arithmetic") == ("SFT", pytest.approx(-25))
    assert kinds.behind(comparisons, "core") == ("four, bfloat16", pytest.approx(-25))
    assert kinds.behind(comparisons, "swudi") is None


def test_p_values_are_adjusted_over_the_rules_of_a_situation(results: Results) -> None:
    differences = kinds.adjusted_differences(kinds.situations(results)["four, bfloat16"], "core")
    assert differences.keys() == {"task_arithmetic", "core+", "ram+"}
    assert differences["core+"][1] == 1.0 and differences["ram+"][1] >= differences["ram+"][0].p


def test_predictions_say_what_came_true_and_what_was_not_scored(results: Results) -> None:
    lines = {line[0]: line for line in (*kinds.of_kinds(results), *kinds.of_runs(results))}
    assert lines["R1"][3].startswith("+50.0") and lines["R1"][4] == FAILURE + kinds.SO_FAR
    assert lines["R5"][4] == CAME_TRUE + kinds.SO_FAR and lines["R13"][4] == NO_SCORE
    assert lines["R24"][4] == NO_SCORE  # not all situations were scored
    assert lines["S1"][3].startswith("+25.0") and lines["S11"][4] == CAME_TRUE + kinds.SO_FAR


def test_verdicts_are_final_once_all_trainings_are_scored(results: Results, tmp_path: Path) -> None:
    content = results.content("kinds")
    content["situations"]["four, bfloat16"]["7"] = content["situations"]["four, bfloat16"]["5"]
    lines = {line[0]: line for line in kinds.of_kinds(write(tmp_path, "kinds", content))}
    assert lines["R1"][4] == FAILURE and lines["R5"][4] == CAME_TRUE and lines["R17"][4].endswith(kinds.SO_FAR)


def predicted_in(experiment: str) -> dict[str, str]:
    """Ranges by the names of predictions."""
    text = (Path(kinds.__file__).parent / "experiments" / experiment).read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.partition("## Outcome")[0].splitlines()]
    return {cells[1].strip(): cells[-2].strip().replace("the interval", "interval") for cells in rows if len(cells) > 3}


def test_every_prediction_is_in_the_decision() -> None:
    ranges = predicted_in("035-real-agents.md")
    expectations = {one.name: one.expectation for one in (*kinds.RUNS, *kinds.KINDS)} | {
        name: e for name, _, e in kinds.WORST
    }
    for name, one in expectations.items():
        assert ranges[name] == one.range, name
    assert f"{kinds.COMPONENT.low:g} to {kinds.COMPONENT.high:g}" in ranges["S11"]
    ranges = predicted_in("040-a-second-base.md")
    of_second = {one.name: one.expectation for one in kinds.OF_SECOND_BASE}
    for name, one in (of_second | {name: e for name, _, _, e in kinds.BEST_OF_SECOND_BASE}).items():
        assert ranges[name] == one.range, name


def test_a_second_base_has_a_section_of_its_own(results: Results, tmp_path: Path) -> None:
    content = results.content("kinds")
    sft = content["situations"]["SFT"]["5"] | {"core+": content["situations"]["four, bfloat16"]["5"]["core+"]}
    second = write(tmp_path, SECOND_BASE, {"prompts": 20, "base": {}, "situations": {"SFT": {"5": sft}}})
    lines = {line[0]: line for line in kinds.of_second_base(second)}
    assert lines["G1"][3].startswith("+50.0") and lines["G1"][4] == FAILURE + kinds.SO_FAR
    assert lines["G3"][3] == "+0.0" and lines["G3"][4] == CAME_TRUE + kinds.SO_FAR
    assert lines["G4"][4] == lines["G6"][4] == NO_SCORE
    assert "### SFT of a second base" in sections.of_second_base(second)


def test_a_range_may_be_open_below() -> None:
    one = Expectation(float("-inf"), -10, -1)
    assert one.range == "below -10, interval below 0"
    assert one.verdict(-11) == CAME_TRUE and one.verdict(-9) == FAILURE


def test_sections_have_tables_and_failed_predictions(results: Results, tmp_path: Path) -> None:
    text = sections.of_kinds(results)
    assert "### Four, bfloat16" in text and "| `task_arithmetic` | 100.0 | 100.0 |" in text
    assert "Not scored in all of these trainings: `core`." in text and FAILURE in text
    assert "| uniform 3 | mean of the last three" in sections.of_runs(results)
    empty = Results(tmp_path / "nothing")
    for section in (sections.of_kinds, sections.of_second_base, sections.of_runs):
        assert "No results are kept yet" in section(empty)
