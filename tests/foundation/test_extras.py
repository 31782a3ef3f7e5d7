"""What is said of packages that are not installed."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from ramerge.core.foundation import extras


@pytest.mark.parametrize(
    ("absent", "text"),
    [
        ([], []),
        (["a"], ["prompts need a, which is not installed: pip install 'ramerge[one]'"]),
        (["a", "b_c"], ["prompts need a and b-c, which are not installed: pip install 'ramerge[one]'"]),
        (["a", "d"], ["prompts need a and d, which are not installed: pip install 'ramerge[one,two]'"]),
    ],
)
def test_what_is_missing_is_named_with_one_command(
    absent: list[str], text: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in absent else object())
    monkeypatch.setattr(extras, "distribution", lambda _: SimpleNamespace(read_text=lambda _: None))
    assert extras.missing({"one": ["a", "b_c"], "two": ["d"]}, who="prompts need") == text


WHEEL = "ramerge-0.1-py3-none-any.whl"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'ramerge[report]'"),
        ({"url": "file://FOLDER", "dir_info": {"editable": True}}, "pip install -e 'FOLDER[report]'"),
        ({"url": "file://FOLDER", "dir_info": {}}, "pip install 'FOLDER[report]'"),
        ({"url": f"file://FOLDER/{WHEEL}"}, f"pip install 'ramerge[report] @ file://FOLDER/{WHEEL}'"),
        ({"url": "https://x.org/r.whl"}, "pip install 'ramerge[report] @ https://x.org/r.whl'"),
        (
            {"url": "https://x.org/r", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'ramerge[report] @ git+https://x.org/r@abc'",
        ),
        ({"url": "file://FOLDER/gone", "dir_info": {"editable": True}}, "pip install 'altair>=6' jinja2"),
    ],
)
def test_extras_install_from_where_ramerge_came(
    origin: dict[str, object] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / WHEEL).touch()
    text = json.dumps(origin).replace("FOLDER", str(tmp_path)) if origin else None
    requirements = ["numpy>=1", "jinja2; extra == 'report'", "altair>=6; extra == 'report'", "ray; extra == 'ray'"]
    installed = SimpleNamespace(read_text=lambda _: text, requires=requirements)
    monkeypatch.setattr(extras, "distribution", lambda _: installed)
    monkeypatch.setattr(extras, "find_spec", lambda _: object())
    assert extras.install_command("report") == command.replace("FOLDER", str(tmp_path))


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install ramerge-eval, or in a checkout pip install ./packages/ramerge-eval"),
        ({"url": "file://FOLDER", "dir_info": {"editable": True}}, "pip install -e FOLDER/packages/ramerge-eval"),
        ({"url": "file://FOLDER", "dir_info": {}}, "pip install FOLDER/packages/ramerge-eval"),
        (
            {"url": f"file://FOLDER/{WHEEL}"},
            "pip install ramerge-eval, or in a checkout pip install ./packages/ramerge-eval",
        ),
        (
            {"url": "https://x.org/r", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'ramerge-eval @ git+https://x.org/r@abc#subdirectory=packages/ramerge-eval'",
        ),
    ],
)
def test_ramerge_eval_installs_from_where_ramerge_came(
    origin: dict[str, object] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / WHEEL).touch()
    (tmp_path / "packages/ramerge-eval").mkdir(parents=True)
    text = json.dumps(origin).replace("FOLDER", str(tmp_path)) if origin else None
    monkeypatch.setattr(extras, "distribution", lambda _: SimpleNamespace(read_text=lambda _: text))
    monkeypatch.setattr(extras, "find_spec", lambda _: object())
    assert extras.evaluation_command() == command.replace("FOLDER", str(tmp_path))


def test_without_pip_uv_installs_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    assert extras.install_command("ray").startswith("uv pip install")
