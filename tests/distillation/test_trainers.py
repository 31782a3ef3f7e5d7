"""Configurations of trainers that need GPUs, against keys that were read from their sources (`trainer_keys.json`)."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

import ramerge
from ramerge.distillation.trainer import TRAINERS
from ramerge.distillation.trainers import nemo_rl, slime, verl
from tests.distillation.models import AGENTS, PROMPTS
from tests.distillation.models import merged as merged  # a fixture

KEYS: dict[str, Any] = json.loads(Path(__file__).with_name("trainer_keys.json").read_text())


def handed(trainer: str, merged: Path) -> Path:
    ramerge.handoff(merged, "out", trainer=trainer, prompts=PROMPTS, settings=ramerge.HandoffSettings(max_new=64))
    return Path("out")


def config_of(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = YAML(typ="safe").load(folder / "mopd.yaml")
    return values


def leaves(values: dict[str, Any], *at: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, *at, name)
        else:
            yield ".".join((*at, name))


def test_modules_name_the_versions_of_the_lists() -> None:
    for module, name in ((verl, "verl"), (nemo_rl, "nemo-rl"), (slime, "slime")):
        version = KEYS[name]["version"].partition(",")[0]
        assert f"Read from {version}" in (module.__doc__ or "")
        assert version.startswith(TRAINERS[name].title)


def test_verl(merged: Path) -> None:
    config = config_of(handed("verl", merged))
    assert config.pop("defaults") == ["ppo_trainer", "_self_"]
    teachers = config["distillation"].pop("teacher_models")
    assert config["data"].pop("apply_chat_template_kwargs").keys() == {"chat_template"}
    assert set(leaves(config)) <= set(KEYS["verl"]["keys"])
    assert {each["key"]: each["model_path"] for each in teachers.values()} == {
        name: str(Path(model).resolve()) for name, model in AGENTS.items()
    }
    assert "teacher_model" not in teachers  # verl drops the entry of this name where there are others
    for teacher in teachers.values():
        assert set(leaves(teacher)) <= set(KEYS["verl"]["teacher"])
        inference = teacher["inference"]
        assert inference["prompt_length"] + inference["response_length"] + 1 <= inference["max_model_len"]
    sizes = [each["num_replicas"] * each["inference"]["tensor_model_parallel_size"] for each in teachers.values()]
    assert sum(sizes) == config["distillation"]["n_gpus_per_node"] * config["distillation"]["nnodes"]
    loss = config["distillation"]["distillation_loss"]
    assert loss["use_policy_gradient"] and loss["loss_mode"] == "k1"  # verl refuses k1 without policy gradients
    score: dict[str, Any] = {}
    exec(Path(config["reward"]["custom_reward_function"]["path"]).read_text(), score)  # noqa: S102  # a file of ours
    assert score["compute_score"]("code", "1", "2", extra_info={}) == 0.0


def test_nemo_rl(merged: Path) -> None:
    out = handed("nemo-rl", merged)
    config = config_of(out)
    assert config.keys() <= set(KEYS["nemo-rl"]["sections"])
    assert re.fullmatch(r"\$\{oc\.env:NEMO_RL\}/examples/configs/recipes/llm/mopd-[\w.-]+\.yaml", config["defaults"])
    distillation = config["on_policy_distillation"]
    assert distillation.pop("_override_") and config["env"].pop("_override_")
    assert distillation.keys() <= set(KEYS["nemo-rl"]["on_policy_distillation"])
    assert distillation["non_colocated_teachers"]["default_teacher_cfg"].keys() <= set(
        KEYS["nemo-rl"]["default_teacher_cfg"]
    )
    gym = {name for name, value in config["env"]["nemo_gym"].items() if "responses_api_agents" in value}
    rows = [json.loads(line) for line in (out / "prompts.jsonl").read_text().splitlines()]
    asked = {row["agent_ref"]["name"] for row in rows}
    assert gym == asked == distillation["teacher_model_by_agent_name"].keys()
    subprocess.run(["bash", "-n", out / "run.sh"], check=True)


def test_slime(merged: Path) -> None:
    out = handed("slime", merged)
    text = (out / "run.sh").read_text()
    assert not re.search(r"@[A-Z_]+@", text)
    arguments = text.partition("ARGS=(\n")[2].partition("\n)\n")[0]
    known = {*KEYS["slime"]["arguments"], *KEYS["slime"]["megatron"]}
    assert set(re.findall(r"^ +(--[\w-]+)", arguments, re.MULTILINE)) <= known
    assert all(f"--model-path {Path(model).resolve()} " in text for model in AGENTS.values())
    urls = json.loads((out / "teachers.json").read_text())
    assert urls.keys() == AGENTS.keys()
    assert [f"--port {re.findall(r':([0-9]+)/', url)[0]} " in text for url in urls.values()] == [True] * 3
    assert "--apply-chat-template" not in text  # the prompts are text
    compile((out / "teachers.py").read_text(), "teachers.py", "exec")
    subprocess.run(["bash", "-n", out / "run.sh"], check=True)


def test_servers_of_trl(merged: Path) -> None:
    out = handed("trl-async", merged)
    text = (out / "serve.sh").read_text()
    config: dict[str, Any] = YAML(typ="safe").load(out / "config.yaml")
    for name, model in AGENTS.items():
        port = config["teacher_server_urls"][name].rpartition(":")[2]
        assert f"vllm serve {Path(model).resolve()} --port {port} " in text
    subprocess.run(["bash", "-n", out / "serve.sh"], check=True)
