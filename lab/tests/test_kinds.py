"""More kinds of real agents, and runs: pairing, Holm, worst situations and predictions, from made-up rewards."""

import json
from pathlib import Path

import pytest

from lab import kinds, sections
from lab.predictions import CAME_TRUE, FAILED, NOT_SCORED, Expected
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
    known = kinds.situations(results)
    assert known["SFT"].models == ["task_arithmetic", "ram+"]
    assert known["SFT"].having("core").by_training.keys() == {"5"}
    found = known["SFT"].difference("task_arithmetic", "core")
    assert found is not None and found.value == pytest.approx(-50)
    assert known["SFT"].difference("swudi", "core") is None
    assert known["four, bfloat16"].mean("core").value == pytest.approx(75)


def test_the_worst_situation_of_a_rule_is_that_where_it_is_farthest_below(results: Results) -> None:
    known = kinds.situations(results)
    assert kinds.behind(known, "task_arithmetic") == ("SFT", pytest.approx(-25))
    assert kinds.behind(known, "core") == ("four, bfloat16", pytest.approx(-25))
    assert kinds.behind(known, "swudi") is None


def test_p_values_are_adjusted_over_the_rules_of_a_situation(results: Results) -> None:
    found = kinds.adjusted(kinds.situations(results)["four, bfloat16"], "core")
    assert found.keys() == {"task_arithmetic", "core+", "ram+"}
    assert found["core+"][1] == 1.0 and found["ram+"][1] >= found["ram+"][0].p


def test_predictions_say_what_came_true_and_what_was_not_scored(results: Results) -> None:
    lines = {line[0]: line for line in (*kinds.of_kinds(results), *kinds.of_runs(results))}
    assert lines["R1"][3].startswith("+50.0") and lines["R1"][4] == FAILED + kinds.SO_FAR
    assert lines["R5"][4] == CAME_TRUE + kinds.SO_FAR and lines["R13"][4] == NOT_SCORED
    assert lines["R24"][4] == NOT_SCORED  # not all situations were scored
    assert lines["S1"][3].startswith("+25.0") and lines["S11"][4] == CAME_TRUE + kinds.SO_FAR


def test_verdicts_are_final_once_all_trainings_are_scored(results: Results, tmp_path: Path) -> None:
    kept = results.kept("kinds")
    kept["situations"]["four, bfloat16"]["7"] = kept["situations"]["four, bfloat16"]["5"]
    lines = {line[0]: line for line in kinds.of_kinds(write(tmp_path, "kinds", kept))}
    assert lines["R1"][4] == FAILED and lines["R5"][4] == CAME_TRUE and lines["R17"][4].endswith(kinds.SO_FAR)


def predicted_in(experiment: str) -> dict[str, str]:
    """Ranges by the names of predictions."""
    text = (Path(kinds.__file__).parent / "experiments" / experiment).read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.partition("## Outcome")[0].splitlines()]
    return {cells[1].strip(): cells[-2].strip().replace("the interval", "interval") for cells in rows if len(cells) > 3}


def test_every_prediction_is_in_the_decision() -> None:
    said = predicted_in("035-real-agents.md")
    expected = {one.name: one.expected for one in (*kinds.RUNS, *kinds.KINDS)} | {name: e for name, _, e in kinds.WORST}
    for name, one in expected.items():
        assert said[name] == one.range, name
    assert f"{kinds.COMPONENT.low:g} to {kinds.COMPONENT.high:g}" in said["S11"]
    said = predicted_in("040-a-second-base.md")
    of_second = {one.name: one.expected for one in kinds.OF_SECOND_BASE}
    for name, one in (of_second | {name: e for name, _, _, e in kinds.BEST_OF_SECOND_BASE}).items():
        assert said[name] == one.range, name


def test_a_second_base_has_a_section_of_its_own(results: Results, tmp_path: Path) -> None:
    kept = results.kept("kinds")
    sft = kept["situations"]["SFT"]["5"] | {"core+": kept["situations"]["four, bfloat16"]["5"]["core+"]}
    second = write(tmp_path, SECOND_BASE, {"prompts": 20, "base": {}, "situations": {"SFT": {"5": sft}}})
    lines = {line[0]: line for line in kinds.of_second_base(second)}
    assert lines["G1"][3].startswith("+50.0") and lines["G1"][4] == FAILED + kinds.SO_FAR
    assert lines["G3"][3] == "+0.0" and lines["G3"][4] == CAME_TRUE + kinds.SO_FAR
    assert lines["G4"][4] == lines["G6"][4] == NOT_SCORED
    assert "### SFT of a second base" in sections.of_second_base(second)


def test_a_range_may_be_open_below() -> None:
    one = Expected(float("-inf"), -10, -1)
    assert one.range == "below -10, interval below 0"
    assert one.verdict(-11) == CAME_TRUE and one.verdict(-9) == FAILED


def test_sections_have_tables_and_failed_predictions(results: Results, tmp_path: Path) -> None:
    told = sections.of_kinds(results)
    assert "### Four, bfloat16" in told and "| `task_arithmetic` | 100.0 | 100.0 |" in told
    assert "Not scored in all of these trainings: `core`." in told and FAILED in told
    assert "| uniform 3 | mean of the last three" in sections.of_runs(results)
    empty = Results(tmp_path / "nothing")
    for section in (sections.of_kinds, sections.of_second_base, sections.of_runs):
        assert "No results are kept yet" in section(empty)
