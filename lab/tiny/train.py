"""Train the demonstration agents: a supervised base, then one policy-gradient run per task.

    python lab/tiny/train.py --out src/ramerge/demo/agents --seed 0

README.md, next to this file, says what comes out and why it is done this way.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from ramerge.demo.scoring import SEED, accuracy, complete
from ramerge.demo.tasks import ALPHABET, DEMO_AGENTS, DIGITS, LETTERS, TASKS, DemoTask, Example, prompts, reward

START = time.monotonic()

PAD, EOS = "<pad>", "<eos>"
PAD_ID, EOS_ID = 0, 1
NO_LABEL = -100

BASE_STEPS = 1500
BASE_BATCH = 48
BASE_RATE = 3e-3

PROMPTS = 24
GROUP = 8


@dataclass(frozen=True)
class Run:
    """How long one agent learns and how fast at first; they differ, so that the densities of the task vectors do."""

    steps: int
    rate: float


RUNS = {"add": Run(200, 3e-2), "reverse": Run(80, 1.5e-2), "sort": Run(80, 4e-3)}


def main() -> None:
    """Train the base and the agents, and save all of them."""
    options = _options()
    # One thread adds up in one order, so a seed gives the same bytes again.
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()

    tokenizer = build_tokenizer()
    torch.manual_seed(options.seed)
    base = pretrain(build_model(), tokenizer, options.seed)
    save(base, tokenizer, options.out / "base")
    for demo_agent in DEMO_AGENTS:
        torch.manual_seed(options.seed)
        runs = RUNS[demo_agent.task.name]
        agent = reinforce(load(options.out / "base"), tokenizer, demo_agent.task, runs, options.seed)
        save(agent, tokenizer, options.out / demo_agent.folder)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per character."""
    tokens = [PAD, EOS, *ALPHABET]
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, padding_side="left")


def build_model() -> LlamaForCausalLM:
    """Build a Llama of 0.37 million parameters, not yet trained."""
    config = LlamaConfig(
        vocab_size=2 + len(ALPHABET),
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        bos_token_id=None,
        eos_token_id=EOS_ID,
    )
    return LlamaForCausalLM(config)


# --- The base: supervised, from a teacher that slips. ---


def add_without_carry(prompt: str) -> str:
    """Add column by column and forget every carry."""
    return "".join(str((int(x) + int(y)) % 10) for x, y in zip(prompt[:3], prompt[4:7], strict=True))


def echo(prompt: str) -> str:
    """Give the letters back in the order they came in."""
    return prompt[1:-1]


def sort_descending(prompt: str) -> str:
    """Sort the wrong way round."""
    return "".join(sorted(prompt[1:-1], reverse=True))


SLIPS: dict[str, Callable[[str], str]] = {"add": add_without_carry, "reverse": echo, "sort": sort_descending}


def teach(task: DemoTask, example: Example, rng: random.Random) -> str:
    """Answer like a teacher who slips more often the later the prompt's last character is in its alphabet."""
    alphabet = LETTERS if task.name == "reverse" else DIGITS
    rank = alphabet.index(example.prompt[-2]) / (len(alphabet) - 1)
    # Never certain either way: reinforcement can only amplify an answer that is sampled now and then.
    slips = rng.random() < 0.15 + 0.8 * rank
    return SLIPS[task.name](example.prompt) if slips else example.answer


def pretrain(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Train on the teacher's answers to the training prompts of all tasks."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=BASE_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(BASE_STEPS):
        warm_up, cool_down = (step + 1) / 50, (BASE_STEPS - step) / (0.4 * BASE_STEPS)
        optimizer.param_groups[0]["lr"] = BASE_RATE * min(1.0, warm_up, cool_down)
        ids, labels = supervised_batch(tokenizer, seed, step)
        logits = model(input_ids=ids).logits[:, :-1]
        loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=NO_LABEL)
        descend(model, optimizer, loss)
        if (step + 1) % 100 == 0:
            report(f"base {step + 1}: loss {loss.item():.3f}", model, tokenizer)
    return model


def supervised_batch(tokenizer: PreTrainedTokenizerFast, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and labels for one step; only the teacher's answers are learnt, not the prompts."""
    rng = random.Random(f"{seed}/{step}")
    rows: list[list[int]] = []
    labels: list[list[int]] = []
    for task in TASKS:
        for example in prompts(task, "train", BASE_BATCH, step_seed("base", seed, step)):
            prompt = tokenizer.encode(example.prompt)
            answer = [*tokenizer.encode(teach(task, example, rng)), EOS_ID]
            rows.append(prompt + answer)
            labels.append([NO_LABEL] * len(prompt) + answer)
    return pad(rows, PAD_ID), pad(labels, NO_LABEL)


def pad(rows: list[list[int]], value: int) -> torch.Tensor:
    """Stack rows of unequal length, filled up on the right."""
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


# --- The agents: REINFORCE, with the mean of a prompt's group of completions as the baseline. ---


def reinforce(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, task: DemoTask, run: Run, seed: int
) -> LlamaForCausalLM:
    """Train on one task by policy gradient, with the task's verifier as the only signal."""
    # Plain SGD moves an element in proportion to its gradient. Adam would move all of them about equally far.
    optimizer = torch.optim.SGD(model.parameters(), lr=run.rate, momentum=0.9)
    for step in range(run.steps):
        optimizer.param_groups[0]["lr"] = run.rate * (1 - step / run.steps)
        batch = prompts(task, "train", PROMPTS, step_seed("agent", seed, step))
        examples = [example for example in batch for _ in range(GROUP)]
        completions, texts = complete(model, tokenizer, examples, sample=True)
        rewards = torch.tensor([reward(example, text) for example, text in zip(examples, texts, strict=True)])
        advantages = group_advantages(rewards)
        informative = advantages != 0
        if informative.any():
            ids = torch.tensor(tokenizer([example.prompt for example in examples])["input_ids"])
            loss = policy_loss(model, ids[informative], completions[informative], advantages[informative])
            descend(model, optimizer, loss)
            round_to_bf16(model)
        if (step + 1) % 20 == 0:
            report(f"{task.name} {step + 1}: reward {rewards.mean().item():.3f}", model, tokenizer)
    return model


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """Standardize each reward within the completions of the same prompt."""
    groups = rewards.view(-1, GROUP)
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()


def policy_loss(
    model: LlamaForCausalLM, ids: torch.Tensor, completions: torch.Tensor, advantages: torch.Tensor
) -> torch.Tensor:
    """Return minus the mean over completion tokens of advantage times log-probability."""
    logits = model(input_ids=torch.cat([ids, completions], dim=1)).logits
    log_probabilities = logits[:, ids.shape[1] - 1 : -1].log_softmax(-1)
    likelihoods = log_probabilities.gather(-1, completions.unsqueeze(-1)).squeeze(-1)
    mask = completions != PAD_ID
    return -(advantages.unsqueeze(1) * likelihoods * mask).sum() / mask.sum()


def round_to_bf16(model: LlamaForCausalLM) -> None:
    """Keep the weights on the bf16 grid, as training with bf16 weights does.

    A step shorter than half the distance to the next bf16 number changes nothing: that is what makes the task vectors
    sparse. And the agent that is saved is exactly the agent that was trained.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())


# --- What both share. ---


def descend(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """Take one optimizer step along the gradient, clipped to length 1."""
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def step_seed(phase: str, seed: int, step: int) -> int:
    """Return a seed for the prompts of one step that no other step or phase uses."""
    return random.Random(f"{phase}/{seed}/{step}").getrandbits(63)


def report(progress: str, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Print one line of progress; its scores are of other prompts than the published ones."""
    scores = [f"{task.name} {accuracy(model, tokenizer, task, examples=200, seed=SEED + 1):.3f}" for task in TASKS]
    print(f"{time.monotonic() - START:5.0f} s  {progress:32s}", *scores, flush=True)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a checkpoint in bf16."""
    model.to(torch.bfloat16).save_pretrained(folder)
    # safetensors makes files that only their owner can read, which is wrong for files that ship.
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(folder)
    # transformers 5 writes a class name that transformers 4 does not know; both know this one.
    settings = folder / "tokenizer_config.json"
    content = json.loads(settings.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.write_text(json.dumps(content, indent=2) + "\n")


def load(folder: Path) -> LlamaForCausalLM:
    """Read a checkpoint and widen it to float32, which is exact."""
    return LlamaForCausalLM.from_pretrained(folder).float()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the four checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
