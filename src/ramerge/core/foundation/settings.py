"""Checks the options of a run: their types, and the limits of threads and memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.text import MOST_BITS, is_too_large, literal
from ramerge.core.options import Options, Ray, Upload, settings_of

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_NO_SIZE_BYTES = 1000
_MOST_THREADS = 1024


@dataclass(frozen=True)
class ResourceLimits:
    """The user's limits of threads and memory.

    Attributes:
        threads: worker threads; None for one per processor plus two, because threads wait for disks.
        memory: bytes; None for no limit.
    """

    threads: int | None
    memory: int | None


def check_settings(name: str, settings: object, kind: type) -> None:
    """Raise for settings of another type, such as a mapping in place of `Options`.

    Raises:
        RecipeError: the settings are not a `kind`; the message shows the correct form.
    """
    if isinstance(settings, kind):
        return
    words = settings.items() if isinstance(settings, Mapping) else ()
    form = ", ".join(f"{key}={literal(value)}" for key, value in words) or "..."
    raise RecipeError(
        f"{name}: must be of the class ramerge.{kind.__name__}, not {type(settings).__name__}; "
        f"write {name}=ramerge.{kind.__name__}({form})"
    )


def check_options(options: Options) -> None:
    """Raise for options, groups of options, or switches of another type.

    Raises:
        RecipeError: the options are not an `Options`, a group is not an `Upload` or `Ray`, or a switch is not a bool.
    """
    check_settings("options", options, Options)
    check_settings("upload", options.upload, Upload)
    if options.ray is not None:
        check_settings("ray", options.ray, Ray)
    for part in (options, options.upload):
        for name, default, _ in settings_of(type(part)):
            if isinstance(default, bool) and not isinstance(value := getattr(part, name), bool):
                raise RecipeError(f"options.{name}: must be True or False, not {literal(value)}")


def check_mapping(name: str, value: object, form: str) -> None:
    """Raise for an argument that must be a mapping, such as a list in place of `vary`.

    Args:
        name: the argument's name.
        value: what the user has given.
        form: an example of a correct value, for the message.

    Raises:
        RecipeError: the argument is not a mapping.
    """
    if not isinstance(value, Mapping):
        raise RecipeError(f"{name}: must be a mapping, such as {form}, not {literal(value)}")


def read_limits(threads: int | None, max_memory: int | str | None) -> ResourceLimits:
    """Check and return the limits of a run.

    Args:
        threads: worker threads.
        max_memory: bytes, or a size such as `2GB`.

    Raises:
        RecipeError: a value is invalid.
    """
    if threads is not None and not (isinstance(threads, int) and 1 <= threads <= _MOST_THREADS):
        raise RecipeError(f"--threads: must be a whole number from 1 to {_MOST_THREADS}, not {literal(threads)}")
    try:
        return ResourceLimits(threads, parse_size(max_memory) if max_memory is not None else None)
    except ValueError as error:
        raise RecipeError(f"--max-memory: {error}") from error


def too_little(memory: int, least: int) -> str:
    """Return the message that a memory limit is too low; `least` is the number of bytes that suffice."""
    return f"--max-memory: {memory:,} bytes are too little; give at least {-(-least // 1_000_000)}MB"  # rounded up


def parse_size(text: str | int) -> int:
    """Return the bytes of a size such as `5GB` (10^9), `500MiB` (2^20) or a plain number.

    Raises:
        ValueError: the text is not a size, not larger than zero, or so small that a unit is probably missing.
    """
    if isinstance(text, int) and is_too_large(text):
        raise ValueError(f"a number of more than {MOST_BITS} bits is no size")
    match = _SIZE.fullmatch(str(text).strip())
    if not match:
        raise ValueError(f"{text!r} is not a size such as 5GB or 500MiB")
    number, unit, binary = match.groups()
    size = int(float(number) * (1024 if binary else 1000) ** " KMGT".index(unit.upper() or " "))
    if size <= 0:
        raise ValueError(f"{text!r} is not larger than zero")
    if size < _NO_SIZE_BYTES:
        hint = "" if unit else f"; did you mean {number}GB?"
        raise ValueError(f"{text!r} is too small: {size} bytes{hint}")
    return size
