"""The table of situations: what it computes from scores, and that a run resumes and repeats itself."""

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lab import situations
from lab.situations import COMMON, KINDS, ROWS, SITUATIONS, Agent, Situation, difference, scores_of, table, text
from lab.tasks import EIGHT, taught
from lab.training import Schooling

pytestmark = pytest.mark.full  # torch


def made(score: dict[str, float]) -> dict[str, dict[str, dict[str, float]]]:
    """Three seeds in which every rule but those named scores 50 everywhere; later seeds score a little more."""
    return {
        str(seed): {one.name: {row.name: score.get(row.name, 50.0) + seed for row in ROWS} for one in SITUATIONS}
        for seed in range(3)
    }


def test_there_are_23_situations_of_2_to_8_agents() -> None:
    assert len({one.name for one in SITUATIONS}) == 23
    assert {len(one.agents) for one in SITUATIONS} == {2, 3, 4, 5, 8}
    assert {agent.kind for one in SITUATIONS for agent in one.agents} == KINDS.keys()
    assert all(len(how.rates) == len(EIGHT) for how in KINDS.values())
    assert len(COMMON) == 12


def test_the_best_of_the_common_rules_is_the_bar_in_each_situation() -> None:
    scores = made({"sum": 60.0, "core": 58.0})
    weak = SITUATIONS[7].name
    for by_situation in scores.values():
        by_situation[weak]["core"] -= 20
    found = table(scores)
    assert found["sum"].behind == pytest.approx(0.0)
    assert (found["core"].worst, found["core"].behind) == (weak, pytest.approx(-22.0))
    assert found["core"].mean == pytest.approx(58 + 1 - 20 / 23)
    assert difference(scores, "core", "sum").value == pytest.approx(-2 - 20 / 23)
    assert f"| core | {58 + 1 - 20 / 23:.1f} | -22.0 | {weak} |" in text(scores)


def test_the_teacher_slips_in_every_task() -> None:
    for task in EIGHT:
        drawn = [task.draw(random.Random(place)) for place in range(50)]
        answers = [taught(task, one, random.Random(one.prompt)) for one in drawn]
        assert 5 < sum(answer == one.answer for answer, one in zip(answers, drawn, strict=True)) < 48, task.name


def test_scores_resume_and_repeat_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = (
        Situation("three kinds", (Agent("rl", 0), Agent("lora", 5), Agent("sft", 7)), "float32"),
        Situation("another training", (Agent("rl", 0), Agent("rl", 0, 1))),
    )
    monkeypatch.setattr(situations, "SITUATIONS", few)
    monkeypatch.setattr(situations, "SCHOOLING", Schooling(steps=2, batch=2))
    monkeypatch.setattr(situations, "KINDS", {name: replace(how, steps=2) for name, how in KINDS.items()})
    first = scores_of(tmp_path / "one", 5)
    assert first == scores_of(tmp_path / "one", 5) == scores_of(tmp_path / "two", 5)
    assert all(
        rules.keys() == {"base", "agents", "density", "cosine", *(row.name for row in ROWS)} for rules in first.values()
    )
    assert {agent.name for agent in (tmp_path / "one/seed-5/agents").iterdir()} == {
        agent.name for one in few for agent in one.agents
    }


def test_other_seeds_go_to_a_file_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Here:
        """A pool of this process."""

        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> "Here":
            return self

        def __exit__(self, *_: object) -> None: ...

        map = staticmethod(map)

    monkeypatch.setattr(situations, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(situations, "scores_of", lambda _work, seed: made({})[str(seed % 3)])
    monkeypatch.setattr(sys, "argv", ["situations", "--seeds", "7", "8", "--out", str(tmp_path / "mine.json")])
    situations.main()
    assert json.loads((tmp_path / "mine.json").read_text()).keys() == {"7", "8"}
    assert "| core+ |" in capsys.readouterr().out
