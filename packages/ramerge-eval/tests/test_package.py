"""The package: examples of its public names, and help without Inspect."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from tests.commands import ramerge as command

import ramerge
import ramerge_eval

pytestmark = pytest.mark.full  # Inspect

_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", ramerge_eval.__all__)
def test_every_public_name_has_an_example_that_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("coder").mkdir()
    text = inspect.getdoc(getattr(ramerge_eval, name)) or ""
    assert "Example:\n" in text
    runner, output = doctest.DocTestRunner(optionflags=_FLAGS), list[str]()
    known = {"ramerge": ramerge, "ramerge_eval": ramerge_eval}
    runner.run(doctest.DocTestParser().get_doctest(text, known, name, None, 0), out=output.append)
    assert not runner.summarize(verbose=False).failed, "".join(output)


def test_settings_of_another_kind_are_refused() -> None:
    request, server = ramerge_eval.EvaluationRequest(["x"]), ramerge.ModelServer("vllm")
    with pytest.raises(ramerge.RecipeError, match=r"^request: .*EvaluationRequest"):
        ramerge_eval.evaluate("logs", [], {}, ramerge.ModelAccess())  # type: ignore[arg-type]
    with pytest.raises(ramerge.RecipeError, match=r"^server: .*ModelServer"):
        ramerge_eval.TaskScore(request, "vllm")  # type: ignore[arg-type]
    with pytest.raises(ramerge.RecipeError, match=r"^concurrency: must be a whole number above 0, not 0"):
        ramerge_eval.TaskScore(request, server, 0)


@pytest.mark.parametrize("name", ["eval", "table"])
def test_help_imports_no_inspect(name: str) -> None:
    program = f"""
import sys
from click.testing import CliRunner
from ramerge.cli.main import cli
result = CliRunner().invoke(cli, ["{name}", "--help"])
assert result.exit_code == 0 and "inspect_ai" not in sys.modules
print(" ".join(result.output.split()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert name == "table" or "local (no sandbox, your permissions)" in done.stdout


def test_an_empty_value_is_refused() -> None:
    result = command("eval", "logs", "--base", "", "--endpoint", "http://127.0.0.1:9/v1", "--task", "ramerge/tool")
    assert result.returncode == 2 and "'--base': is empty" in result.stderr
