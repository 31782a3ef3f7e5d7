"""Parses command-line arguments that hold keys, values, and values in YAML."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.text import TOO_LARGE, UNREADABLE, brief, is_too_large, quoted

_VARIED = "KEY=V,V,..., such as --vary parameters.r=0,0.1,0.2"
"""The form of `--vary`, for messages."""
_RANGE = re.compile(r"[\d.eE+-]+(:|\.\.)[\d.eE:+-]+")
"""A text that looks like a range of numbers: `0:0.2`, `0..1`."""


def parse_scalar(text: str, flag: str = "") -> object:
    """Parse the value of `--set key=text` as YAML: `0.1` is a number, `[a, b]` a list. Text that is not YAML stays
    text.

    Args:
        text: the value as written.
        flag: the flag that it belongs to, such as `--set key`, for messages.

    Raises:
        RecipeError: the value holds a whole number of more than 63 bits.
    """
    try:
        value: object = YAML(typ="safe", pure=True).load(text)
        is_refused = is_too_large(value)
    except (YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        value, is_refused = text, isinstance(error, ValueError) and UNREADABLE.search(text) is not None
    if is_refused:
        short_text = brief(text, 60)
        raise RecipeError(f"{f'{flag}={short_text}' if flag else quoted(short_text)}: {TOO_LARGE}")
    return value


def stays_text(text: str) -> bool:
    """Whether `parse_scalar` returns this text unchanged."""
    try:
        return parse_scalar(text) == text
    except RecipeError:
        return False


def read_varied(texts: Iterable[str]) -> dict[str, list[object]]:
    """Parse the values of `--vary KEY=V,V,...`, or a YAML list, such as `[[1, 2], [3, 4]]`, for values with commas."""
    values_by_key: dict[str, list[object]] = {}
    for key, text in named("--vary", texts, _VARIED).items():
        values = parse_scalar(text, f"--vary {key}") if text.startswith("[") else None
        parts = text.split(",")
        if not isinstance(values, list) and not all(part.strip() for part in parts):
            raise RecipeError(f"--vary {key}={text}: a value is missing between commas")
        if _RANGE.fullmatch(text):
            raise RecipeError(
                f"--vary {key}={text}: must be {_VARIED}; ranges are for `ramerge search --space FILE`, such as "
                "parameters: {r: {from: 0, to: 0.2}}"
            )
        values_by_key[key] = (
            values if isinstance(values, list) else [parse_scalar(part, f"--vary {key}") for part in parts]
        )
    return values_by_key


def pairs(flag: str, texts: Iterable[str], form: str) -> list[tuple[str, str]]:
    """Parse the values `KEY=VALUE` of a flag.

    Args:
        form: the expected form, for messages.
    """
    parts = [(text, *text.partition("=")) for text in texts]
    wrong = [f"{flag} {text}: must be {form}" for text, left, _, right in parts if not left or not right]
    if wrong:
        raise RecipeError(wrong)
    return [(left, right) for _, left, _, right in parts]


def named(flag: str, texts: Iterable[str], form: str) -> dict[str, str]:
    """Parse the values `KEY=VALUE` of a flag into a mapping; each key may occur once.

    Raises:
        RecipeError: as for `pairs`, or a key is given twice.
    """
    words = pairs(flag, texts, form)
    keys = [key for key, _ in words]
    hint = "; give each agent a name of its own" if flag == "--agent" else ""
    if twice := [f"{flag} {key}: is given twice{hint}" for key in dict.fromkeys(keys) if keys.count(key) > 1]:
        raise RecipeError(twice)
    return dict(words)


def one_agent(texts: Iterable[str]) -> tuple[str, str]:
    """Return name and model of `--agent`, for a command that takes exactly one agent."""
    agents = pairs("--agent", texts, "NAME=MODEL, such as --agent code=./coder")
    if len(agents) != 1:
        raise RecipeError(f"--agent: exactly one agent is needed, not {len(agents)}: --agent NAME=MODEL")
    return agents[0]
