"""The demonstration: merges, scores or copies the tiny agents of the package; `AGENTS` is their folder."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

from ramerge import Options, PlanError, Progress, RecipeError, Record, merge
from ramerge.demo.tasks import DEMO_AGENTS, TASKS, prompts
from ramerge.sdk.files import write_file
from ramerge.sdk.options import missing
from ramerge.sdk.progress import shown

AGENTS = Path(__file__).with_name("agents")
REWARD = "demo_reward.py"
_SCORING = {"torch": ["torch", "transformers"]}
METHODS = ("ram", "ram+")
_PROMPTS = 8
FIRST_MERGE = "ramerge merge --base ./base --agent code=./coder --agent tool=./tool --agent memory=./memory MERGED"

_REWARD = '''"""The reward function of the demo's tasks, in verl's form."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str.strip() == ground_truth)
'''

Print = Callable[[str], None]


def run(out: Path | None, say: Print) -> None:
    """Run the demonstration: merge by RAM and RAM+, print the results and, if torch is installed, the scores.

    Args:
        out: folder for the merged checkpoints, which replace those of an earlier demo; by default, they are deleted.
    """
    say("One base model learned a little of three tasks; three agents were trained by policy gradient on one each:")
    for agent in DEMO_AGENTS:
        say(f"  {agent.name:<8} {agent.task.description}")
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ramerge-demo-")))
        models = {"base": AGENTS / "base", **{f"agent {each.name}": AGENTS / each.folder for each in DEMO_AGENTS}}
        records = {}
        compiling = _CompileNotice(say)
        for method in METHODS:
            models[method] = folder / method
            agents = {agent.name: str(AGENTS / agent.folder) for agent in DEMO_AGENTS}
            recipe = {"method": method, "base": str(AGENTS / "base"), "agents": agents}
            records[method] = merge(recipe, models[method], options=Options(overwrite=True), on_progress=compiling)
        _print_statistics(records, say)
        _print_shares(models, say)
        remark = (
            f"The merged checkpoints are in {out}."
            if out
            else "`ramerge demo --out FOLDER` keeps the merged checkpoints."
        )
        say(f"\n{remark}")


def copy_models(folder: Path, say: Print) -> None:
    """Copy base and agents of the demonstration to a folder, under the names of the documentation.

    Args:
        folder: receives the folders `base`, `coder`, `tool` and `memory`, each of which appears complete or not at all,
            and a few prompts of each agent's task, `code.jsonl`, `tool.jsonl` and `memory.jsonl`, with the right
            answers, and `demo_reward.py` with the reward function `compute_score`.

    Raises:
        PlanError: one of these files or folders exists; nothing was copied.
        OSError: a file cannot be written.
    """
    prompt_files = {f"{agent.name}.jsonl": agent.task for agent in DEMO_AGENTS}
    models = {"base": "the base model", **{agent.folder: agent.task.description for agent in DEMO_AGENTS}}
    if there := [folder / name for name in (*models, *prompt_files, REWARD) if os.path.lexists(folder / name)]:
        raise PlanError([f"{path}: exists; remove it, or choose another folder" for path in there])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".ramerge-demo-", dir=folder) as partial_folder:
        for name in models:
            shutil.copytree(AGENTS / name, Path(partial_folder, name)).rename(folder / name)
    for name, task in prompt_files.items():
        examples = prompts(task, "train", _PROMPTS, seed=1)
        lines = [json.dumps({"prompt": each.prompt, "ground_truth": each.answer}) + "\n" for each in examples]
        write_file(folder / name, "".join(lines))
    write_file(folder / REWARD, _REWARD)
    for name, description in models.items():
        say(f"{folder / name}: {description}")
    say(f"{', '.join(prompt_files)}: a few prompts of each task; {REWARD}: their reward function")
    into = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    say(f"next: {into}{FIRST_MERGE}")


def score_models(models: Mapping[str, str | Path], say: Print) -> dict[str, dict[str, list[float]]]:
    """Score models on the tasks of the demonstration, and print the shares of prompts that they answer exactly.

    Returns:
        The reward of each held-out prompt, 0 or 1, by model and task.
    """
    if lacking := missing(_SCORING, who="scores need"):
        raise RecipeError(lacking)
    if absent := [
        f"--score {name}={folder}: is no folder" for name, folder in models.items() if not Path(folder).is_dir()
    ]:
        raise RecipeError(absent)
    from ramerge.demo.scoring import rewards

    rewards_by_model: dict[str, dict[str, list[float]]] = {}
    say(f"{'':<14}" + "".join(f"{task.name:>9}" for task in TASKS) + f"{'mean':>9}")
    with shown(quiet=True) as listen:
        for number, (name, folder) in enumerate(models.items()):
            listen(Progress("scoring", number, len(models), "models"))
            parts = list(rewards(Path(folder)))
            rewards_by_model[name] = {task.name: [one for part in parts for one in part[task.name]] for task in TASKS}
            scores = [sum(each) / len(each) for each in rewards_by_model[name].values()]
            say(f"{name:<14}" + "".join(f"{one:>9.1%}" for one in (*scores, sum(scores) / len(scores))))
        listen(Progress("scoring", len(models), len(models), "models"))
    return rewards_by_model


class _CompileNotice:
    """Listener of the first merge, which explains once why compiling kernels takes seconds."""

    def __init__(self, say: Print) -> None:
        self._say = say
        self._has_printed = False

    def __call__(self, event: Progress) -> None:
        if event.unit == "kernels" and not self._has_printed:
            self._has_printed = True
            self._say("\ncompiling kernels; later merges take them from the cache")


def _print_statistics(records: Mapping[str, Record], say: Print) -> None:
    ram, plus = records["ram"], records["ram+"]
    seconds = ram.seconds + plus.seconds
    say(f"\nmerged {ram.parameters_count:,} parameters by ram and by ram+ in {seconds:.2f} s")
    say("\nagent     density   shared   unique      rho   lambda (ram+)")
    for agent in plus.agents.values():
        shared_share = agent.shared / agent.active if agent.active else 0.0
        say(
            f"{agent.name:<8} {agent.density:>8.1%} {shared_share:>8.1%} {agent.unique_share:>8.1%} {agent.rho:>8.3f} "
            f"{agent.lambda_:>8.4f}"
        )
    say(
        "density: share of parameters that training moved; shared: share of these that other agents moved too; "
        "unique: share of these that no other agent moved"
    )


def _print_shares(models: Mapping[str, Path], say: Print) -> None:
    if lacking := missing(_SCORING, who="scores need"):
        say(f"\nnote: {lacking[0]}")
        return
    # only here, because torch and transformers take seconds to import
    from ramerge.demo.scoring import EXAMPLES

    start = time.monotonic()
    say("\nshare of held-out prompts that are answered exactly:")
    rewards = score_models(models, say)
    own = fmean(fmean(rewards[f"agent {agent.name}"][agent.task.name]) for agent in DEMO_AGENTS)
    say(f"{'own task':<14}{own:>36.1%}   (the mean of each agent on its own task: what a merge should reach)")
    say(f"{EXAMPLES} prompts a task; one standard error is up to {50 / math.sqrt(EXAMPLES):.1f} points")
    say(f"scored in {time.monotonic() - start:.0f} s")
