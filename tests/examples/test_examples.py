"""Every example runs on tiny models and prints what its README shows."""

import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt
from numpy.typing import NDArray
from ruamel.yaml import YAML

from ramerge.cli.main import cli
from ramerge.demo import run as demo
from tests.checkpoints import floats, read_checkpoint, write_checkpoint
from tests.formats.test_lora import write_adapter
from tests.reference import Stored

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(path.parent.name for path in EXAMPLES.glob("*/README.md") if path.parent.name != "plugin")
FULL = {"prompts": "torch", "trainer_loop": "torch", "slurm_ray": "ray"}
ROUNDED = {"prompts", "trainer_loop"}  # their figures depend on the version of torch


def model(name: str) -> dict[str, Stored]:
    return read_checkpoint(demo.AGENTS / name)


def vision() -> None:
    """A vision model whose text model is the demo's base."""
    text = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in model("base").items()}
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "text_config": json.loads((demo.AGENTS / "base" / "config.json").read_text()),
    }
    tower = {"model.visual.patch_embed.proj.weight": floats(noise(0, (32, 48)))}
    write_checkpoint(Path("vision-model"), {**text, **tower}, config=config)


def moe() -> None:
    """A layer of four experts in one tensor, and agents that have one tensor for each."""
    shapes = {"experts.gate_up_proj": (4, 64, 32), "experts.down_proj": (4, 32, 32), "gate.weight": (4, 32)}
    base = {name: noise(place, shape) for place, (name, shape) in enumerate(shapes.items())}
    models = {"moe": base}
    for name, seed in (("moe-coder", 10), ("moe-tool", 20)):
        updates = {key: noise(seed, value.shape) for key, value in base.items()}
        models[name] = experts_of({key: base[key] + update * (update > 0.05) for key, update in updates.items()})
    for name, values in models.items():
        tensors = {f"model.layers.0.mlp.{key}": floats(value) for key, value in values.items()}
        write_checkpoint(Path(name), tensors, config={"model_type": "qwen3_moe", "num_experts": 4})


def experts_of(values: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """The same values with a tensor for each expert and projection."""
    found = {"gate.weight": values["gate.weight"]}
    for expert in range(4):
        gate, up = np.split(values["experts.gate_up_proj"][expert], 2)
        down = values["experts.down_proj"][expert]
        for key, value in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
            found[f"experts.{expert}.{key}.weight"] = value
    return found


def adapters() -> None:
    for place, name in enumerate(("code-lora", "tool-lora")):
        factors = {}
        for layer in range(4):
            module = f"base_model.model.model.layers.{layer}.mlp.up_proj"
            factors[f"{module}.lora_A.weight"] = floats(noise(2 * place, (4, 96)), "F32")
            factors[f"{module}.lora_B.weight"] = floats(noise(2 * place + 1, (192, 4)), "F32")
        write_adapter(Path(name), factors, r=4, lora_alpha=8, target_modules=["up_proj"])


def checkpoints() -> None:
    for step, name in ((200, "tool"), (300, "coder")):
        shutil.copytree(demo.AGENTS / name, f"runs/code/global_step_{step}")


def slurm_ray() -> None:
    """Slurm's commands, for one node: `srun` drops its own flags, and Ray is a cluster of this machine."""
    programs = {
        "sbatch": 'SLURM_JOB_NODELIST=localhost SLURM_JOB_NUM_NODES=1 RAY_CLUSTER=local exec bash "$@"',
        "scontrol": "echo localhost",
        "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
        "ray": 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"',
    }
    for name, text in programs.items():
        path = Path("bin", name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)


def action() -> None:
    shutil.copy(EXAMPLES / "adapters" / "recipe.yaml", "recipe.yaml")
    adapters()


WRITE: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (vision, moe, adapters, checkpoints, slurm_ray, action)
}


def noise(seed: int, shape: tuple[int, ...]) -> NDArray:
    return np.random.default_rng(seed).normal(0, 0.05, shape).astype(np.float32)


def steady(line: str, folder: str) -> str:
    """A line without seconds and memory, which differ from run to run."""
    line = re.sub(r"in [\d.]+ s and [\d.]+ [kMG]B", "in S and M", line.replace(f"{Path.cwd()}/", "./"))
    return re.sub(r"[+-]?\d+\.\d+", "N", re.sub(" +", " ", line)) if folder in ROUNDED else line


def run(line: str) -> str:
    program, *words = shlex.split(line, comments=True)
    if program == "ramerge":
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 0, f"{line}: {result.exception}\n{result.output}"
        return result.output
    if program == "python":
        with redirect_stdout(io.StringIO()) as output:
            runpy.run_path(words[0], run_name="__main__")
        return output.getvalue()
    path = os.pathsep.join([str(Path("bin").resolve()), str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [shutil.which(program, path=path) or program, *words]
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "folder",
    [pytest.param(each, marks=pytest.mark.needs(FULL[each]) if each in FULL else []) for each in FOLDERS],
)
def test_an_example_prints_what_its_readme_shows(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [path for path in sorted((EXAMPLES / folder).iterdir()) if path.is_file()]
    assert len(files) == 2 and files[0].name == "README.md"
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    shutil.copy(files[1], tmp_path)
    demo.copy_models(tmp_path, lambda _line: None)
    WRITE.get(folder, lambda: None)()
    printed = ""
    blocks = [each for each in MarkdownIt("commonmark").parse(files[0].read_text()) if each.type == "fence"]
    assert {block.info for block in blocks} >= {"sh", "text"}
    for block in blocks:
        if block.info == "sh" and not block.content.startswith("# needs"):
            printed = "".join(map(run, block.content.replace("\\\n", " ").splitlines()))
        elif block.info == "text":
            lines = {steady(line, folder) for line in printed.splitlines()}
            shown = [line for line in block.content.splitlines() if line != "..."]
            assert shown and [line for line in shown if steady(line, folder) not in lines] == [], printed


def test_action_steps_match_its_readme() -> None:
    workflow = YAML(typ="safe").load(EXAMPLES / "action" / "merge.yml")
    steps = workflow["jobs"]["merge"]["steps"]
    own = [step["run"].replace('"$OUT"', "MERGED") for step in steps if step.get("run", "").startswith("ramerge")]
    assert own and "\n".join(own) in (EXAMPLES / "action" / "README.md").read_text()
    pinned = (EXAMPLES.parent / ".github" / "workflows" / "ci.yml").read_text()
    assert [step["uses"] for step in steps if step.get("uses", pinned) not in pinned] == []


def test_every_example_is_listed() -> None:
    text = (EXAMPLES / "README.md").read_text()
    assert [folder for folder in FOLDERS if f"]({folder}/README.md)" not in text] == []
