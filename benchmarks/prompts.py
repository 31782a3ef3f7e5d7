"""Prompts of each agent: recording inputs, `regmean` with them, and candidates scored by agreement.

It also runs `python -m benchmarks.prompts passes MODEL... PROMPTS` and `... candidate RECIPE CALIBRATION`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import ramerge
from benchmarks import machine
from benchmarks.checkpoints import Family, family
from benchmarks.report import Bar, Options, RawResults, Section, bars, table
from benchmarks.timing import ratios, run, script, seconds, spread, tell
from ramerge.calibration.agreement import likelihoods, replies_of
from ramerge.calibration.live_base import LiveBase

PROMPTS, TOKENS = 32, 100
"""Of each agent, and of a prompt and of its reply. Each letter is a token."""
_LABELS = {
    "passes": "a forward pass of each agent for each of its prompts, by transformers",
    "calibrate": "`ramerge calibrate`",
    "regmean": "`ramerge merge`, `regmean`, given the inputs",
    "sum": "`ramerge merge`, `task_arithmetic`",
    "candidate": "loading the base, then a candidate of a search: merged, and scored on all replies",
}


def measure(options: Options) -> dict[str, Any]:
    """Bare forward passes, `calibrate`, `merge` by `regmean` and by the sum, and candidates, in turns."""
    files = family(options.size, options.work)
    prompts = _prompts(options.work)
    place = options.work / "calibration"
    words = [f for name in files.agents for f in ("--prompts", f"{name}={prompts}")]
    models = [f for name, path in files.agents.items() for f in ("--agent", f"{name}={path}")]
    recipe = _recipe(files, place, options.work)
    merge_folder = options.work / "merged"
    commands = {
        "passes": [
            sys.executable,
            "-m",
            "benchmarks.prompts",
            "passes",
            *map(str, files.agents.values()),
            str(prompts),
        ],
        "calibrate": [
            script("ramerge"),
            "calibrate",
            "--quiet",
            "--base",
            str(files.base),
            *models,
            *words,
            str(place),
        ],
        "regmean": [script("ramerge"), "merge", "--quiet", str(recipe), str(merge_folder)],
        "sum": [script("ramerge"), "merge", "--quiet", "--method", "task_arithmetic", str(recipe), str(merge_folder)],
        "candidate": [sys.executable, "-m", "benchmarks.prompts", "candidate", str(recipe), str(place)],
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for turn in range(options.runs):
        for name, command in commands.items():
            machine.remove(merge_folder)
            if name == "calibrate":
                machine.remove(place)
            result = run(command, watch=True, settings={"HF_HUB_OFFLINE": "1"})
            runs[name].append(result.to_dict() | (json.loads(result.output) if name == "candidate" else {}))
            tell(f"prompts {options.size}: run {turn + 1}, {name}: {result.seconds:.2f} s")
    bytes_of_inputs = sum(path.stat().st_size for path in place.glob("*/inputs.safetensors")) / len(files.agents)
    return {"size": options.size, "agents": len(files.agents), "inputs": bytes_of_inputs, "taken": runs}


def _prompts(work: Path) -> Path:
    """Prompts with replies, of the two letters that the tokenizer of the checkpoints knows."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(PROMPTS):
        prompt, reply = ("".join(rng.choice(["a", "b"], TOKENS)) for _ in range(2))
        lines.append(json.dumps({"prompt": prompt, "reply": reply}))
    path = work / "prompts.jsonl"
    path.write_text("\n".join(lines))
    return path.absolute()


def _recipe(files: Family, place: Path, work: Path) -> Path:
    agents = {
        name: {"model": str(path.absolute()), "inputs": str((place / name).absolute())}
        for name, path in files.agents.items()
    }
    recipe = {"method": "regmean", "base": str(files.base.absolute()), "agents": agents}
    path = work / "prompts.json"
    path.write_text(json.dumps(recipe))
    return path


def _pass(models: list[str], prompts: str) -> None:
    """One forward pass for each prompt and its reply, by each model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for folder in models:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for line in Path(prompts).read_text().splitlines():
            ids = tokenizer("".join(json.loads(line).values()), return_tensors="pt").input_ids
            with torch.inference_mode():
                model(ids, logits_to_keep=1)


def _candidate(recipe: str, calibration: str) -> None:
    """Print the seconds of a candidate, those of the same merge alone, and of the same forward passes alone."""
    values = {**json.loads(Path(recipe).read_text()), "method": "task_arithmetic"}
    values["agents"] = {name: agent["model"] for name, agent in values["agents"].items()}
    replies = replies_of(calibration)
    durations: dict[str, float] = {}
    models = ramerge.Recipe(method="uniform", base=values["base"], agents=values["agents"])
    with LiveBase(models, ramerge.CalibrationSettings(device="cpu"), ramerge.Options()) as live:
        live.put(ramerge.plan(values))  # what is read is cached now, and kernels are loaded

        def score() -> None:
            live.put(ramerge.plan(values))
            list(likelihoods(live.live, replies))

        def merge() -> None:
            with ramerge.plan(values).tensors() as tensors:
                for _ in tensors:
                    pass

        def forward() -> None:
            for exchanges in replies.exchanges.values():
                for each in exchanges:
                    live.live.run_layers(each.ids)

        for name, call in (("candidate", score), ("merge", merge), ("forward", forward)):
            durations[name] = seconds(call)
    print(json.dumps(durations))


def render(by_size: Mapping[str, RawResults]) -> str:
    """For each size what was measured, and the bars."""
    return "\n\n".join(part for results in by_size.values() for part in _parts(results.data))


def _parts(data: Mapping[str, Any]) -> list[str]:
    size, runs = data["size"], data["taken"]
    memory = {name: spread([one["anonymous"] / 1e9 for one in each]) for name, each in runs.items()}
    rows = [
        (_LABELS[name], spread([one["seconds"] for one in each]).text(1), memory[name].text(2))
        for name, each in runs.items()
    ]
    candidate = runs["candidate"]
    apart = [one["merge"] + one["forward"] for one in candidate]
    clock = {name: [one["seconds"] for one in each] for name, each in runs.items()}
    key = f"prompts.{size}"
    goals = [
        Bar(
            f"{key}.calibrate", f"{size}, calibrate over bare passes", ratios(clock["calibrate"], clock["passes"]), 1.3
        ),
        Bar(f"{key}.regmean", f"{size}, regmean given inputs", spread(clock["regmean"]), 25, unit="s"),
        Bar(f"{key}.memory", f"{size}, regmean given inputs, memory", memory["regmean"], 1.5, unit="GB"),
        Bar(
            f"{key}.candidate",
            f"{size}, a candidate over its merge and its forward passes",
            ratios([one["candidate"] for one in candidate], apart),
            1.3,
        ),
    ]
    return [
        f"Qwen2.5-{size}, {data['agents']} agents, each with {PROMPTS} prompts of {TOKENS} tokens and replies of as "
        f"many, in float32 on the processor. Recorded inputs take {data['inputs'] / 1e6:.0f} MB an agent.",
        table(("what", "seconds", "memory, GB"), rows),
        bars(goals),
    ]


SECTION = Section("prompts", "Prompts", has_sizes=True, measure=measure, render=render)

if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "passes":
        _pass(arguments[:-1], arguments[-1])
    else:
        _candidate(*arguments)
