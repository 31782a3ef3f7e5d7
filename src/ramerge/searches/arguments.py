"""A check of the arguments of public functions, before anything is done."""

from __future__ import annotations

from ramerge import RecipeError
from ramerge.sdk.text import quoted


def check_arguments(**arguments: tuple[bool, str, object]) -> None:
    """Refuse wrong arguments of a function: by name whether it is right, what it must be, and what was given.

    Raises:
        RecipeError: arguments are wrong; all of them are named.
    """
    if wrong := [
        f"{name}: must be {what}, not {quoted(value)}"
        for name, (is_right, what, value) in arguments.items()
        if not is_right
    ]:
        raise RecipeError(wrong)
