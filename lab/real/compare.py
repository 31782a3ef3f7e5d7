"""Rules for shared elements on the real agents: merge in bfloat16 and in float32, and score base, agents and merges.

    python lab/real/compare.py --work .real
    python lab/real/compare.py --work .real --serve vllm

keeps the reward of every prompt in lab/results/real-SEED.json after each model, so that a run that was stopped goes on,
and that the next run scores what was added to merges.json and nothing else; SEED is that of the agents' training.
`--only "ties, bfloat16"` scores these models now, and leaves the others to a later run. All models see the same
prompts, none of which occurs in training. No parameter is chosen. `python -m lab page` renders the section of
docs/findings-real-agents.md from it.

With `--serve` a server answers, and `ramerge eval` asks and scores: models in bfloat16 only, in which servers compute.
Rewards are kept in lab/results/served-SEED.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from evaluate import evaluate_task
from reward import records
from tasks import TASKS
from transformers import AutoModelForCausalLM, AutoTokenizer

import ramerge
from ramerge.scoring.serving import SERVERS, KeptServer

MERGES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("merges.json").read_text(encoding="utf-8"))
FOLDERS = {"bfloat16": "agents", "float32": "agents-float32"}
"""Where the agents lie that are merged into an output of this dtype."""
RESULTS = Path(__file__).parents[1] / "results"


def merged(work: Path, agents: Sequence[str], name: str, dtype: str) -> Path:
    """One merge, in a folder that the next one replaces."""
    folder = work / "merge"
    shutil.rmtree(folder, ignore_errors=True)
    documents = {task: str((work / FOLDERS[dtype] / task).resolve()) for task in agents}
    ramerge.merge(
        {"base": str((work / "base").resolve()), "agents": documents, "dtype": dtype, **MERGES[name]},
        folder,
        options=ramerge.Options(threads=1),
    )
    return folder


Scorer = Callable[[Path], Mapping[str, Sequence[float]]]
"""What gives the rewards of a model's folder: of each task, those of its prompts."""


def in_process(agents: Sequence[str], flags: dict[str, int], folder: Path) -> Mapping[str, Sequence[float]]:
    """With transformers, computed in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    return {task: evaluate_task(model, tokenizer, TASKS[task], flags)["rewards"] for task in agents}


@contextmanager
def over_endpoint(kind: str, work: Path, agents: Sequence[str], flags: dict[str, int]) -> Iterator[Scorer]:
    """With a server that loads one model after another."""
    for task in agents:
        lines = map(json.dumps, records(TASKS[task], flags["prompts"], flags["seed"]))
        (work / f"{task}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    server = KeptServer(ramerge.ModelServer(kind), work / "served", work / "server.log")
    try:
        yield partial(_asked, server, work, agents)
    finally:
        server.close()


def _asked(server: KeptServer, work: Path, agents: Sequence[str], folder: Path) -> Mapping[str, Sequence[float]]:
    """The rewards of a folder's model, by `ramerge eval`."""
    import ramerge_eval  # needs more than scoring in this process does
    from ramerge_eval.logs import read

    access = ramerge.ModelAccess(server.load(folder.resolve()))
    target = ramerge_eval.EvaluationTarget("model", server.served_name)
    found = {}
    for task in agents:
        results = work / "scores"
        shutil.rmtree(results, ignore_errors=True)
        function = Path(__file__).with_name("reward.py").resolve()
        settings = {
            "rewards.prompts": str(work / f"{task}.jsonl"),
            "rewards.function": f"{function}:compute_score",
            "max_tokens": TASKS[task].max_new_tokens,
        }
        ramerge_eval.evaluate(results, [target], ramerge_eval.EvaluationRequest(["ramerge/rewards"], settings), access)
        samples = read(results)[0].tasks["rewards", "prompts"]
        rewards = zip(samples.keys, samples.metrics["reward"][:, 0].tolist(), strict=True)
        found[task] = [reward for _, reward in sorted(rewards, key=lambda each: int(each[0].partition("/")[2]))]
    return found


def in_quarters(rewards: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """The reward of each prompt of each task, in quarters: one digit a prompt."""
    return {task: "".join(str(round(4 * reward)) for reward in values) for task, values in rewards.items()}


def training(work: Path, task: str) -> dict[str, Any]:
    """An agent's training, as far as it is known."""
    log = json.loads((work / "agents" / task / "train.json").read_text(encoding="utf-8"))
    return {key: log["settings"][key] for key in ("steps", "lr", "seed")}


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(".real"), help="folder of base, agents and agents-float32")
    parser.add_argument("--agents", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument(
        "--prompts", type=int, default=500, help="test prompts a task; a task that has fewer is asked all"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the test prompts")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--serve", choices=SERVERS, help="score over an endpoint that this server opens")
    parser.add_argument("--out", type=Path, help="file of results; default: lab/results/real-SEED.json")
    parser.add_argument(
        "--only", nargs="+", metavar="MODEL", help="base, a task's agent, or MERGE, DTYPE; default: all"
    )
    return parser.parse_args()


def opened(given: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """The file of results, and what it holds so far."""
    agents = {task: training(given.work, task) for task in given.agents}
    seeds = sorted({agent.pop("seed") for agent in agents.values()})
    if len(seeds) != 1:
        raise SystemExit(f"{given.work} has agents of several seeds: {', '.join(map(str, seeds))}")
    kept: dict[str, Any] = {"prompts": given.prompts, "prompt seed": given.seed, "seed": seeds[0], "agents": agents}
    if given.serve:
        kept["server"] = given.serve
    out = given.out or RESULTS / f"{'served' if given.serve else 'real'}-{seeds[0]}.json"
    kept["models"] = {}
    if not out.exists():
        return out, kept
    before = json.loads(out.read_text(encoding="utf-8"))
    if {**before, "models": {}} != kept:
        raise SystemExit(f"{out} holds results of other agents or prompts: remove it first")
    return out, before


def compare(given: argparse.Namespace, scorer: Scorer) -> None:
    """Merge, score, keep."""
    out, kept = opened(given)
    models = {"base": given.work / "base", **{task: given.work / "agents" / task for task in given.agents}}
    dtypes = ["bfloat16"] if given.serve else list(FOLDERS)
    known = [*models, *(f"{merge}, {dtype}" for dtype in dtypes for merge in MERGES)]
    if unknown := set(given.only or ()) - set(known):
        raise SystemExit(f"--only {', '.join(sorted(unknown))}: not a model; known: {'; '.join(known)}")
    for name in given.only or known:
        if name in kept["models"]:
            continue
        began = time.perf_counter()
        folder = models[name] if name in models else merged(given.work, given.agents, *name.split(", "))
        kept["models"][name] = in_quarters(scorer(folder))
        out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)


def main() -> None:
    """Score in this process or over an endpoint."""
    given = parse_arguments()
    flags = {"prompts": given.prompts, "seed": given.seed, "batch": given.batch}
    if not given.serve:
        torch.set_num_threads(given.threads)
        compare(given, partial(in_process, given.agents, flags))
        return
    work = given.work / "endpoint"
    work.mkdir(exist_ok=True)
    with over_endpoint(given.serve, work, given.agents, flags) as scorer:
        compare(given, scorer)


if __name__ == "__main__":
    main()
