"""Tied merges reply to the held-out prompts themselves: in memory, or by a server that loads one after another."""

from __future__ import annotations

import gc
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import ramerge
from ramerge.calibration.exchanges import Exchange, read_exchanges
from ramerge.scoring import serving
from ramerge.searches.results import SearchResult
from tests.commands import ramerge as command
from tests.messages import Messages
from tests.searches.prompts import AGENTS, SETTINGS
from tests.searches.prompts import prompt_files as prompt_files  # a fixture
from tests.server import install_server

pytestmark = [pytest.mark.needs("torch", "transformers"), pytest.mark.filterwarnings("ignore")]

_REWARD = "def compute_score(solution_str, **more):\n    return len(solution_str) % 2\n"
_VARY = {"parameters.r": [0.1, 0.1001, 0.1002]}
_SERVER = """
r = json.load(open(os.path.join(path, "ramerge.json")))["parameters"]["r"]
def answer(route, body):
    if route != "/v1/completions":  # of vLLM, for new weights: it is started again
        return 404, {}
    with open(journal, "a") as file:
        print(json.dumps([route, r, body]), file=file)
    if os.path.exists(dying) and len(open(journal).readlines()) > 4:
        sys.stderr.write("terminate called: CUDA out of memory\\n")
        os._exit(3)
    if set(body) != {"model", "prompt", "max_tokens", *fields}:
        return 422, {}
    return 200, {"choices": [{"text": "x" if r == 0.1001 else "xy", "finish_reason": "stop"}]}
"""
_FIELDS = {
    "transformers": ("generation_config",),
    "vllm": ("temperature", "repetition_penalty", "stop_token_ids"),
}


def install(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A program that stands in for a server: only the merge with r=0.1001 gives right replies."""
    paths = {name: str(Path(name).absolute()) for name in ("journal", "dying")}
    install_server(monkeypatch, Path("program").absolute(), _SERVER, fields=_FIELDS[kind], **paths)


def requests() -> list[tuple[str, float, dict[str, Any]]]:
    return [tuple(json.loads(line)) for line in Path("journal").read_text().splitlines()]


def search(prompts: Mapping[str, str], server: ramerge.ModelServer | None, **settings: Any) -> SearchResult:
    Path("r.py").write_text(_REWARD)
    calibration = replace(SETTINGS, reward="r.py:compute_score")
    return ramerge.search(
        {"base": "base", "agents": AGENTS, "prompts": prompts},
        "found",
        vary=_VARY,
        settings=ramerge.SearchSettings(html=False, calibration=calibration, server=server, **settings),
    )


def replies_to(number: int, agent: str) -> list[Exchange]:
    [path] = Path("found/replies").glob(f"{number}-*/{agent}.jsonl")
    return read_exchanges(path)


def test_half_right_replies_half_mass_decides(prompt_files: dict[str, str]) -> None:
    Path("r.py").write_text(_REWARD)
    words = [word for name, model in AGENTS.items() for word in ("--agent", f"{name}={model}")]
    words += [word for name, path in prompt_files.items() for word in ("--prompts", f"{name}={path}")]
    words += ["--prompt-count", "6", "--max-new", "12", "--vary", "parameters.r=0.1,0.1001,0.1002", "--no-html"]
    done = command("search", "--base", "base", *words, "--reward", "r.py:compute_score", "--generate", "found")
    assert done.returncode == 0, done.stderr
    points = json.loads(Path("found/search.json").read_text())["points"]
    replied = [point for point in points if point["right"]]
    assert len(replied) > 1 and "right: share of the candidate's own replies that are right" in done.stdout
    for point in replied:
        for name, share in point["right"].items():
            replies = replies_to(point["number"], name)
            assert len(replies) == 3 and all(one.reward == len(one.text) % 2 for one in replies)
            assert all(one.generated and one.held_out for one in replies)
            assert share == pytest.approx(fmean(one.reward or 0.0 for one in replies))
    best = max(replied, key=lambda point: fmean(point["right"].values()) + fmean(point["scores"].values()))
    result = json.loads(Path("found/search.json").read_text())
    assert result["best"] == best["number"]
    own, agents = best["right"], result["agents"]
    assert agents == {name: right / count for name, (right, count) in result["score"]["right"].items()}
    assert result["over_agents"]["value"] == pytest.approx(fmean(own.values()) - fmean(agents.values()))
    assert done.stdout.splitlines()[-3].startswith("right replies to the held-out prompts")
    assert done.stdout.splitlines()[-2].startswith("enough? undecided: the difference from its agents is ")
    times = {path: path.stat().st_mtime_ns for path in Path("found/replies").rglob("*.jsonl")}
    last = max(times)
    last.write_text("".join(last.read_text().splitlines(keepends=True)[:-1]) + '{"place": "to')
    again = command("search", "--base", "base", *words, "--reward", "r.py:compute_score", "--generate", "found")
    assert again.returncode == 0 and again.stdout == done.stdout
    assert [path for path, before in times.items() if path.stat().st_mtime_ns != before] == [last]
    shutil.move("found", "moved")
    moved = command("search", "--base", "base", *words, "--reward", "r.py:compute_score", "--batch", "3", "moved")
    assert moved.returncode == 0 and moved.stdout == done.stdout.replace("found/", "moved/")


@pytest.mark.parametrize("kind", ["transformers", "vllm"])
def test_a_server_replies_for_each_candidate(
    kind: str, prompt_files: dict[str, str], monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    install(monkeypatch, kind)
    result = search(prompt_files, ramerge.ModelServer(kind, timeout=60))
    assert result.winner.point["parameters.r"] == 0.1001
    replied = [point for point in result.points if point.right]
    right = {point.point["parameters.r"]: {*point.right.values()} for point in replied}
    assert len(replied) > 1 and right == {r: {float(r == 0.1001)} for r in right}
    lines = [line for path in prompt_files.values() for line in Path(path).read_text().splitlines()]
    texts = {json.loads(line)["prompt"] for line in lines}
    count = len(requests())
    assert count == 9 * len(replied) and {r for _, r, _ in requests()} == right.keys()
    for _, _, body in requests():
        assert body["max_tokens"] == 12
        if kind == "transformers":
            assert body["prompt"] in texts and json.loads(body["generation_config"])["do_sample"] is False
        else:
            assert isinstance(body["prompt"], list) and body["temperature"] == 0 and body["stop_token_ids"]
    assert [each.text for each in replies_to(2, "code")] == ["x"] * 3
    assert not Path("found/candidate").exists()
    again = search(prompt_files, ramerge.ModelServer(kind, timeout=70))
    assert again.points == result.points and len(requests()) == count
    alone = [search(prompt_files, None, generate=generate) for generate in (None, False)]
    assert [one.winner.right for one in alone] == [{}, {}] and len(requests()) == count
    messages.check(*(note for one in alone for note in one.notes if "found/replies" in note))


def test_what_a_server_has_replied_outlives_it(prompt_files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "transformers")
    Path("dying").touch()
    server = ramerge.ModelServer("transformers", timeout=60)
    with pytest.raises(ramerge.EndpointError) as error:
        search(prompt_files, server)
    [problem] = error.value.problems
    assert "found/server.log: the server ended with exit code 3: terminate called: CUDA out of memory" in problem
    assert "kept in found, and the same command resumes from there (generate=False chooses by mass alone)" in problem
    assert sum(len(read_exchanges(path)) for path in Path("found/replies").rglob("*.jsonl")) == 4
    times = {path: path.stat().st_mtime_ns for path in Path("found/trials").iterdir()}
    Path("dying").unlink()
    result = search(prompt_files, server)
    assert result.winner.point["parameters.r"] == 0.1001
    assert len(requests()) == 1 + 9 * sum(bool(point.right) for point in result.points)
    assert {path: path.stat().st_mtime_ns for path in Path("found/trials").iterdir()} == times


def test_a_server_that_does_not_start_costs_no_score(
    prompt_files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "vllm")
    Path("program").write_text(f"#!{sys.executable}\nraise SystemExit('no GPU')\n")
    with pytest.raises(ramerge.EndpointError, match=r"no GPU[\s\S]*the same command resumes"):
        search(prompt_files, ramerge.ModelServer("vllm", timeout=60))
    assert not search(prompt_files, None, generate=False).winner.right


def test_a_best_merge_without_ties_is_compared_with_its_agents(prompt_files: dict[str, str]) -> None:
    Path("r.py").write_text(_REWARD)
    result = ramerge.search(
        {"base": "base", "agents": AGENTS, "prompts": prompt_files},
        "found",
        vary={"parameters.r": [0.1]},
        settings=ramerge.SearchSettings(
            html=False, calibration=replace(SETTINGS, reward="r.py:compute_score"), generate=True
        ),
    )
    assert set(result.winner.right) == set(result.agents) and result.over_agents is not None


NEEDED = ("accelerate", "fastapi", "uvicorn", "openai")


@pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason="transformers serve needs the extra eval-serve")
def test_a_real_server_replies_as_the_model_in_memory(prompt_files: dict[str, str]) -> None:
    words = ["--device", "cpu", "--dtype", "float32"]
    replies: list[dict[tuple[str, str], list[tuple[str, tuple[int, ...]]]]] = []
    folders: set[Path] = set()
    for server in (None, ramerge.ModelServer("transformers", words, timeout=300)):
        search(prompt_files, server, generate=True)
        own = {*Path("found/replies").iterdir()} - folders
        folders |= own
        replies.append(
            {
                (path.parent.name.partition("-")[0], path.name): sorted(
                    (each.text, each.ids) for each in read_exchanges(path)
                )
                for folder in own
                for path in folder.iterdir()
            }
        )
    assert replies[0] == replies[1] and len(replies[0]) >= 6


def test_the_model_leaves_memory_before_a_server_starts(
    prompt_files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "transformers")
    models: list[object] = []
    load = serving.KeptServer.load

    def counting(self: serving.KeptServer, model: Path) -> serving.RunningServer:
        models.extend(each for each in gc.get_objects() if type(each).__name__ == "LiveModel")
        return load(self, model)

    monkeypatch.setattr(serving.KeptServer, "load", counting)
    search(prompt_files, ramerge.ModelServer("transformers", timeout=60))
    assert models == [] and requests()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--score-agents"], "--score-agents: needs --score"),
        (["--generate"], "--generate: needs a function that says which of the merges' own replies are right: --rew"),
        (
            ["--serve", "transformers"],
            "--serve: needs a function that says which of the merges' own",
        ),
        (["--reward", "r.py:compute_score", "--serve", "vllm", "--no-generate"], "--serve and --no-generate: one of"),
        (
            ["--reward", "r.py:compute_score", "--generate", "--objective", "code", "--objective", "tool"],
            "--generate: needs a single --objective",
        ),
        (
            ["--score", "r.py:compute_score", "--generate"],
            "--generate: lets merges reply to prompts, but --score",
        ),
        (["--reward", "r.py:compute_score", "--serve", "vllm"], "there is no program 'vllm'"),
        (["--reward", "r.py:compute_score", "--endpoint", "http://localhost:8000/v1"], "--endpoint: serves one model"),
    ],
)
def test_what_cannot_reply_is_refused_before_agents_are_asked(
    words: list[str], problem: str, prompt_files: dict[str, str]
) -> None:
    Path("r.py").write_text(_REWARD)
    models = [word for name, model in AGENTS.items() for word in ("--agent", f"{name}={model}")]
    models += [word for name, path in prompt_files.items() for word in ("--prompts", f"{name}={path}")]
    done = command("search", "--base", "base", *models, *words, "found")
    assert done.returncode == 2 and problem in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not Path("found").exists()


def test_several_objectives_have_the_table_of_mass(prompt_files: dict[str, str]) -> None:
    models = [word for name, model in AGENTS.items() for word in ("--agent", f"{name}={model}")]
    models += [word for name, path in prompt_files.items() for word in ("--prompts", f"{name}={path}")]
    models += ["--prompt-count", "6", "--max-new", "12", "--no-html", "--vary", "method=ram,linear"]
    done = command("search", "--base", "base", *models, "--objective", "mean", "--objective", "tool", "found")
    assert done.returncode == 0, done.stderr
    mass, nll, head, *rows = done.stdout.splitlines()
    assert mass.startswith("mass: how likely") and nll.startswith("NLL: ")
    assert head.split() == ["candidate", "mass", *AGENTS, "NLL", "front"]
    result = json.loads(Path("found/search.json").read_text())
    on_front = [row.split()[0] for row in rows[:2] if row.split()[-1] in ("yes", "best")]
    assert (
        on_front == [result["points"][number - 1]["point"]["method"] for number in result["front"]]
        or len(on_front) == 2
    )
    assert "on the Pareto front" in done.stdout
