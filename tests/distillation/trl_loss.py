"""`python trl_loss.py OUT`: the loss of a batch with several teachers, and that of each row with its teacher alone."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DistillationConfig, TrlParser

if __name__ == "__main__":
    out = Path(sys.argv[1])
    program = runpy.run_path(str(out / "train.py"))
    words = ["--config", str(out / "config.yaml"), "--use_cpu", "true", "--bf16", "false"]
    models, args = TrlParser((program["ScriptArguments"], DistillationConfig)).parse_args_and_config(words)
    tokenizer = AutoTokenizer.from_pretrained(models.student, padding_side="left")
    tokenizer.chat_template = models.chat_template
    teachers = {name: AutoModelForCausalLM.from_pretrained(path) for name, path in models.teachers.items()}
    trainer = program["MultiTeacherTrainer"](
        model=models.student,
        args=args,
        train_dataset=load_dataset("json", data_files=models.prompts, split="train"),
        processing_class=tokenizer,
        teachers=teachers,
    )
    rows = [json.loads(line) for line in Path(models.prompts).read_text().splitlines()]
    chosen = [next(row for row in rows if row["teacher_id"] == name) for name in (*teachers, *teachers)]
    trainer.model.train()
    batch = trainer._generate_and_score_completions(chosen)
    tokens = batch["completion_mask"].sum()
    student = trainer.accelerator.unwrap_model(trainer.model)

    def loss(inputs: dict[str, Any], count: Any) -> float:
        with torch.no_grad():
            return float(trainer._compute_loss(student, inputs, count)[0])

    def row(place: int, teacher: int) -> dict[str, Any]:
        cut = {key: each[place : place + 1] if getattr(each, "ndim", 0) else each for key, each in batch.items()}
        return cut | {"teacher": torch.tensor([teacher])}

    own = [loss(row(place, int(batch["teacher"][place])), tokens) for place in range(len(chosen))]
    other = [loss(row(place, (int(batch["teacher"][place]) + 1) % 3), tokens) for place in range(len(chosen))]
    print(json.dumps({"batch": loss(batch, tokens), "mean": loss(batch, None), "own": sum(own), "other": sum(other)}))
