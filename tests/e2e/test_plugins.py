"""Plug-ins: the example is installed and used everywhere, and those that cannot be used are named."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ramerge.core.registry import INTERFACE
from tests.checkpoints import read_checkpoint, simple, write_simple
from tests.messages import Messages
from tests.reference import NUMBERS

EXAMPLE = Path(__file__).parents[2] / "examples/plugin"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example's distribution, as pip installs it."""
    folder = tmp_path_factory.mktemp("plugin")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--disable-pip-version-check", "--target", folder, EXAMPLE], check=True)
    return folder


def distribution(folder: Path, name: str, group: str, row: str, source: str = "") -> Path:
    """A folder with a distribution of one entry point, and its module `bad`."""
    metadata = folder / f"{name}-2.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
    (metadata / "entry_points.txt").write_text(f"[ramerge.{group}]\n{row}\n")
    if source:
        (folder / f"{row.partition('=')[2].strip().partition(':')[0]}.py").write_text(source)
    return folder


def run(plugins: Path, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """`ramerge` with a folder of distributions on its path."""
    path = os.pathsep.join([str(plugins), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "ramerge", *map(str, arguments)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def test_the_example_is_listed_and_tested(installed: Path) -> None:
    assert "clipped_sum" in run(installed, "methods").stdout
    assert json.loads(run(installed, "methods", "clipped_sum", "--json").stdout)["clipped_sum"]["parameters"][
        "limit"
    ] == {
        "default": 1.5,
        "range": "0 to 10",
        "description": "how many times as long as the largest update a sum may be",
        "only": {},
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLE / "tests"]
    path = os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, cwd=installed, check=True)


def test_the_example_merges_from_flags_and_recipes(installed: Path, tmp_path: Path) -> None:
    names = write_simple(tmp_path, dtype="F32")
    numpy_folder = tmp_path / "npy"
    numpy_folder.mkdir()
    (numpy_folder / "config.json").write_text('{"model_type": "test"}')
    for name, tensor in read_checkpoint(tmp_path / "tool").items():
        np.save(numpy_folder / f"{name}.npy", tensor.bits.view(NUMBERS["F32"]))
    agents = [f"--agent={name}={numpy_folder if name == 'tool' else tmp_path / name}" for name in names]
    common = ["--base", tmp_path / "base", *agents, "--quiet"]
    run(installed, "merge", *common, "--method", "clipped_sum", "--set", "parameters.limit=1", tmp_path / "out")
    base, models = simple(0, "F32"), [read_checkpoint(tmp_path / name) for name in names]
    for key, tensor in read_checkpoint(tmp_path / "out").items():
        b = base[key].numbers(np.float32)
        moved = np.array([model[key].numbers(np.float32) - b for model in models])
        total = moved[0] + moved[1] + moved[2]
        bound = np.abs(moved).max(0)
        assert tensor.bits.tobytes() == (b + np.clip(total, -bound, bound)).tobytes()
    recipe = tmp_path / "recipe.json"
    listed = {name: str(numpy_folder if name == "tool" else tmp_path / name) for name in names}
    values = {"method": "clipped_sum", "base": str(tmp_path / "base"), "agents": listed, "parameters": {"limit": 1}}
    recipe.write_text(json.dumps(values))
    run(installed, "merge", recipe, tmp_path / "again", "--quiet")
    weights = [tmp_path / folder / "model.safetensors" for folder in ("out", "again")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    refused = run(installed, "merge", recipe, tmp_path / "no", "--set", "parameters.limit=11", code=2)
    assert "limit" in refused.stderr


def test_the_example_adds_a_kind_of_output(installed: Path, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    models = ["--base", tmp_path / "base", *(f"--agent={name}={tmp_path / name}" for name in names), "--quiet"]
    assert "--as-npy" in run(installed, "merge", "--help").stdout
    run(installed, "merge", *models, "--as-npy", tmp_path / "numpy")
    run(installed, "merge", *models, "--dtype", "float32", tmp_path / "out")
    expected = read_checkpoint(tmp_path / "out")
    assert {path.stem for path in (tmp_path / "numpy").glob("*.npy")} == expected.keys()
    for name, tensor in expected.items():
        assert np.load(tmp_path / "numpy" / f"{name}.npy").tobytes() == tensor.bits.tobytes()
    swept = run(installed, "plan", *models, "--as-npy", "--as-delta", tmp_path / "both", code=2)
    assert "choose one" in swept.stderr


def test_the_example_is_searched(installed: Path, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    score = "def score(folder):\n    return {'task': float('clipped' in (folder / 'ramerge.json').read_text())}\n"
    (tmp_path / "score.py").write_text(score)
    models = {"base": str(tmp_path / "base"), "agents": {name: str(tmp_path / name) for name in names}}
    (tmp_path / "recipe.json").write_text(json.dumps(models))
    asked = ["--vary", "method=ram,clipped_sum", "--score", f"{tmp_path / 'score.py'}:score", "--quiet"]
    run(installed, "search", tmp_path / "recipe.json", tmp_path / "found", *asked)
    assert json.loads((tmp_path / "found/best/ramerge.json").read_text())["method"] == "clipped_sum"


BROKEN = "bad = bad:METHOD"
METHOD = """
from ramerge.sdk.methods import merge_method

@merge_method("bad", source="nowhere"{more})
def METHOD(base, taus):
    return base
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import absent_module", "cannot be imported: ModuleNotFoundError: No module named 'absent_module'"),
        ("METHOD = 3", "bad:METHOD is a int, not a ramerge.core.methods.base.Method"),
        (METHOD.format(more=""), f"does not say which version of the plug-in interface .* give interface={INTERFACE}"),
        (
            "from ramerge.sdk.methods import merge_method\n"
            "def outer(k):\n    @merge_method('bad', source='x', interface=1)\n"
            "    def METHOD(base, taus):\n        return base * k\n    return METHOD\nMETHOD = outer(2)",
            "uses k of the function around it; a formula may use numbers",
        ),
        (METHOD.format(more=", interface=99"), "is written for version 99 of the plug-in interface"),
    ],
)
def test_broken_plugin_warns_in_lists_fails_in_use(source: str, said: str, tmp_path: Path) -> None:
    plugins = distribution(tmp_path, "bad-plugin", "methods", BROKEN, source)
    listed = run(plugins, "methods")
    assert "ram+" in listed.stdout and "bad" not in listed.stdout
    [warning] = listed.stderr.splitlines()
    assert re.search(f"^warning: method 'bad' of bad-plugin 2.0.*{said}", warning)
    used = run(plugins, "plan", "--base", "base", "--agent", "a=a", "--method", "bad", code=2)
    assert "error: method 'bad' of bad-plugin 2.0" in used.stderr
    run(plugins, "--version")


FORMULA = """
import numpy as np
from ramerge.sdk.methods import merge_method

TABLE = {"a": 1}

@merge_method("bad", source="nowhere", interface=1%s)
def METHOD(base, taus):
    "Bad."
    %s
"""
USABLE = "a formula may use numbers"


@pytest.mark.full
@pytest.mark.parametrize(
    ("more", "line", "message"),
    [
        (
            "",
            "return base + np.zeros(3)[0]",
            f"bad-plugin 2.0: METHOD cannot be compiled: FILE, line 10: LINE: .*{USABLE}",
        ),
        (
            "",
            "return base + [t for t in taus][0]",
            f"bad-plugin 2.0: METHOD .* line 10: LINE: it needs memory.*{USABLE}",
        ),
        ("", "return base + absent", f"bad-plugin 2.0: METHOD .*name 'absent' is not defined.*{USABLE}"),
        ("", "return base + TABLE['a']", f"bad-plugin 2.0: METHOD .*cannot use TABLE, a dict; {USABLE}"),
        ("", "base + 1", f"bad-plugin 2.0: METHOD .*Cannot cast none to float32; {USABLE}"),
        (
            ", derived=lambda parameters, agents: {}['x']",
            "return base",
            r"KeyError: 'x'; this is a defect of bad-plugin 2.0 \(FILE, line 7\): please report",
        ),
    ],
)
def test_defects_of_a_plugin_name_it(more: str, line: str, message: str, tmp_path: Path) -> None:
    plugins = distribution(tmp_path / "plugins", "bad-plugin", "methods", BROKEN, FORMULA % (more, line))
    names = write_simple(tmp_path)
    agents = [f"--agent={name}={tmp_path / name}" for name in names]
    merge = ["merge", "--base", tmp_path / "base", *agents, "--method", "bad", "--quiet", tmp_path / "out"]
    done = run(plugins, *merge, code=1 if more else 2)
    file = re.escape(str(plugins / "bad.py"))
    [error] = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
    assert re.search(message.replace("FILE", file).replace("LINE", re.escape(line)), error), error
    assert ("defect of ramerge" in done.stderr, (tmp_path / "out").exists()) == (False, False)


def test_a_name_that_is_taken_names_both_distributions(tmp_path: Path, messages: Messages) -> None:
    plugins = distribution(tmp_path, "rival", "methods", "ties = rival:TIES")
    done = run(plugins, "plan", "--base", "base", "--agent", "a=a", "--method", "ties", code=2)
    messages.check(done.stderr)
    listed = run(plugins, "methods")
    assert "ties" not in listed.stdout.split() and "rival 2.0" in listed.stderr


def test_a_command_of_a_plugin(tmp_path: Path) -> None:
    source = "import click\n\n@click.command(short_help='Greet.')\ndef greet():\n    click.echo('hello')\n"
    plugins = distribution(tmp_path, "greeting", "commands", "greet = greeting:greet", source)
    assert "Greet." in run(plugins, "--help").stdout
    assert run(plugins, "greet").stdout == "hello\n"
