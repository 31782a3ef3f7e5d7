"""Plain values of a file as the dataclass that wrote them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from ramerge.foundation.errors import RecipeError
from ramerge.foundation.jsontext import Limits, read
from ramerge.foundation.text import quoted

_MOST_PROBLEMS = 5

T = TypeVar("T")


def same(values: Any) -> Any:
    """Plain values as they are."""
    return values


def read_model(path: Path, kind: type[T], limits: Limits, what: str, unfold: Callable[[Any], Any] = same) -> T:
    """The dataclass `kind` that a JSON file holds.

    Args:
        path: the file.
        kind: a dataclass; its annotations say what the file's values must be, and keys that it lacks are passed over.
        limits: of the file.
        what: what the file is to be, for the message.
        unfold: from the file's values to those of the dataclass's fields.

    Raises:
        RecipeError: it cannot be read, or is something else.
    """
    try:
        return to_model(unfold(read(path, limits, constants=False)), kind)
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RecipeError(f"{path}: is no {what}: {error}") from error


def to_model(values: Mapping[str, Any], kind: type[T]) -> T:
    """The dataclass of plain values.

    Raises:
        ValueError: they are not its values; the first problems.
    """
    try:
        return _adapter(kind).validate_python(values)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        shown = [f"{quoted('.'.join(map(str, item['loc'])))}: {item['msg']}" for item in found[:_MOST_PROBLEMS]]
        more = [f"and {len(found) - _MOST_PROBLEMS:,} more"] if len(found) > _MOST_PROBLEMS else []
        raise ValueError("; ".join([*shown, *more])) from error


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    """Made once for each class, which takes milliseconds."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
