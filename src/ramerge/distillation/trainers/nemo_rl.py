"""NeMo-RL: GRPO with `adv_estimator: opd`. NeMo Gym samples replies, and an agent's name there selects its teacher.

Read from NeMo-RL 0.6.0: `nemo_rl/algorithms/opd.py`, `nemo_rl/utils/config.py`, `docs/about/algorithms/mopd.md`; and
from NeMo Gym: `resources_servers/string_match`, `responses_api_agents/simple_agent`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy

from ramerge.distillation.trainer import Lesson, TaskPrompt, Trainer, as_yaml, json_lines, script

_RECIPE = "examples/configs/recipes/llm/mopd-qwen3-1.7b-3n8g-megatron-pack.yaml"
_SERVER = "string_match"


def _agent_name(teacher: str) -> str:
    """Return the name of a teacher's agent in NeMo Gym, which no server there has."""
    return f"ramerge_{teacher}"


def _rows(tasks: Sequence[TaskPrompt]) -> str:
    return json_lines(
        {
            "responses_create_params": {"input": task.messages},
            "expected_answer": "" if task.truth is None else str(task.truth),
            "extraction_mode": "full_response",
            "agent_ref": {"type": "responses_api_agents", "name": _agent_name(task.teacher)},
        }
        for task in tasks
    )


def _files(lesson: Lesson) -> Mapping[str, str]:
    tokenizer = {"tokenizer": {"chat_template": lesson.template}} if lesson.template is not None else {}
    config = {
        "defaults": f"${{oc.env:NEMO_RL}}/{_RECIPE}",
        "policy": {
            "model_name": str(lesson.student),
            **tokenizer,
            "generation": {"max_new_tokens": lesson.max_new},
        },
        "grpo": {"adv_estimator": {"name": "opd"}, "max_num_steps": 100},
        "checkpointing": {"enabled": True, "checkpoint_dir": lesson.place("trained"), "save_period": 20},
        "data": {"train": {"data_path": lesson.place("prompts.jsonl")}, "validation": {"data_path": lesson.validation}},
        "env": _environment_config(lesson),
        "cluster": {"gpus_per_node": 8, "num_nodes": 2 + len(lesson.teachers)},
        "on_policy_distillation": _teacher_configs(lesson),
    }
    text = (
        "Overrides of NeMo-RL's reference recipe for MOPD, in the checkout that the variable NEMO_RL names. One node\n"
        "trains, one samples, and each teacher has one more. Parallelism and lengths are the recipe's: edit them."
    )
    return {
        **lesson.datasets(_rows),
        "mopd.yaml": as_yaml(config, text),
        "run.sh": script("nemo_rl_run.sh"),
    }


def _environment_config(lesson: Lesson) -> dict[str, object]:
    """Define an agent of NeMo Gym for each teacher, all with one server, whose rewards are not used."""
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": _SERVER},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    return {
        "_override_": True,
        "should_use_nemo_gym": True,
        "nemo_gym": {
            "config_paths": [
                "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml",
                f"resources_servers/{_SERVER}/configs/{_SERVER}.yaml",
            ],
            **{
                _agent_name(name): {"responses_api_agents": {"simple_agent": deepcopy(agent)}}
                for name in lesson.teachers
            },
        },
    }


def _teacher_configs(lesson: Lesson) -> dict[str, object]:
    return {
        "_override_": True,
        "enabled": True,
        "teacher_model_by_agent_name": {_agent_name(name): model for name, model in lesson.teachers.items()},
        "strict_agent_name_match": True,
        "deduplicate_shared_teacher_checkpoints": True,
        "non_colocated_teachers": {
            "enabled": True,
            "default_teacher_cfg": {
                "tensor_model_parallel_size": 2,
                "num_nodes": 1,
                "gpus_per_node": 8,
                "precision": "bf16",
                "micro_batch_size": 1,
            },
        },
    }


NEMO_RL = Trainer(
    "NeMo-RL 0.6",
    _files,
    "bash {out}/run.sh",
    "export NEMO_RL=/path/to/RL (with NeMo Gym); it takes nodes of GPUs for the student, its sampling and each teacher",
)
