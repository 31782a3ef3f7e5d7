"""Fine-tune the base model on correct replies of one task, on a CPU or a GPU: all weights, or a LoRA adapter.

The agents of `train_agent.py` learn by reinforcement; these learn the same tasks from their answers. Training runs in
float32. A full agent is saved in bf16, an adapter as PEFT writes it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from evaluate import common_beginning
from tasks import ALL_TASKS, Example, Task
from train_agent import positions
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase


def right_reply(task: Task, example: Example) -> str:
    """The reply that gets the full reward."""
    text = f"[[{example.answer}]]" if task.name == "fact" else example.answer
    if task.reward(text, example.answer) != 1.0:
        raise ValueError(f"{task.name}: {text!r} is not a full reply to {example.question!r}")
    return text


def loss_of(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, examples: Sequence[Example]
) -> torch.Tensor:
    """Mean cross-entropy of the tokens of correct replies; what all prompts begin with is computed once."""
    prompts = [
        tokenizer.apply_chat_template(task.messages(example), add_generation_prompt=True, return_dict=False)
        for example in examples
    ]
    texts = [right_reply(task, example) for example in examples]
    replies = [[*ids, tokenizer.eos_token_id] for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    begins = len(common_beginning(prompts))
    rows = [prompt[begins:] + reply for prompt, reply in zip(prompts, replies, strict=True)]
    width = max(map(len, rows))
    device = model.device
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows], device=device)
    mask = torch.tensor([[1] * (begins + len(row)) + [0] * (width - len(row)) for row in rows], device=device)
    wanted = torch.tensor(
        [
            [0] * (len(row) - len(reply)) + [1] * len(reply) + [0] * (width - len(row))
            for row, reply in zip(rows, replies, strict=True)
        ],
        device=device,
    ).bool()
    cache = model.model(torch.tensor([prompts[0][:begins]], device=device), use_cache=True).past_key_values
    cache.batch_repeat_interleave(len(rows))
    where = positions(mask)[:, begins:]
    hidden = model.model(ids, attention_mask=mask, position_ids=where, past_key_values=cache).last_hidden_state
    logits = model.lm_head(hidden[:, :-1][wanted[:, 1:]])
    return torch.nn.functional.cross_entropy(logits, ids[:, 1:][wanted[:, 1:]])


def train(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, given: argparse.Namespace) -> list[float]:
    """AdamW with a constant rate; the loss of each step."""
    task = ALL_TASKS[given.task]
    drawn = task.examples("train", given.seed, given.batch * given.steps)
    rng = random.Random(given.seed)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=given.lr, weight_decay=0.0)
    losses = []
    for step in range(given.steps):
        # `sum` and `call` have few problems: once all were seen, they are seen again
        batch = drawn[step * given.batch : (step + 1) * given.batch]
        batch = batch if len(batch) == given.batch else rng.sample(drawn, given.batch)
        with torch.autocast(given.device, dtype=torch.bfloat16, enabled=given.autocast):
            loss = loss_of(model, tokenizer, task, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(round(loss.item(), 4))
    return losses


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(ALL_TASKS), required=True)
    parser.add_argument("--out", type=Path, required=True, help="directory of the agent in bf16, or of its adapter")
    parser.add_argument("--base", type=Path, default=Path(".real/base"))
    parser.add_argument("--rank", type=int, default=0, help="rank of a LoRA adapter; 0: all weights are trained")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--autocast", action="store_true", help="multiply in bf16; weights stay in float32")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    return parser.parse_args()


def main() -> None:
    """Train one agent and write its log."""
    given = parse_arguments()
    torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)
    model = AutoModelForCausalLM.from_pretrained(given.base, dtype=torch.float32).to(given.device)
    tokenizer = AutoTokenizer.from_pretrained(given.base)
    trained: Any = model
    if given.rank:
        from peft import LoraConfig, get_peft_model  # full fine-tuning does not need it

        config = LoraConfig(r=given.rank, lora_alpha=2 * given.rank, target_modules="all-linear", task_type="CAUSAL_LM")
        trained = get_peft_model(model, config)
    start = time.perf_counter()
    losses = train(model, tokenizer, given)
    seconds = round(time.perf_counter() - start, 1)
    (trained if given.rank else trained.to(torch.bfloat16)).save_pretrained(given.out)
    tokenizer.save_pretrained(given.out)
    kept = {name: value for name, value in vars(given).items() if name not in ("base", "out")}
    log = {"settings": kept, "seconds": seconds, "losses": losses}
    (given.out / "train.json").write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")
    print(f"{given.task}: loss {losses[0]:.2f} -> {losses[-1]:.2f} in {seconds:.0f} s")


if __name__ == "__main__":
    main()
