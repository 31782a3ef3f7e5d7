"""Distill several teachers into one student with TRL: python train.py --config config.yaml [--learning_rate 1e-6 ...]

Written by `ramerge handoff`. TRL's trainer has one teacher; here each completion is compared with the teacher of its
prompt. It overrides two methods of TRL 1.16 that other versions may call differently.
"""

from dataclasses import dataclass
from typing import Any

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DistillationConfig, DistillationTrainer, TrlParser


@dataclass
class ScriptArguments:
    """Paths of the student, the prompts and the teachers; optionally a template to use instead of the tokenizer's."""

    student: str
    prompts: str
    chat_template: str | None = None
    teachers: dict[str, str] | str | None = None


class MultiTeacherTrainer(DistillationTrainer):
    """Multi-teacher on-policy distillation: the column `teacher_id` names the teacher of a prompt."""

    def __init__(self, *words: Any, teachers: dict[str, Any], **more: Any) -> None:
        super().__init__(*words, **more)
        vocabulary = self.model.config.get_text_config().vocab_size
        for name, teacher in teachers.items():
            if teacher.config.get_text_config().vocab_size != vocabulary:
                raise ValueError(f"teacher {name}: has another vocabulary than the student")
        self._names = list(teachers)
        self._teachers = [self.accelerator.prepare_model(each, evaluation_mode=True) for each in teachers.values()]

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        places = [self._names.index(row["teacher_id"]) for row in inputs]
        return batch | {"teacher": torch.tensor(places, device=batch["completion_ids"].device)}

    def _compute_loss(self, student: Any, inputs: dict[str, Any], num_items_in_batch: Any) -> Any:
        if num_items_in_batch is None:
            num_items_in_batch = inputs["completion_mask"].sum()
        parts = []
        for place, teacher in enumerate(self._teachers):
            if (rows := inputs["teacher"] == place).any():
                self.teacher_model = teacher
                own = {key: value[rows] if getattr(value, "ndim", 0) else value for key, value in inputs.items()}
                parts.append(super()._compute_loss(student, own, num_items_in_batch))
        loss, entropy, tokens = (sum(each) for each in zip(*parts, strict=True))
        return loss, entropy, tokens


if __name__ == "__main__":
    script_args, args = TrlParser((ScriptArguments, DistillationConfig)).parse_args_and_config()
    tokenizer = AutoTokenizer.from_pretrained(script_args.student, padding_side="left")
    tokenizer.chat_template = script_args.chat_template or tokenizer.chat_template
    trainer = MultiTeacherTrainer(
        model=script_args.student,
        args=args,
        train_dataset=load_dataset("json", data_files=script_args.prompts, split="train"),
        processing_class=tokenizer,
        teachers={
            name: AutoModelForCausalLM.from_pretrained(path, **(args.teacher_model_init_kwargs or {}))
            for name, path in script_args.teachers.items()
        },
    )
    trainer.train()
    trainer.save_model(args.output_dir)
