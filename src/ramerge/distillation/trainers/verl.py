"""verl: `main_ppo` with a teacher for each agent in `distillation.teacher_models`, selected by `data_source`.

Read from verl 0.10.0.dev: `verl/workers/config/distillation.py`, `verl/trainer/config/`,
`verl/utils/dataset/rl_dataset.py` and `examples/on_policy_distillation_trainer/run_qwen3_8b_mopd_fsdp.sh`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ramerge.distillation.trainer import Lesson, TaskPrompt, Trainer, as_yaml, json_lines, script

_MOST_OF_PROMPT = 2048


def _rows(tasks: Sequence[TaskPrompt]) -> str:
    return json_lines(
        {
            "data_source": task.teacher,
            "prompt": task.messages,
            "ability": task.teacher,
            "reward_model": {"style": "rule", "ground_truth": "" if task.truth is None else str(task.truth)},
            "extra_info": {"index": number},
        }
        for number, task in enumerate(tasks)
    )


def _files(lesson: Lesson) -> Mapping[str, str]:
    length = _MOST_OF_PROMPT + lesson.max_new + 1
    config = {
        "defaults": ["ppo_trainer", "_self_"],
        "algorithm": {"adv_estimator": "grpo"},
        **_student_config(lesson, length),
        "reward": {"custom_reward_function": {"path": lesson.place("reward.py"), "name": "compute_score"}},
        "distillation": _teacher_configs(lesson, length),
        "trainer": {
            "project_name": "ramerge_mopd",
            "experiment_name": lesson.out.name,
            "default_local_dir": lesson.place("trained"),
            "logger": ["console"],
            "n_gpus_per_node": 1,
            "nnodes": 1,
            "val_before_train": False,
            "test_freq": -1,
            "save_freq": 20,
            "total_epochs": 1,
        },
    }
    text = (
        "Overrides of verl's ppo_trainer.yaml. The student trains on trainer.n_gpus_per_node GPUs, and each teacher\n"
        "has one more: distillation.n_gpus_per_node is the sum of num_replicas x tensor_model_parallel_size.\n"
        "For a reward next to the teachers, write reward.py and set use_task_rewards."
    )
    if not lesson.held_out:
        text += "\nval_files are the training prompts; `ramerge handoff --hold-out N` holds some prompts out."
    return {**lesson.datasets(_rows), "mopd.yaml": as_yaml(config, text), "reward.py": script("verl_reward.py")}


def _student_config(lesson: Lesson, length: int) -> dict[str, object]:
    """Configure dataset, policy and sampling. `length`: tokens of prompt and reply, plus one."""
    batch, most = min(128, len(lesson.tasks)), max(24576, length)
    template = {"apply_chat_template_kwargs": {"chat_template": lesson.template}} if lesson.template is not None else {}
    return {
        "data": {
            "train_files": [lesson.place("prompts.jsonl")],
            "val_files": [lesson.validation],
            "train_batch_size": batch,
            "max_prompt_length": _MOST_OF_PROMPT,
            "max_response_length": lesson.max_new,
            "filter_overlong_prompts": True,
            **template,
        },
        "actor_rollout_ref": {
            "model": {"path": str(lesson.student)},
            "actor": {
                "optim": {"lr": 1e-6},
                "ppo_mini_batch_size": batch,
                "use_dynamic_bsz": True,
                "ppo_max_token_len_per_gpu": most,
            },
            "rollout": {
                **_engine_config(length),
                "n": 1,
                "log_prob_use_dynamic_bsz": True,
                "log_prob_max_token_len_per_gpu": most,
            },
        },
    }


def _teacher_configs(lesson: Lesson, length: int) -> dict[str, object]:
    inference = {"prompt_length": _MOST_OF_PROMPT, "response_length": lesson.max_new}
    return {
        "enabled": True,
        "n_gpus_per_node": len(lesson.teachers),
        "nnodes": 1,
        "teacher_key": "data_source",
        "teacher_models": {
            f"teacher_{number}": {
                "key": name,
                "model_path": model,
                "num_replicas": 1,
                "inference": {**_engine_config(length), **inference},
            }
            for number, (name, model) in enumerate(lesson.teachers.items(), 1)
        },
        "distillation_loss": {
            "loss_mode": "k1",
            "use_policy_gradient": True,
            "use_task_rewards": False,
            "loss_max_clamp": 10.0,
            "log_prob_min_clamp": -10.0,
        },
    }


def _engine_config(length: int) -> dict[str, object]:
    size = {"tensor_model_parallel_size": 1, "gpu_memory_utilization": 0.4}
    return {"name": "vllm", **size, "max_model_len": length}


VERL = Trainer(
    "verl 0.10",
    _files,
    "python -m verl.trainer.main_ppo --config-dir {out} --config-name mopd",
    "verl with vLLM, and a GPU for the student and for each teacher",
)
