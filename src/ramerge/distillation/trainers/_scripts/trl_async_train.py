"""Distill several served teachers into one student with TRL: python train.py --config config.yaml [--max_steps 100 ...]

Written by `ramerge handoff`, for TRL 1.16. The column `teacher_id` names the teacher of a prompt.
"""

from dataclasses import dataclass

from datasets import load_dataset
from transformers import AutoTokenizer
from trl import TrlParser
from trl.experimental.async_distillation import AsyncDistillationConfig, AsyncDistillationTrainer


@dataclass
class Models:
    """Where everything is, and how prompts are written if not by the tokenizer's chat template."""

    student: str
    prompts: str
    chat_template: str | None = None


if __name__ == "__main__":
    models, args = TrlParser((Models, AsyncDistillationConfig)).parse_args_and_config()
    tokenizer = AutoTokenizer.from_pretrained(models.student)
    tokenizer.chat_template = models.chat_template or tokenizer.chat_template
    trainer = AsyncDistillationTrainer(
        model=models.student,
        args=args,
        train_dataset=load_dataset("json", data_files=models.prompts, split="train"),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(args.output_dir)
