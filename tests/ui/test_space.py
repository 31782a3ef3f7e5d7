"""The Space as a process: what its files say, its limit, and that visitors do not meet."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ruamel.yaml import YAML

from ramerge.core.foundation.errors import RecipeError
from tests.tiers import unavailable
from tests.ui.served import CHROMIUM, Visit, chromium, visit

pytestmark = pytest.mark.full  # Gradio, a browser

for library in ("gradio", "playwright"):
    pytest.importorskip(library)

ROOT = Path(__file__).parents[2]
SPACE = ROOT / "space"


@contextmanager
def space(folder: Path, **environment: str) -> Iterator[str]:
    """The address of a Space that runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {**os.environ, "PORT": str(port), "TMPDIR": str(folder), **environment}
    with subprocess.Popen([sys.executable, SPACE / "app.py"], env=variables) as process:
        try:
            until = time.monotonic() + 60
            while time.monotonic() < until and process.poll() is None:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM:
        unavailable("no Chromium on the path")
    with chromium() as found:
        yield found


def merge(opened: Visit, name: str) -> None:
    opened.click("Use the demo's agents")
    opened.wait("table.plain", has_text="safetensors files")
    opened.tab("Merge")
    opened.fill("Output", name)
    opened.click("Merge")


def test_the_metadata_is_that_of_what_is_installed() -> None:
    _, front, text = (SPACE / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    values = YAML(typ="safe").load(front)
    assert (values["sdk"], values["app_file"]) == ("gradio", "app.py")
    assert f"gradio=={values['sdk_version']}\n" in (ROOT / "constraints.txt").read_text()
    assert len(values["short_description"]) <= 60
    assert text.strip().startswith("# ramerge")
    assert (SPACE / "requirements.txt").read_text().startswith("ramerge[")


def test_visitors_write_into_folders_of_their_own(tmp_path: Path) -> None:
    from ramerge.ui.space import space_desk

    desk = space_desk(tmp_path)
    first, second = (SimpleNamespace(session_hash=name) for name in ("abc", "xyz"))
    assert desk.place(first, "merged") == "abc/merged"
    for name in ("../xyz/merged", "xyz/merged/..", "..", "a/b", "hub:owner/name", "s3://bucket/model", "/etc", ""):
        with pytest.raises(RecipeError):
            desk.place(first, name)
    with pytest.raises(RecipeError):
        desk.place(SimpleNamespace(session_hash="../xyz"), "merged")
    desk.keep(first, [desk.job("merged", ["plan"])])
    assert (len(desk.jobs(first)), len(desk.jobs(second))) == (1, 0)
    assert all(label.startswith("agents/") for label, _ in desk.roots.models())
    (tmp_path / "abc").mkdir()
    desk.forget(first)
    assert not (tmp_path / "abc").exists()
    for text in ("s3://bucket/model", "/etc", str(tmp_path.parent)):
        with pytest.raises(RecipeError):
            desk.roots.check_model(text)


def test_a_visitor_merges_and_leaves_nothing(browser: Any, tmp_path: Path) -> None:
    with space(tmp_path) as address:
        with visit(browser, address) as opened:
            merge(opened, "merged")
            opened.merged("merged")
            assert len(list(tmp_path.glob("ramerge-space-*/*/merged/ramerge.json"))) == 1
            with visit(browser, address) as other:
                other.tab("Merge")
                other.page.wait_for_timeout(1000)
                assert other.page.locator("tr", has_text="merged").count() == 0
            assert opened.page.get_by_role("button", name="Find the best merge").count() == 0
            opened.tab("Compare")
            assert opened.page.get_by_role("button", name="Ask side by side").count() == 0
            opened.tab("Share")
            for name in ("Upload", "Distill the agents"):
                assert opened.page.get_by_role("button", name=name).count() == 0
        until = time.monotonic() + 60
        while list(tmp_path.glob("ramerge-space-*/*")) and time.monotonic() < until:
            time.sleep(0.2)
        assert list(tmp_path.glob("ramerge-space-*/*")) == []
    assert list(tmp_path.glob("ramerge-space-*")) == []


def test_visitors_do_not_get_the_owners_token(monkeypatch: pytest.MonkeyPatch) -> None:
    from ramerge.ui import space as own

    seen: list[str | None] = []
    monkeypatch.setenv("HF_TOKEN", "of-the-owner")
    monkeypatch.setattr(own.uvicorn, "run", lambda *_words, **_more: seen.append(os.environ.get("HF_TOKEN")))
    own.serve_space()
    assert seen == [None]


def test_what_is_too_large_is_refused(browser: Any, tmp_path: Path) -> None:
    with space(tmp_path, RAMERGE_SPACE_BYTES="1000000") as address, visit(browser, address) as opened:
        merge(opened, "merged")
        opened.page.get_by_text("this page reads at most 0.0 GB of weights").locator("visible=true").first.wait_for()
