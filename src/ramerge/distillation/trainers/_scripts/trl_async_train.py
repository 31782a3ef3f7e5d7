"""Distill several served teachers into one student with TRL: python train.py --config config.yaml [--max_steps 100 ...]

Written by `ramerge handoff`, for TRL 1.16. The column `teacher_id` names the teacher of a prompt.
"""

from dataclasses import dataclass

from datasets import load_dataset
from transformers import AutoTokenizer
from trl import TrlParser
from trl.experimental.async_distillation import AsyncDistillationConfig, AsyncDistillationTrainer


@dataclass
class ScriptArguments:
    """Paths of the student and the prompts; optionally a chat template to use instead of the tokenizer's."""

    student: str
    prompts: str
    chat_template: str | None = None


if __name__ == "__main__":
    script_args, args = TrlParser((ScriptArguments, AsyncDistillationConfig)).parse_args_and_config()
    tokenizer = AutoTokenizer.from_pretrained(script_args.student)
    tokenizer.chat_template = script_args.chat_template or tokenizer.chat_template
    trainer = AsyncDistillationTrainer(
        model=script_args.student,
        args=args,
        train_dataset=load_dataset("json", data_files=script_args.prompts, split="train"),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(args.output_dir)
