"""The agents that ship with the package: they merge, load in transformers, and do what the demo says."""

import json
import re
import shlex
import shutil
from pathlib import Path
from statistics import fmean

import pytest
from click.testing import CliRunner

import ramerge
from ramerge.cli.main import cli
from ramerge.core.foundation import extras
from ramerge.core.foundation.extras import install_command
from ramerge.demo import run as demo
from ramerge.demo.tasks import DEMO_AGENTS, TASKS, prompts, reward
from ramerge.scoring.functions import load
from tests.messages import Messages

AGENTS = {agent.name: str(demo.AGENTS / agent.folder) for agent in DEMO_AGENTS}


def merged(folder: Path, method: str) -> Path:
    source = {"method": method, "base": str(demo.AGENTS / "base"), "agents": AGENTS}
    ramerge.merge(source, folder / method)
    return folder / method


def test_the_agents_are_small_and_moved_different_places() -> None:
    size = sum(path.stat().st_size for path in demo.AGENTS.rglob("*") if path.is_file())
    assert size <= 4_000_000
    plan = ramerge.plan({"method": "ram+", "base": str(demo.AGENTS / "base"), "agents": AGENTS})
    assert plan.problems == ()


def test_test_prompts_are_not_training_prompts() -> None:
    for task in TASKS:
        held_out = {example.prompt for example in prompts(task, "test", 200, seed=1)}
        seen = {example.prompt for example in prompts(task, "train", 2000, seed=2)}
        assert not held_out & seen
        example = prompts(task, "test", 1, seed=1)[0]
        assert reward(example, example.answer) == 1.0
        assert reward(example, example.answer + "x") == 0.0


@pytest.mark.needs("torch", "transformers")
def test_the_merge_loads_in_transformers_and_generates(tmp_path: Path) -> None:
    import transformers

    folder = merged(tmp_path, "ram+")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert str(model.dtype) == "torch.bfloat16"
    ids = tokenizer("#5281704=", return_tensors="pt")["input_ids"]
    out = model.generate(ids, max_new_tokens=8, do_sample=False)
    assert tokenizer.decode(out[0][ids.shape[1] :], skip_special_tokens=True).replace(" ", "") == "0124578"


@pytest.mark.needs("torch", "transformers")
def test_the_merge_keeps_what_each_agent_learned(tmp_path: Path) -> None:
    from ramerge.demo.scoring import rewards

    before, *_ = rewards(demo.AGENTS / "base")
    after, *_ = rewards(merged(tmp_path, "ram+"))
    for task in TASKS:
        assert fmean(after[task.name]) > fmean(before[task.name]) + 0.2
        assert fmean(after[task.name]) > 0.85


def test_demo_prints_statistics_and_keeps_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    demo.run(tmp_path / "kept", lines.append)
    text = "\n".join(lines)
    for words in ("density", "lambda", *AGENTS, install_command("torch")):
        assert words in text
    assert (tmp_path / "kept/ram+/model.safetensors").is_file()


def test_demo_models_are_copied_without_replacing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["demo", "--models", "here"])
    assert result.exit_code == 0, result.output
    assert {path.name for path in Path("here").iterdir()} == {
        *("base", "coder", "tool", "memory"),
        *("code.jsonl", "tool.jsonl", "memory.jsonl", "demo_reward.py"),
    }
    compute_score = load("here/demo_reward.py:compute_score")[1]
    for line in Path("here/code.jsonl").read_text().splitlines():
        prompt = json.loads(line)
        right = str(sum(map(int, prompt["prompt"].removesuffix("=").split("+"))))
        assert prompt["ground_truth"] == right
        assert [compute_score("", said, right) for said in (f" {right}\n", f"{right}0")] == [1.0, 0.0]
    for name in ("base", "coder", "tool", "memory"):
        copied, own = Path("here", name), demo.AGENTS / name
        assert {path.name: path.read_bytes() for path in copied.iterdir()} == {
            path.name: path.read_bytes() for path in own.iterdir()
        }
    _, change, merge = re.split("next: cd | && ", result.output.strip())
    monkeypatch.chdir(change)
    assert CliRunner().invoke(cli, shlex.split(merge)[1:]).exit_code == 0  # what is printed can be typed

    Path("tool/config.json").write_text("changed")
    shutil.rmtree("base")
    with messages.raises(ramerge.PlanError):
        demo.copy_models(Path(), print)
    assert Path("tool/config.json").read_text() == "changed" and not Path("base").exists()


def test_copying_and_merging_are_two_things(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["demo", "--models", str(tmp_path / "a"), "--out", str(tmp_path / "b")])
    assert result.exit_code == 2 and "leave out --out" in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.needs("torch", "transformers")
def test_the_demo_says_how_sure_its_scores_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from ramerge.demo import scoring

    lines: list[str] = []
    monkeypatch.setattr(scoring, "rewards", lambda _folder: iter([{task.name: [0.0, 1.0] for task in TASKS}]))
    agents = [f"agent {agent.name}" for agent in demo.DEMO_AGENTS]
    demo._print_shares(dict.fromkeys(["base", *agents], demo.AGENTS / "base"), lines.append)
    assert any(line.startswith("own task") and "50.0%" in line for line in lines)
    printed = "200 prompts a task; one standard error is up to 3.5 points"
    assert scoring.EXAMPLES == 200 and printed in lines
    assert f"\n{printed}\n" in (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
