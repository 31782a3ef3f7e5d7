"""Nothing is left out in silence: modules name their tier, and CI fails where a test cannot run."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import FULL_MODULE

ROOT = Path(__file__).parents[1]
MODULES = [path for folder in ("tests", "lab/tests") for path in (ROOT / folder).rglob("test_*.py")]


def test_modules_of_the_fast_tier_skip_no_library() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in MODULES}
    fast = {path: text for path, text in texts.items() if not FULL_MODULE.search(text)}
    assert 0 < len(fast) < len(texts)
    skipping = [path.name for path, text in fast.items() if "pytest.importorskip(" in text and path != Path(__file__)]
    assert skipping == []


@pytest.mark.needs("numpy")
def test_what_needs_a_library_is_left_out(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("full") is not None


@pytest.mark.parametrize(("ci", "outcome"), [("", "2 skipped"), ("1", "2 failed")])
def test_what_cannot_run_fails_in_ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ci: str, outcome: str) -> None:
    (tmp_path / "test_both.py").write_text(
        "import pytest\nfrom tests.tiers import unavailable\n"
        "def test_a_library():\n    pytest.importorskip('no_such_library')\n"
        "def test_a_program():\n    unavailable('no such program')\n"
    )
    monkeypatch.setenv("CI", ci)
    plugin = ["-p", "conftest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert outcome in done.stdout, done.stdout + done.stderr
