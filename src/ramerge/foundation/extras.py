"""The command that installs an extra of ramerge, from the same source as ramerge itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import unquote, urlsplit

_PACKAGE = Path(__file__).parent.parent


def install(extra: str) -> str:
    """The command that installs an extra, such as `eval`.

    It names the checkout, repository or file that this ramerge was installed from, as `direct_url.json` (PEP 610) says.
    Without that file, ramerge came from a package index.
    """
    checkout = _PACKAGE.parent.parent
    if _PACKAGE.parent.name == "src" and (checkout / "pyproject.toml").is_file():
        return f"pip install -e {quote(f'{checkout}[{extra}]')}"
    origin = _origin()
    url = str(origin.get("url", ""))
    if "dir_info" in origin and (folder := Path(unquote(urlsplit(url).path))).is_dir():
        return f"pip install {quote(f'{folder}[{extra}]')}"
    if isinstance(source := origin.get("vcs_info"), Mapping):
        revision = source.get("requested_revision") or source.get("commit_id")
        url = f"{source.get('vcs')}+{url}@{revision}"
    source_url = f" @ {url}" if url and "dir_info" not in origin else ""
    return f"pip install {quote(f'ramerge[{extra}]{source_url}')}"


def missing(modules: Iterable[str], *, who: str, install: str) -> list[str]:
    """A sentence for what cannot be imported, or nothing.

    Args:
        modules: top-level names, none of which is imported here.
        who: what needs them, such as `ramerge/search`.
        install: the command that brings them.
    """
    absent = [name for name in modules if find_spec(name) is None]
    if not absent:
        return []
    return [f"{who}: needs {', '.join(absent)}, which {'is' if len(absent) == 1 else 'are'} not installed: {install}"]


def _origin() -> Mapping[str, Any]:
    """What the installer noted about the source of ramerge; empty for a package index."""
    try:
        noted = json.loads(distribution("ramerge").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
    return noted if isinstance(noted, Mapping) else {}
