"""The command that installs an extra is right for where ramerge came from."""

import json
from pathlib import Path

import pytest

from ramerge.foundation import extras


class Installed:
    """A distribution with what an installer noted."""

    def __init__(self, noted: object) -> None:
        self._text = json.dumps(noted) if noted is not None else None

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self._text


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ramerge as it lies in site-packages, and a checkout next to it."""
    monkeypatch.setattr(extras, "_PACKAGE", tmp_path / "lib/site-packages/ramerge")
    checkout = tmp_path / "my checkout"
    checkout.mkdir()
    return checkout


def test_a_checkout_that_runs_is_named() -> None:
    root = Path(__file__).parents[2]
    assert extras.install("eval") == f"pip install -e '{root}[eval]'"


def test_a_folder_that_was_installed(remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "distribution", lambda _: Installed({"url": remote.as_uri(), "dir_info": {}}))
    assert extras.install("report") == f"pip install '{remote}[report]'"
    remote.rmdir()
    assert extras.install("report") == "pip install 'ramerge[report]'"


@pytest.mark.parametrize(
    ("noted", "command"),
    [
        (None, "pip install 'ramerge[torch]'"),
        (
            {"url": "https://e.org/r.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'ramerge[torch] @ git+https://e.org/r.git@abc'",
        ),
        (
            {"url": "https://e.org/r.git", "vcs_info": {"vcs": "hg", "commit_id": "a", "requested_revision": "v1"}},
            "pip install 'ramerge[torch] @ hg+https://e.org/r.git@v1'",
        ),
        ({"url": "file:///w/r.whl", "archive_info": {}}, "pip install 'ramerge[torch] @ file:///w/r.whl'"),
        (["odd"], "pip install 'ramerge[torch]'"),
    ],
)  # fmt: skip
def test_other_origins(noted: object, command: str, remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "distribution", lambda _: Installed(noted))
    assert extras.install("torch") == command


def test_no_message_has_a_command_of_its_own() -> None:
    sources = (Path(extras.__file__).parent).rglob("*.py")
    assert [path.name for path in sources if "pip install 'ramerge[" in path.read_text()] == []
