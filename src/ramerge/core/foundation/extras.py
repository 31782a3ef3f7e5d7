"""Optional packages: commands that install extras, messages about missing packages, and data frames."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.text import enumerated

_EVALUATION = "packages/ramerge-eval"
"""The folder of ramerge-eval in a checkout."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra, such as `report`, from the source of this installation.

    If the checkout or wheel is gone, the command names the extra's libraries instead.
    """
    pip, origin = _pip(), _origin()
    url, path = str(origin.get("url", "")), _path_of(origin)
    if path is not None and not path.exists():
        return f"{pip} {shlex.join(_required_libraries(extra))}"
    if path is not None and path.is_dir():
        return f"{pip} {_editable(origin)}{_shell_quote(f'{path}[{extra}]')}"
    if "vcs_info" in origin:
        url = _revision(origin)
    return f"{pip} {_shell_quote(f'ramerge[{extra}] @ {url}' if url else f'ramerge[{extra}]')}"


def evaluation_command() -> str:
    """Return the command that installs ramerge-eval, from the source of this installation if that holds it."""
    pip, origin = _pip(), _origin()
    if "vcs_info" in origin:
        return f"{pip} {_shell_quote(f'ramerge-eval @ {_revision(origin)}#subdirectory={_EVALUATION}')}"
    path = _path_of(origin)
    if path is not None and (folder := path / _EVALUATION).is_dir():
        return f"{pip} {_editable(origin)}{shlex.quote(str(folder))}"
    return f"{pip} ramerge-eval, or in a checkout {pip} ./{_EVALUATION}"


def _pip() -> str:
    return "pip install" if find_spec("pip") else "uv pip install"


def _origin() -> dict[str, Any]:
    """Return pip's record of where ramerge was installed from; empty if from an index."""
    with suppress(PackageNotFoundError, ValueError):
        origin: dict[str, Any] = json.loads(distribution("ramerge").read_text("direct_url.json") or "{}")
        return origin
    return {}


def _path_of(origin: Mapping[str, Any]) -> Path | None:
    url = str(origin.get("url", ""))
    return Path(unquote(urlsplit(url).path)) if url.startswith("file:") else None


def _editable(origin: Mapping[str, Any]) -> str:
    return "-e " * bool(origin.get("dir_info", {}).get("editable"))


def _revision(origin: Mapping[str, Any]) -> str:
    info = origin["vcs_info"]
    return f"{info.get('vcs', 'git')}+{origin['url']}@{info.get('commit_id', 'HEAD')}"


def _required_libraries(extra: str) -> list[str]:
    """Return the requirements of comma-separated extras, except those for other versions of Python."""
    requirements = (text.partition("; ") for text in distribution("ramerge").requires or ())
    conditions = {f"extra == '{name}'" for name in extra.split(",")}
    return sorted({library for library, _, condition in requirements if condition in conditions})


def _shell_quote(text: str) -> str:
    """Quote a word with brackets for shells."""
    return "'" + text.replace("'", "'\\''") + "'"


def missing(extras: Mapping[str, Iterable[str]], *, who: str) -> list[str]:
    """Return a sentence that names missing packages and the command that installs them; empty if none is missing.

    Args:
        extras: top-level names of modules, by extra; they are not imported.
        who: the sentence's subject and verb, such as `prompts need`.
    """
    absent = {extra: [name for name in modules if find_spec(name) is None] for extra, modules in extras.items()}
    lacking = [name.replace("_", "-") for names in absent.values() for name in names]
    if not lacking:
        return []
    command = install_command(",".join(extra for extra, names in absent.items() if names))
    are = "is" if len(lacking) == 1 else "are"
    return [f"{who} {enumerated(lacking)}, which {are} not installed: {command}"]


def data_frame(rows: Sequence[Mapping[str, object]]) -> Any:
    """Return a pandas data frame; without pandas, raise an error that tells how to install it."""
    try:
        import pandas as pd
    except ImportError as error:
        raise RecipeError("data frames need pandas: pip install pandas") from error
    return pd.DataFrame(rows)
