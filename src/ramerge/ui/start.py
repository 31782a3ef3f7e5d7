"""From the words of `ramerge ui` to the desk of a user's own page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ramerge import Options, RecipeError
from ramerge.cli.flags.write import limit_words
from ramerge.core.foundation.devices import read_device
from ramerge.core.recipe.checks import as_yaml
from ramerge.core.recipe.document import DEFAULT_METHOD
from ramerge.demo.run import AGENTS
from ramerge.sdk.commands import named
from ramerge.sdk.options import read_limits
from ramerge.sdk.recipes import Document
from ramerge.ui.desk import Desk
from ramerge.ui.draft import EMPTY, read_draft
from ramerge.ui.roots import Roots


def desk_of(roots: Sequence[Path], base: str | None, agents: Sequence[str], options: Options) -> Desk:
    """The desk of a user's own page."""
    read_limits(options.threads, options.max_memory)
    read_device(options.device)
    folders = [folder.resolve() for folder in roots or [Path()]]
    if wrong := [str(folder) for folder in folders if not folder.is_dir()]:
        raise RecipeError(f"--root {folder}: is no folder" for folder in wrong)
    all_roots = Roots((*folders, AGENTS.resolve()))
    agent_models = named("--agent", agents, "NAME=MODEL, such as --agent code=./coder")
    values: dict[str, object] = {"method": DEFAULT_METHOD, **({"base": _absolute(base)} if base else {})}
    values |= {"agents": {name: _absolute(model) for name, model in agent_models.items()}} if agent_models else {}
    text = as_yaml(Document(values)) if base or agent_models else EMPTY
    read_draft(text, all_roots)
    return Desk(all_roots, options, limit_words(options), start=text)


def _absolute(model: str) -> str:
    """A path given as a word is relative to the working folder, which may be none of the roots."""
    path = Path(model).expanduser()
    return str(path.absolute()) if path.exists() else model
