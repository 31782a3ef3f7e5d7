"""Words that the shell offers after Tab. Imports are inside the functions, because the shell waits for them."""

from __future__ import annotations

from click import Context, Parameter
from click.shell_completion import CompletionItem

from ramerge.foundation.completion import matching


def methods(_context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """Names of merging methods."""
    from ramerge.methods.registry import METHODS

    return matching(METHODS, begun)


def presets(context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """Presets of the method that `--method` names; of all methods without one."""
    from ramerge.methods.registry import METHODS

    chosen = METHODS.get(str(context.params.get("method")))
    owners = [chosen] if chosen is not None else list(METHODS.usable().values())
    return matching(dict.fromkeys(name for method in owners for name in method.presets), begun)


def parameters(_context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """`parameters.KEY=` for `--vary`."""
    return matching((f"{key}=" for key in _parameters()), begun)


def keys(_context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """Keys of recipes for `--set`."""
    from ramerge.recipe.model import Allow, Recipe

    own = [name for name in Recipe.model_fields if name not in ("agents", "parameters", "rules", "rename", "allow")]
    allowed = [f"allow.{name}" for name in Allow.model_fields]
    return matching((f"{key}=" for key in (*own, *_parameters(), *allowed)), begun)


def dtypes(_context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """What `dtype` takes."""
    from typing import get_args

    from ramerge.recipe.model import Recipe

    kinds = get_args(Recipe.model_fields["dtype"].annotation)
    return matching((name for kind in kinds for name in get_args(kind)), begun)


def roundings(_context: Context, _parameter: Parameter, begun: str) -> list[CompletionItem]:
    """What `rounding` takes."""
    from typing import get_args

    from ramerge.recipe.model import Recipe

    return matching(get_args(Recipe.model_fields["rounding"].annotation), begun)


def _parameters() -> list[str]:
    from ramerge.methods.registry import METHODS

    names = dict.fromkeys(name for method in METHODS.usable().values() for name in method.parameters.model_fields)
    return [f"parameters.{name}" for name in names]
