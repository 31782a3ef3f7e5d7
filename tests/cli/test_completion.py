"""What a shell offers after Tab, asked as a shell asks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from ramerge.cli.main import cli


def offered(words: list[str], begun: str) -> list[str]:
    found = BashComplete(cli, {}, "ramerge", "_RAMERGE_COMPLETE").get_completions(words, begun)
    return [item.value if item.type == "plain" else f"<{item.type}>" for item in found]


@pytest.mark.parametrize(
    ("words", "begun", "expected"),
    [
        (["merge"], "re", ["<file>"]),
        (["merge", "--base"], "", ["<dir>"]),
        (["merge", "--method"], "ram", ["ram", "ram+", "ram+s"]),
        (["methods"], "dare", ["dare", "dare_ties"]),
        (["merge", "--method", "ram", "--preset"], "", ["paper"]),
        (["merge", "--preset"], "of", ["official"]),
        (["merge", "--set"], "parameters.al", ["parameters.alpha="]),
        (["merge", "--set"], "allow.n", ["allow.non_finite="]),
        (["sweep", "--vary"], "parameters.epsi", ["parameters.epsilon="]),
        (["eval", "--task"], "ramerge/co", ["ramerge/coding"]),
    ],
)
def test_words_are_offered(words: list[str], begun: str, expected: list[str]) -> None:
    assert offered(words, begun) == expected


def test_dtypes_are_offered() -> None:
    assert {"bfloat16", "float32"} <= set(offered(["plan", "--dtype"], ""))


def test_folders_of_agents_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("coder", "cook", "tool", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert offered(["merge", "--agent"], "code=co") == ["code=coder/", "code=cook/"]
    assert offered(["merge", "--agent"], f"code={tmp_path}/t") == [f"code={tmp_path}/tool/"]
    assert offered(["merge", "--agent"], "code=absent/") == []


def test_a_shell_gets_its_script_and_its_answers_without_numba() -> None:
    command = [sys.executable, "-c", "import sys; sys.argv[0] = 'ramerge'; from ramerge.cli.main import main; main()"]
    for shell in ("bash", "zsh", "fish"):
        environment = {**os.environ, "_RAMERGE_COMPLETE": f"{shell}_source"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "") or "Bash" in done.stderr
        assert "_RAMERGE_COMPLETE" in done.stdout
    program = "import sys; from tests.cli.test_completion import offered; offered(['merge', '--set'], 'p'); "
    program += "assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
