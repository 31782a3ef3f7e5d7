"""Text that strangers wrote, made fit to be shown and to be written.

Names of tensors, files, keys and models come out of downloads. Shown as they are they could clear a terminal, turn the
order of its letters around, or pass for a line of ours. Everything that leaves for a person goes through `one_line` or
`message`; each kind of file has its own function besides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

MOST = 2000
"""Characters of a message, of which the middle is left out where it is longer."""

# Letters and marks that show nothing, though Unicode counts them as printable.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_CONTINUED = re.compile(r"\n(?=    )")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|~&#!$])")


def clean(text: str) -> str:
    """Text that UTF-8 can hold: lone halves of surrogate pairs become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def printable(text: str) -> str:
    """Text without what a terminal would obey."""
    return "".join(character if character.isprintable() or character.isspace() else "?" for character in text)


def shown(value: object, most: int = 200) -> str:
    """The beginning of a text, or of what anything says of itself, in one line that a terminal can show."""
    text = str(value)
    line = " ".join(printable(clean(text[: 10 * most])).split())
    return line if len(line) <= most and len(text) <= 10 * most else f"{line[:most]}..."


def is_unicode(text: str) -> bool:
    """Whether it can be written to a file or a pipe: lone halves of surrogate pairs cannot."""
    return clean(text) == text


def one_line(text: str) -> str:
    """Text that shows as it is, on one line: what is invisible or would be obeyed is escaped, such as `\\x1b`."""
    if text.isprintable() and not _INVISIBLE.search(text):
        return text
    return "".join(
        character if character.isprintable() and not _INVISIBLE.match(character) else _escape(character)
        for character in text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def brief(text: str, most: int = MOST) -> str:
    """Text of some `most` characters: from a longer one the middle is left out, and its length said."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}… ({len(text) - 2 * half:,} characters more) …{text[-half:]}"


def quoted(text: object, most: int = 120) -> str:
    """A name or a value of a stranger's in a message, quoted and brief."""
    return brief(one_line(repr(text)), most)


def message(text: str) -> str:
    """A message with names of strangers in it, brief. Lines under its first one are indented by four spaces.

    A line break that is not followed by four spaces is not ours, and is escaped.
    """
    return "\n".join(map(one_line, _CONTINUED.split(brief(text))))


def visible(values: Any) -> Any:
    """Plain values with every text in them, keys included, escaped like `one_line`."""
    if isinstance(values, str):
        return one_line(values)
    if isinstance(values, dict):
        return {visible(key): visible(value) for key, value in values.items()}
    return [visible(value) for value in values] if isinstance(values, list | tuple) else values


def markdown(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _MARKDOWN.sub(r"\\\1", one_line(text))


def csv_cell(value: Any) -> Any:
    """A value for a table in CSV: text that a spreadsheet would take for a formula begins with an apostrophe."""
    if not isinstance(value, str):
        return value
    shown = one_line(value)
    return f"'{shown}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else shown


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """`unknown key 'agnets'; did you mean 'agents'?`, or the list of what is known."""
    lowered = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name.lower()[:200], lowered, n=1)
    listed = brief(", ".join(known), 1000) or "none"
    hint = f"did you mean {lowered[near[0]]!r}?" if near else f"known: {listed}"
    return f"unknown {what} {quoted(name)}; {hint}"
