"""Regular expressions from recipes, which are not trusted: replacing takes bounded time and memory.

`re` has no time limit, and can take years for a pattern such as `(a|aa)+$` on a short name. `regex` has a time limit.
"""

from __future__ import annotations

import re
from time import monotonic

LONGEST_NAME = 1000
"""The most characters in a pattern, in its replacement, and in a name before and after replacing."""

_TOO_SLOW = "takes too long; remove repetitions inside of repetitions, such as (a+)+"


def check_template(pattern: str, to: str) -> None:
    """Check that a replacement refers only to groups that the pattern has.

    Raises:
        ValueError: it refers to another group, or the pattern is invalid.
    """
    from regex import error as problem  # here and below, because importing it takes 14 ms

    try:
        replace_all(f"{pattern}|", to, "", monotonic() + 1)
    except (problem, re.error, IndexError) as error:
        raise ValueError(str(error)) from error


def replace_all(pattern: str, to: str, name: str, deadline: float) -> str:
    """Replace all matches of a pattern in a name, as `re.sub` does.

    Args:
        to: the replacement; `\\1` stands for the match of the first group.
        deadline: the value of `time.monotonic` at which to stop.

    Raises:
        ValueError: replacing takes too long, the name is too long before or after, or the pattern also matches the
            empty text after another match, which would insert the replacement a second time.
    """
    import regex

    if len(name) > LONGEST_NAME:
        raise ValueError(f"is for names of at most {LONGEST_NAME:,} characters, and one has {len(name):,}")
    left: dict[str, float] = {"timeout": max(deadline - monotonic(), 0.001)}
    try:
        result, count = regex.subn(pattern, to, name, **left)
        again = count > 1 and not all(match[0] for match in regex.finditer(pattern, name, **left))
    except (TimeoutError, MemoryError) as error:
        raise ValueError(_TOO_SLOW) from error
    if again:
        raise ValueError(
            f"also matches the empty text, so {name!r} would get the replacement {count} times: {result[:200]!r}; "
            "begin the pattern with ^, or use + in place of *"
        )
    if len(result) > LONGEST_NAME:
        raise ValueError(f"makes names of more than {LONGEST_NAME:,} characters, such as {result[:60]!r}...")
    return str(result)
