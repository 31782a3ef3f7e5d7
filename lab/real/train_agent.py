"""Train one agent from the base model with GRPO on one task, on a CPU or a GPU.

Training runs in float32, because in pure bf16 most updates of this size round to nothing. The result is saved twice: in
bf16, as agents are usually published, and in float32, as the trainer has it.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tasks import ALL_TASKS, Message, Task
from transformers import AutoModelForCausalLM, AutoTokenizer, Cache, PreTrainedModel, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

PACKAGES = ("torch", "transformers", "trl", "accelerate", "datasets", "gguf")
RewardFunction = Callable[..., list[float]]


def distinct(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each row of tokens and mask once, and which of them every row was."""
    rows, place = torch.unique(torch.cat([ids, mask], 1), dim=0, return_inverse=True)
    return rows[:, : ids.shape[1]], rows[:, ids.shape[1] :], place


def positions(mask: torch.Tensor) -> torch.Tensor:
    """Places of tokens in their texts; padding does not count."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def read_prompts(model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, Cache]:
    """Run every distinct prompt once: the hidden states, and keys and values, of each row."""
    ids, mask, place = distinct(ids, mask)
    found = model.base_model(ids, attention_mask=mask, position_ids=positions(mask), use_cache=True)
    found.past_key_values.batch_select_indices(place)
    return found.last_hidden_state[place], found.past_key_values


class PromptsOnceTrainer(GRPOTrainer):
    """GRPO that runs each prompt once a step, and the output head over completions only.

    On a CPU the trainer runs both over every token of every row: over the same prompt for each of its completions, and
    the head over all prompts. The loss is the same.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.model.generate = self._generate_after_prompts

    def _generate_after_prompts(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **flags: Any) -> Any:
        # the last token is left to `generate`, which needs one to begin with
        _, cache = read_prompts(self.model, input_ids[:, :-1], attention_mask[:, :-1])
        plain = type(self.model).generate
        return plain(self.model, input_ids, attention_mask=attention_mask, past_key_values=cache, **flags)

    def _get_per_token_logps_and_entropies(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        **_: object,
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        ids, mask, place = distinct(input_ids, attention_mask)
        begins = ids.shape[1] - logits_to_keep
        prompts, cache = read_prompts(model, ids[:, :begins], mask[:, :begins])
        replies, where = ids[:, begins:], positions(mask)[:, begins:]
        after = model.base_model(replies, attention_mask=mask, position_ids=where, past_key_values=cache)
        hidden = torch.cat([prompts[:, -1:], after.last_hidden_state[:, :-1]], 1)
        logps = torch.log_softmax(model.get_output_embeddings()(hidden) / self.temperature, -1)
        entropies = -(logps.detach().exp() * logps.detach()).sum(-1)
        return logps.gather(2, replies.unsqueeze(2)).squeeze(2)[place], entropies[place], None


def make_dataset(task: Task, count: int, seed: int) -> Dataset:
    """Training problems as the rows that the trainer reads."""
    examples = task.examples("train", seed, count)
    return Dataset.from_list([{"prompt": task.messages(example), "answer": example.answer} for example in examples])


def make_reward(task: Task) -> RewardFunction:
    """Adapt the task's reward to the trainer's signature."""

    def reward(completions: Sequence[Sequence[Message]], answer: Sequence[str], **_: object) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        return [task.reward(text, wanted) for text, wanted in zip(texts, answer, strict=True)]

    # The trainer names its columns of the log after the function.
    reward.__name__ = f"reward_{task.name}"
    return reward


def make_config(task: Task, arguments: argparse.Namespace) -> GRPOConfig:
    """Settings of the trainer: no KL term, one update a batch, nothing reported or saved on the way."""
    return GRPOConfig(
        output_dir=str(arguments.out),
        use_cpu=arguments.device == "cpu",
        bf16=arguments.autocast,
        beta=0.0,
        learning_rate=arguments.lr,
        lr_scheduler_type="constant",
        max_steps=arguments.steps,
        per_device_train_batch_size=arguments.prompts * arguments.generations,
        num_generations=arguments.generations,
        max_completion_length=task.max_new_tokens,
        temperature=arguments.temperature,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=arguments.seed,
    )


def reward_curve(history: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """The reward of every step, from the trainer's log."""
    kept = {"reward": "reward", "reward_std": "reward_std", "completions/mean_length": "tokens", "step_time": "seconds"}
    steps = [entry for entry in history if "reward" in entry]
    return [{name: round(entry[key], 4) for key, name in kept.items() if key in entry} for entry in steps]


def save_agent(trainer: GRPOTrainer, base: Path, out: Path, exact: Path) -> None:
    """Save weights in float32 to `exact` and in bf16 to `out`, with the tokenizer of the base."""
    # The trainer switches the key-value cache off, and a saved agent would generate slowly ever after.
    trainer.model.config.use_cache = True
    for dtype, folder in ((torch.float32, exact), (torch.bfloat16, out)):
        trainer.model.to(dtype).save_pretrained(folder)
        AutoTokenizer.from_pretrained(base).save_pretrained(folder)


class KeepsSteps(TrainerCallback):
    """Saves the weights of some steps in float32, each in a folder `checkpoint-STEP`."""

    def __init__(self, folder: Path, steps: Sequence[int]) -> None:
        self.folder, self.steps = folder, frozenset(steps)

    def on_step_end(self, _args: Any, state: Any, _control: Any, *, model: PreTrainedModel, **_: object) -> None:
        """Called by the trainer after each update."""
        if state.global_step in self.steps:
            model.save_pretrained(self.folder / f"checkpoint-{state.global_step}")


def train(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train and save the agent; return the log."""
    task = ALL_TASKS[arguments.task]
    trainer = PromptsOnceTrainer(
        model=AutoModelForCausalLM.from_pretrained(arguments.base, dtype=torch.float32).to(arguments.device),
        reward_funcs=make_reward(task),
        args=make_config(task, arguments),
        train_dataset=make_dataset(task, arguments.prompts * arguments.steps, arguments.seed),
        processing_class=AutoTokenizer.from_pretrained(arguments.base, padding_side="left"),
        callbacks=[KeepsSteps(arguments.checkpoints, arguments.keep)] if arguments.checkpoints else [],
    )
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    save_agent(trainer, arguments.base, arguments.out, arguments.exact)
    return {"seconds": round(seconds, 1), "steps": reward_curve(trainer.state.log_history)}


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The run: flags, machine and versions."""
    without_effect = ("base", "out", "exact", "checkpoints", "keep")
    flags = {name: value for name, value in vars(arguments).items() if name not in without_effect}
    versions = {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}}
    return {**flags, "versions": versions}


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(ALL_TASKS), required=True)
    parser.add_argument("--out", type=Path, required=True, help="directory of the agent in bf16")
    parser.add_argument("--exact", type=Path, required=True, help="directory of the agent in float32")
    parser.add_argument("--checkpoints", type=Path, help="folder for checkpoints in float32 of the steps of --keep")
    parser.add_argument("--keep", type=int, nargs="+", default=[1, 2, 3, *range(4, 1000, 2)], metavar="STEP")
    parser.add_argument("--base", type=Path, default=Path(".real/base"), help="checkpoint to start from")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=4, help="prompts a step")
    parser.add_argument("--generations", type=int, default=8, help="completions a prompt")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--autocast", action="store_true", help="multiply in bf16; weights stay in float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    return parser.parse_args()


def main() -> None:
    """Train one agent and write its log."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    log = {"settings": settings(arguments), **train(arguments)}
    (arguments.out / "train.json").write_text(json.dumps(log, indent=1) + "\n")
    rewards = [step["reward"] for step in log["steps"]]
    print(f"{arguments.task}: reward {rewards[0]:.2f} -> {rewards[-1]:.2f} in {log['seconds']:.0f} s")


if __name__ == "__main__":
    main()
