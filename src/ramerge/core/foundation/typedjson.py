"""Reads a JSON file into the dataclass from which it was written."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from ramerge.core.foundation.errors import RecipeError, reason
from ramerge.core.foundation.jsontext import JsonLimits, read_object
from ramerge.core.foundation.text import quoted

_MOST_PROBLEMS = 5

T = TypeVar("T")


def read_model(path: Path, kind: type[T], limits: JsonLimits, what: str) -> T:
    """Read a JSON file into the dataclass `kind`.

    Args:
        path: the file.
        kind: a dataclass, whose annotations define the types of the file's values. Unknown keys are ignored.
        limits: the limits for the file.
        what: the kind of file, for error messages.

    Raises:
        RecipeError: the file cannot be read, or does not fit the dataclass.
    """
    try:
        return to_model(read_object(path, limits, constants=False), kind)
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {reason(error)}") from error
    except ValueError as error:
        raise RecipeError(f"{path}: is not a valid {what}: {error}") from error


def to_model(values: Mapping[str, object], kind: type[T]) -> T:
    """Convert plain values to a dataclass.

    Raises:
        ValueError: values are missing or have a wrong type; the message lists the first problems.
    """
    try:
        result: T = _adapter(cast(Hashable, kind)).validate_python(values)
        return result
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
        first_errors = [f"{quoted('.'.join(map(str, item['loc'])))}: {item['msg']}" for item in errors[:_MOST_PROBLEMS]]
        more = [f"and {len(errors) - _MOST_PROBLEMS:,} more"] if len(errors) > _MOST_PROBLEMS else []
        raise ValueError("; ".join([*first_errors, *more])) from error


@cache  # creating an adapter takes milliseconds
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
