"""What shells offer after Tab for files and folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from click import Context, Parameter
from click.shell_completion import CompletionItem


def matching(words: Iterable[str], begun: str) -> list[CompletionItem]:
    """The words that begin with `begun`."""
    return [CompletionItem(word) for word in words if word.startswith(begun)]


def files(_context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """Files and folders; the shell itself lists them."""
    return [CompletionItem(begun, type="file")]


def folders(_context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """Folders; the shell itself lists them."""
    return [CompletionItem(begun, type="dir")]


def named_folders(_context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """The folder of NAME=FOLDER. Shells complete only whole words, so folders are listed here."""
    name, equals, path = begun.partition("=")
    if not equals:
        return []
    parent = Path(path) if path.endswith("/") else Path(path or ".").parent
    stem = path[: path.rfind("/") + 1]
    try:
        found = sorted(entry.name for entry in parent.expanduser().iterdir() if entry.is_dir())
    except (OSError, RuntimeError, ValueError):
        return []
    return matching((f"{name}={stem}{entry}/" for entry in found if not entry.startswith(".")), begun)
