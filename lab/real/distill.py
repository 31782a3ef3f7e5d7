"""Distill agents into a merge of them, with the files of `ramerge handoff` and TRL, and keep the rewards on the way.

    python lab/real/distill.py --situation SFT --seed 71 --start ram+ --rate 5e-6

The student is the base or a merge by a rule of prompted.py; the teachers are the agents. `ramerge handoff` writes the
folder, and the trainer is the one of its train.py; here it also counts tokens, scores the student on test prompts, and
can add a reward to the loss. Results go to lab/results/distill.json.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import yaml
from datasets import load_dataset
from evaluate import replies_to
from prompted import RULES, SITUATIONS, TOKENS, Experiment, agents_of, calibration_settings, prompts_of
from tasks import TASKS
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, TrainerCallback
from trl import DistillationConfig

import ramerge
from ramerge.calibration.live_base import LiveBase
from ramerge.core.foundation.files import write_file

RESULTS = Path(__file__).parents[1] / "results" / "distill.json"
SCORED = (0, 5, 10, 20, 40)
"""Steps after which the student is scored."""


def make_start(rule: str, seed: int, situation: str, work: Path) -> Path:
    """The folder of the base, or of the agents merged by a rule; a merge is made once."""
    if rule == "base":
        return work / "base"
    place = work / str(seed) / "starts" / f"{situation}-{rule}".replace(" ", "-")
    if place.exists():
        return place
    agents = SITUATIONS[situation]
    settings = calibration_settings("cpu", "float32")
    models = ramerge.Recipe(method="uniform", base=(work / "base").resolve(), agents=agents_of(agents, work, seed))
    inputs = None
    with LiveBase(models, settings, ramerge.Options()) as live:
        experiment = Experiment(live, work, seed, agents, settings, {}, 1)
        if RULES[rule]["method"] == "regmean":
            inputs = work / str(seed) / f"prompted-{situation}" / "statistics"
            if not inputs.exists():
                experiment.gathered(inputs)
        recipe = experiment.recipe(RULES[rule], inputs)
    ramerge.merge(recipe, place)
    return place


def make_teachers(seed: int, situation: str, work: Path) -> dict[str, Path]:
    """The folder of each agent as a checkpoint; adapters are merged into the base."""
    agents = agents_of(SITUATIONS[situation], work, seed)
    teachers = {}
    for name, folder in agents.items():
        teachers[name] = Path(folder)
        if (Path(folder) / "adapter_config.json").exists():
            teachers[name] = work / str(seed) / "teachers" / name
            if not teachers[name].exists():
                recipe = {"base": str((work / "base").resolve()), "agents": {name: folder}, "method": "passthrough"}
                ramerge.merge({**recipe, "dtype": "bfloat16"}, teachers[name])
    return teachers


def multiplied_in_bfloat16(seed: int, situation: str, work: Path) -> bool:
    """Whether the agents were trained with products in bfloat16, which makes other agents."""
    folders = agents_of(SITUATIONS[situation], work, seed).values()
    logs = [json.loads(Path(folder, "train.json").read_text(encoding="utf-8")) for folder in folders]
    return any(log["settings"].get("autocast", False) for log in logs)


def hand_over(student: Path, seed: int, situation: str, work: Path, teachers: Mapping[str, Path]) -> Path:
    """The folder that `ramerge handoff` writes for a merge by RAM+; the student is set afterwards."""
    place = work / str(seed) / f"handoff-{situation}"
    files = {}
    for name in teachers:
        task = TASKS[name.partition("-")[0]]
        path = work / str(seed) / "prompts" / f"{name}.jsonl"
        rows = [{"prompt": list(each.messages)} for each in prompts_of(task, 200, "train", 20_000 + seed)]
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        files[name] = path
    ramerge.handoff(
        make_start("ram+", seed, situation, work),
        place,
        prompts=files,
        teachers=teachers,
        settings=ramerge.HandoffSettings(max_new=TOKENS),
        options=ramerge.Options(overwrite=True),
    )
    config = yaml.safe_load((place / "config.yaml").read_text(encoding="utf-8"))
    config["student"] = str(student.resolve())
    write_file(place / "config.yaml", yaml.safe_dump(config))
    return place


def load_trainer(place: Path) -> Any:
    """The trainer's class in the train.py of a handoff."""
    spec = importlib.util.spec_from_file_location("train", place / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MultiTeacherTrainer


def rewards_of(model: PreTrainedModel, tokenizer: Any, prompts: int, tasks: Sequence[str] = ()) -> dict[str, str]:
    """Greedy rewards of a model in bfloat16, by task one digit a test prompt, in quarters; by default of all tasks."""
    student = copy.deepcopy(model).to(torch.bfloat16).eval()
    digits = {}
    for name in tasks or TASKS:
        task = TASKS[name]
        examples = task.examples("test", 0, prompts)
        texts = replies_to(student, tokenizer, task, examples, 40)
        rewards = [task.reward(text, each.answer) for text, each in zip(texts, examples, strict=True)]
        digits[name] = "".join(str(round(4 * reward)) for reward in rewards)
    return digits


def mean_of(rewards: Mapping[str, str]) -> float:
    """The mean reward over tasks, in per cent."""
    return fmean(25 * fmean(map(int, digits)) for digits in rewards.values())


class Scores(TrainerCallback):
    """Rewards of the student after some steps."""

    def __init__(self, trainer: Any, tokenizer: Any, prompts: int) -> None:
        self.trainer, self.tokenizer, self.prompts = trainer, tokenizer, prompts
        self.curve: list[dict[str, Any]] = []

    def score(self, step: int) -> None:
        """Add a point to the curve, if this step has one."""
        if step in SCORED:
            rewards = rewards_of(self.trainer.model, self.tokenizer, self.prompts)
            self.curve.append({"step": step, "tokens": self.trainer.sampled_tokens, "rewards": rewards})
            print(step, self.trainer.sampled_tokens, f"{mean_of(rewards):.1f}", flush=True)

    def on_train_begin(self, _args: Any, _state: Any, _control: Any, **_: object) -> None:
        """Score the start."""
        self.score(0)

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: object) -> None:
        """Score after an update."""
        self.score(state.global_step)


def with_reward(trainer_class: Any, weight: float, answers: Mapping[str, str]) -> Any:
    """A trainer that also counts sampled tokens and raises the likelihood of replies with more reward than others.

    Args:
        trainer_class: the one of a handoff.
        weight: of a reply's advantage, its reward minus the mean of its task's replies in this step.
        answers: by question, the right answer.
    """

    class RewardedTrainer(trainer_class):
        sampled_tokens = 0

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                batch = super()._generate_and_score_completions(inputs)
            self.sampled_tokens += int(batch["completion_mask"].sum())
            texts = self.processing_class.batch_decode(batch["completion_ids"], skip_special_tokens=True)
            tasks = [row["teacher_id"].partition("-")[0] for row in inputs]
            rewards = torch.tensor(
                [
                    TASKS[task].reward(text, answers[row["prompt"][-1]["content"]])
                    for task, text, row in zip(tasks, texts, inputs, strict=True)
                ]
            )
            for name in set(tasks):
                rows = torch.tensor([task == name for task in tasks])
                rewards[rows] -= rewards[rows].mean()
            return batch | {"advantage": rewards}

        def _compute_loss(self, student: Any, inputs: dict[str, Any], num_items_in_batch: Any) -> Any:
            advantage = inputs.pop("advantage")
            loss, entropy, tokens = super()._compute_loss(student, inputs, num_items_in_batch)
            if weight:
                ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
                mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
                length = inputs["completion_ids"].shape[1]
                logits = student(ids, attention_mask=mask, logits_to_keep=length + 1).logits[:, :-1]
                logps = torch.log_softmax(logits.float(), -1).gather(2, inputs["completion_ids"][:, :, None])[..., 0]
                gains = (logps * inputs["completion_mask"]).sum(1) * advantage
                loss = loss - weight * gains.sum() / num_items_in_batch
            return loss, entropy, tokens

    return RewardedTrainer


def distill(arguments: argparse.Namespace) -> dict[str, Any]:
    """The curve of one start."""
    student = make_start(arguments.start, arguments.seed, arguments.situation, arguments.work)
    teachers = make_teachers(arguments.seed, arguments.situation, arguments.work)
    place = hand_over(student, arguments.seed, arguments.situation, arguments.work, teachers)
    config = yaml.safe_load((place / "config.yaml").read_text(encoding="utf-8"))
    names = DistillationConfig.__dataclass_fields__
    args = DistillationConfig(
        **{
            **{key: value for key, value in config.items() if key in names},
            "output_dir": str(place / "trained"),
            "learning_rate": arguments.rate,
            "warmup_steps": arguments.warmup,
            "max_steps": arguments.steps,
            "seed": arguments.seed,
            "per_device_train_batch_size": 16,
            "gradient_accumulation_steps": 1,
            "use_cpu": True,
            "bf16": True,
            "gradient_checkpointing": False,
            "save_strategy": "no",
            "disable_tqdm": True,
        }
    )
    tokenizer = AutoTokenizer.from_pretrained(arguments.work / "base", padding_side="left")
    tasks = [TASKS[name.partition("-")[0]] for name in teachers]
    answers = {
        each.question: each.answer for task in tasks for each in task.examples("train", 20_000 + arguments.seed, 200)
    }
    trainer = with_reward(load_trainer(place), arguments.reward, answers)(
        model=AutoModelForCausalLM.from_pretrained(student, dtype=torch.float32),
        args=args,
        train_dataset=load_dataset("json", data_files=str(place / "prompts.jsonl"), split="train"),
        processing_class=tokenizer,
        teachers={
            name: AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16) for name, path in teachers.items()
        },
    )
    scores = Scores(trainer, tokenizer, arguments.prompts)
    trainer.add_callback(scores)
    agents = {}
    for name, path in teachers.items():
        agent = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
        agents |= rewards_of(agent, tokenizer, arguments.prompts, [name.partition("-")[0]])
    start = time.perf_counter()
    trainer.train()
    losses = [round(entry["loss"], 4) for entry in trainer.state.log_history if "loss" in entry]
    seconds = round(time.perf_counter() - start)
    return {"seconds": seconds, "agents": agents, "curve": scores.curve, "losses": losses}


def read_runs(path: Path) -> list[dict[str, Any]]:
    """The runs that are kept."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def main() -> None:
    """Distill one start and keep its curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(".real"), help="folder of the base and of trainings by seed")
    parser.add_argument("--situation", choices=["SFT", "LoRA", "RL"], default="SFT")
    parser.add_argument("--seed", type=int, default=71)
    parser.add_argument("--repetition", type=int, default=0, help="of the agents' training, if that was repeated")
    parser.add_argument("--start", choices=["base", *RULES], default="ram+")
    parser.add_argument("--rate", type=float, default=5e-6)
    parser.add_argument("--warmup", type=int, default=0, help="steps")
    parser.add_argument("--reward", type=float, default=0.0, help="weight of a reward term")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=40, help="test prompts a task")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    run = {
        "situation": arguments.situation,
        "seed": arguments.seed,
        "autocast": multiplied_in_bfloat16(arguments.seed, arguments.situation, arguments.work),
        "repetition": arguments.repetition,
        "start": arguments.start,
        "rate": arguments.rate,
        "warmup": arguments.warmup,
        "reward": arguments.reward,
    }
    if any(run.items() <= other.items() for other in read_runs(arguments.out)):
        return
    record = {**run, **distill(arguments)}
    runs = [*read_runs(arguments.out), record]
    write_file(arguments.out, "[\n" + ",\n".join(map(json.dumps, runs)) + "\n]\n")
    print(run, record["seconds"], "s", flush=True)


if __name__ == "__main__":
    main()
