"""Text from strangers, made fit to be written and shown."""

from __future__ import annotations


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
