"""TRL. Its synchronous trainer has one teacher; a subclass in `train.py` uses the teacher of each completion's prompt.

Read from TRL 1.16.0: `trl/trainer/distillation_trainer.py`, `trl/experimental/async_distillation/`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from ramerge.distillation.trainer import Lesson, TaskPrompt, Trainer, as_yaml, json_lines, script

_FIRST_PORT = 8001
_EDIT = "A small rate, because a larger one first damages a merge that is already close to its teachers."


def _rows(tasks: Sequence[TaskPrompt]) -> str:
    return json_lines({"prompt": task.messages, "teacher_id": task.teacher} for task in tasks)


def _common_settings(lesson: Lesson) -> dict[str, object]:
    """Settings of both trainers."""
    template = {"chat_template": lesson.template} if lesson.template is not None else {}
    return {
        "student": str(lesson.student),
        "prompts": lesson.place("prompts.jsonl"),
        **template,
        "output_dir": lesson.place("trained"),
        "max_completion_length": lesson.max_new,
        "temperature": 1.0,
        "learning_rate": 5e-6,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 5,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "num_train_epochs": 1,
        "logging_steps": 1,
        "report_to": "none",
    }


def _local_files(lesson: Lesson) -> Mapping[str, str]:
    config = {
        **_common_settings(lesson),
        "teachers": dict(lesson.teachers),
        "teacher_model_init_kwargs": {"dtype": "auto"},
        "beta": 1.0,
    }
    text = f"DistillationConfig of TRL 1.16; student, teachers and prompts are train.py's. beta 1: reverse KL.\n{_EDIT}"
    return {**lesson.datasets(_rows), "config.yaml": as_yaml(config, text), "train.py": script("trl_train.py")}


def _server_settings(lesson: Lesson) -> Mapping[str, str]:
    urls = {name: f"http://localhost:{port}" for port, name in enumerate(lesson.teachers, _FIRST_PORT)}
    config = {**_common_settings(lesson), "teacher_server_urls": urls, "teacher_top_k": 16, "beta": 0.0}
    text = (
        "AsyncDistillationConfig of TRL 1.16, and student and prompts of train.py. beta 0: forward KL over each\n"
        "teacher's 16 likeliest tokens; at 1, TRL compares the sampled token only.\n"
        f"{_EDIT}"
    )
    lines = [
        "#!/usr/bin/env bash",
        "# vLLM servers of the student, which the trainer updates, and of the teachers: one GPU each. Edit the GPUs.",
        "set -euo pipefail",
        "CUDA_VISIBLE_DEVICES=0 VLLM_SERVER_DEV_MODE=1 vllm serve "
        f"{shlex.quote(str(lesson.student))} --port {_FIRST_PORT - 1} --logprobs-mode processed_logprobs "
        """--weight-transfer-config '{"backend": "nccl"}' &""",
    ]
    for number, model in enumerate(lesson.teachers.values()):
        lines.append(
            f"CUDA_VISIBLE_DEVICES={number + 1} vllm serve {shlex.quote(model)} --port {_FIRST_PORT + number} "
            "--logprobs-mode processed_logprobs --max-logprobs -1 &"
        )
    return {
        **lesson.datasets(_rows),
        "config.yaml": as_yaml(config, text),
        "train.py": script("trl_async_train.py"),
        "serve.sh": "\n".join([*lines, "wait", ""]),
    }


TRL = Trainer(
    "TRL 1.16 (DistillationTrainer)",
    _local_files,
    "python {out}/train.py --config {out}/config.yaml",
    "pip install 'trl==1.16.*'; all teachers are loaded next to the student; without a GPU, add --use_cpu true",
)
TRL_ASYNC = Trainer(
    "TRL 1.16 (AsyncDistillationTrainer)",
    _server_settings,
    "python {out}/train.py --config {out}/config.yaml",
    "pip install 'trl==1.16.*' vllm; bash serve.sh in the folder, in another terminal",
)
