"""`python trl_async.py OUT`: two steps of TRL's asynchronous trainer on a CPU, with models in place of its servers.

The trainer, its configuration, dataset and loss are TRL's. Where it would ask vLLM servers, the student replies and the
teacher that a row names scores, both in this process.
"""

from __future__ import annotations

import json
import queue
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import TrlParser
from trl.experimental.async_distillation import AsyncDistillationConfig, AsyncDistillationTrainer
from trl.experimental.async_distillation.async_rollout_worker import RolloutSample


class Worker:
    """A rollout worker without servers."""

    def __init__(self, dataset: Any, tokenizer: Any, student: Any, teachers: dict[str, Any], top: int) -> None:
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue()
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self.scored: dict[str, int] = {}
        self._version = 0
        self._made = lambda: [
            self._sample(n, row, tokenizer, student, teachers, top) for n, row in enumerate([*dataset] * 2)
        ]

    def start(self) -> None:
        for sample in self._made():
            self.rollout_buffer.put_nowait(sample)

    def stop(self) -> None:
        """Nothing runs."""

    def update_model_version(self, model_version: int) -> None:
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """It is this process."""

    def _sample(
        self, number: int, row: dict[str, Any], tokenizer: Any, student: Any, teachers: dict[str, Any], top: int
    ) -> RolloutSample:
        name = row["teacher_id"]
        self.scored[name] = self.scored.get(name, 0) + 1
        prompt = tokenizer.apply_chat_template(row["prompt"], return_dict=False, add_generation_prompt=True)
        with torch.no_grad():
            ids = student.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=True)[0]
            scores = teachers[name](ids[None]).logits[0].float().log_softmax(-1)
        candidates = np.full((len(ids), top + 1), -1, dtype=np.int64)
        values = np.full((len(ids), top + 1), -np.inf, dtype=np.float32)
        for place in range(len(prompt), len(ids)):
            best = scores[place - 1].topk(top)
            listed = [*best.indices.tolist()]
            listed += [] if int(ids[place]) in listed else [int(ids[place])]
            candidates[place, : len(listed)] = listed
            values[place, : len(listed)] = scores[place - 1][listed].numpy()
        mask = np.asarray([0] * len(prompt) + [1] * (len(ids) - len(prompt)), dtype=np.int64)
        reply = [{"role": "assistant", "content": tokenizer.decode(ids[len(prompt) :])}]
        return RolloutSample(
            row["prompt"], reply, ids.numpy(), mask, candidates, values, self._version, {}, name, number
        )


class NoTransfer:
    """No server gets the student's weights."""

    def init_weight_transfer(self) -> None: ...
    def pause(self) -> None: ...
    def send_weights(self, iterator: Any) -> None: ...
    def resume(self) -> None: ...
    def destroy(self) -> None: ...


if __name__ == "__main__":
    torch.cuda.get_device_name = lambda *_: "a CPU"  # TRL 1.16 looks its peak up without asking whether there is a GPU
    out = Path(sys.argv[1])
    program = runpy.run_path(str(out / "train.py"))
    words = ["--config", str(out / "config.yaml"), "--use_cpu", "true", "--bf16", "false", "--max_steps", "2"]
    words += [
        "--token_budget",
        "0",
        "--gradient_accumulation_steps",
        "1",
        "--model_init_kwargs",
        '{"attn_implementation": "eager"}',
    ]
    models, args = TrlParser((program["ScriptArguments"], AsyncDistillationConfig)).parse_args_and_config(words)
    tokenizer = AutoTokenizer.from_pretrained(models.student)
    tokenizer.chat_template = models.chat_template
    paths = json.loads((out / "handoff.json").read_text())["teachers"]
    dataset = load_dataset("json", data_files=models.prompts, split="train").shuffle(seed=0)
    assert args.teacher_server_urls.keys() == paths.keys()
    worker = Worker(
        dataset,
        tokenizer,
        AutoModelForCausalLM.from_pretrained(models.student, dtype="float32"),
        {name: AutoModelForCausalLM.from_pretrained(path, dtype="float32") for name, path in paths.items()},
        args.teacher_top_k,
    )
    trainer = AsyncDistillationTrainer(
        model=models.student,
        args=args,
        train_dataset=dataset,
        processing_class=tokenizer,
        rollout_worker=worker,
        weight_transfer=NoTransfer(),
    )
    trainer.train()
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    print(json.dumps({"steps": trainer.state.global_step, "losses": losses, "scored": worker.scored}))
