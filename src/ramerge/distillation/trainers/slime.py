"""slime: `--use-opd` with a server for each teacher. Its reward function queries one server, which `teachers.py`
chooses.

Read from slime 0.3.1: `docs/en/advanced/on-policy-distillation.md`, `slime/rollout/on_policy_distillation.py`,
`slime/utils/arguments.py`, `slime/utils/data.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial

from ramerge.distillation.trainer import Lesson, TaskPrompt, Trainer, json_lines, script
from ramerge.sdk.text import dumped

_FIRST_PORT = 13141


def _rows(tasks: Sequence[TaskPrompt], *, as_text: bool) -> str:
    return json_lines(
        {
            "prompt": task.messages[0]["content"] if as_text else task.messages,
            "label": "" if task.truth is None else str(task.truth),
            "metadata": {"teacher": task.teacher},
        }
        for task in tasks
    )


def _files(lesson: Lesson) -> Mapping[str, str]:
    ports = {name: port for port, name in enumerate(lesson.teachers, _FIRST_PORT)}
    servers = "\n".join(
        f"CUDA_VISIBLE_DEVICES=$((FIRST_TEACHER_GPU + {number})) python3 -m sglang.launch_server --model-path "
        f"{shlex.quote(model)} --host 0.0.0.0 --port {ports[name]} --mem-fraction-static 0.6 &"
        for number, (name, model) in enumerate(lesson.teachers.items())
    )
    values = {
        "OUT": shlex.quote(str(lesson.out)),
        "STUDENT": shlex.quote(str(lesson.student)),
        "TEMPLATE": "   --apply-chat-template\n" if lesson.template is None else "",
        "MAX_NEW": str(lesson.max_new),
        "BATCH": str(min(16, len(lesson.tasks))),
        "SERVERS": servers,
        "PORTS": " ".join(map(str, ports.values())),
    }
    text = script("slime_run.sh")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    urls = {name: f"http://127.0.0.1:{port}/generate" for name, port in ports.items()}
    return {
        **lesson.datasets(partial(_rows, as_text=lesson.template is not None)),
        "run.sh": text,
        "teachers.py": script("slime_teachers.py"),
        "teachers.json": dumped(urls),
    }


SLIME = Trainer(
    "slime 0.3",
    _files,
    "bash {out}/run.sh",
    "export SLIME=/path/to/slime MODEL=qwen3-4B (a file of its scripts/models); GPUs as in run.sh",
)
