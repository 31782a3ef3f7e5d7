"""What decides the scores of a function, so that scores of another version of it are not mixed with its own."""

import time
from pathlib import Path

import pytest

from ramerge import EvaluationError
from ramerge.scoring.scores import Measure
from ramerge.searches import functions
from ramerge.searches.folder import left_by_stop
from ramerge.searches.functions import FunctionScorer
from ramerge.searches.trials import Trial, TrialFiles


@pytest.mark.parametrize("changed", ["scores.py", "helper.py", "package/inner.py"])
def test_modules_next_to_a_score_are_watched(changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/inner.py").write_text("ONE = 1\n")
    (tmp_path / "helper.py").write_text("from package.inner import ONE\n")
    (tmp_path / "other.py").write_text("")
    (tmp_path / "scores.py").write_text("from helper import ONE\ndef score(model): return {'one': ONE}\n")

    def about(folder: Path = tmp_path) -> dict:
        scorer = FunctionScorer(f"{folder / 'scores.py'}:score", tmp_path / "log", 60)
        scorer.close()
        return dict(scorer.about())

    first = about()
    (tmp_path / "other.py").write_text("what no score imports")
    assert about() == first
    monkeypatch.chdir(tmp_path)
    assert about(Path()) == first
    with (tmp_path / changed).open("a") as file:
        file.write("# another version\n")
    assert about() != first


def test_a_file_that_does_not_load_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as one that scores for longer than --score-timeout, which is another time."""
    monkeypatch.setattr(functions, "_SECONDS_TO_START", 2.5)
    (tmp_path / "s.py").write_text("import time\ntime.sleep(1000)\ndef score(model): return {'one': 1}\n")
    spec, events = f"{tmp_path / 's.py'}:score", list[float]()
    with pytest.raises(EvaluationError) as error:
        FunctionScorer(spec, tmp_path / "log", 0.1, lambda: events.append(time.monotonic()))
    (problem,) = error.value.problems
    assert problem.startswith(f'score="{spec}": {tmp_path}/s.py did not load within 2.5 seconds: ')
    assert f"what it printed in {tmp_path / 'log'}" in problem and "did not end" not in problem
    assert len(events) >= 3  # at once, and every second


def test_a_reward_function_is_no_score(tmp_path: Path) -> None:
    path = tmp_path / "r.py"
    path.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None): return 1.0\n")
    spec = f"{path}:compute_score"
    with pytest.raises(EvaluationError) as error:
        FunctionScorer(spec, tmp_path / "log", 60)
    assert str(error.value).startswith(f'score="{spec}": is a reward function: it takes a reply (solution_str)')
    assert f"`ramerge search --prompts NAME=FILE --reward {spec}` scores merges" in str(error.value)
    with pytest.raises(EvaluationError, match=r"score: is a reward function.* --reward FILE.py:reward_of_mine`"):
        functions.CallableScorer(reward_of_mine, tmp_path / "log")


def reward_of_mine(solution_str: str, **more: object) -> float:
    return float(bool(solution_str))


def test_only_the_first_load_is_told(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import os\ndef score(model): os._exit(3)\n")
    events = list[int]()
    scorer = FunctionScorer(f"{tmp_path / 's.py'}:score", tmp_path / "log", 60, lambda: events.append(1))
    first = len(events)
    for _ in range(2):
        with pytest.raises(functions.ScoreFailedError, match="exit code 3"):
            list(scorer.parts(tmp_path, "validation"))
    scorer.close()
    assert first and len(events) == first  # a later one would set the count of points back to 0


def test_what_a_stop_leaves(tmp_path: Path) -> None:
    assert left_by_stop(tmp_path / "absent") == "nothing was scored yet"
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials/0.yaml").write_text("")
    (tmp_path / "calibration").mkdir()
    assert left_by_stop(tmp_path) == "nothing was scored yet"
    kept = f"is kept in {tmp_path}, and the same command resumes from there"
    (tmp_path / "calibration/replies.json").write_text("{}")
    assert left_by_stop(tmp_path) == f"nothing was scored yet; what was gathered of the agents {kept}"
    TrialFiles(tmp_path / "trials").keep(Trial(1, {"method": "ram"}, "complete", {"a": Measure(1.0)}))
    assert left_by_stop(tmp_path) == f"what was scored {kept}"
