"""Untrusted text, made safe to show and to write.

Names of tensors, files, keys and models come from downloads. If they are shown unchanged, they can clear a terminal,
reverse the order of its letters, or look like a line of ramerge's own. All output for people goes through `one_line` or
`message`. Markdown, CSV and JSON have functions of their own.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, cast

Plain = TypeVar("Plain")

MOST = 2000
"""The most characters of a message. The middle of a longer one is left out."""

MOST_NAMES = 3
"""The number of names that a message lists of many."""

_MOST_ROWS = 1000
"""The most rows of a table in a notebook."""

MOST_ALIKE = 10
"""The number of problems shown of those that are alike, such as those of records in one file."""

NOT_UTF8 = "the path holds bytes that are not UTF-8; rename the folder"
"""About a path that recipes and records, which are UTF-8, cannot name."""

# Letters and marks that are invisible, although Unicode counts them as printable.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_CONTINUATION = re.compile(r"\n(?=    )")
# Where an address begins, well or badly typed.
_SCHEME = r"(?:://+|\b(?:https?|s3|gs|az)(?::/*|//)(?=\S))"
_ADDRESS = re.compile(_SCHEME, re.IGNORECASE)
# The parts of an address that may be secret: user and password, and a query, which may be a signature, or a fragment.
_HOST = re.compile(rf"({_SCHEME})([^/\s'\"]*@[^/\s'\"]*)", re.IGNORECASE)
_QUERY = re.compile(r"(\?|(?<=\S)#)[^\s'\"]+")
# How alike two names must be for a suggestion; `float8` and `float64` are 0.77.
_NEAR, _VERY_NEAR = 0.6, 0.8
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|~&#!$])")


def _clean(text: str) -> str:
    """Text that can be encoded as UTF-8: lone halves of surrogate pairs become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def printable(text: str) -> str:
    """Text without control characters: they become question marks. White space stays."""
    return "".join(character if character.isprintable() or character.isspace() else "?" for character in text)


def shown(value: object, most: int = 200) -> str:
    """The beginning of `str(value)`, in one line that a terminal can show."""
    text = str(value)
    line = " ".join(printable(_clean(text[: 10 * most])).split())
    return line if len(line) <= most and len(text) <= 10 * most else f"{line[:most]}..."


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded as UTF-8; one with lone halves of surrogate pairs cannot."""
    return _clean(text) == text


def one_line(text: str) -> str:
    """Text on one line, with invisible and control characters escaped, such as `\\x1b`."""
    if text.isprintable() and not _INVISIBLE.search(text):
        return text
    return "".join(
        each if each.isprintable() and not _INVISIBLE.match(each) else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def brief(text: str, most: int = MOST) -> str:
    """Text of about `most` characters. A longer text loses its middle and names its full length."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}… ({len(text) - 2 * half:,} characters more) …{text[-half:]}"


def enumerated(names: Sequence[str]) -> str:
    """`a`, `a and b`, or `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def quantity(count: int, noun: str, plural: str = "") -> str:
    """`1 tensor` or `2 tensors`.

    Args:
        count: how many there are.
        noun: the noun for one, perhaps with a verb: `tensor is`.
        plural: that for several; by default the noun with an s.
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def few_quoted(names: Sequence[str], count: int | None = None) -> str:
    """The first three names of `count`, quoted, and how many there are more; without a count, these are all."""
    return brief_list([*map(quoted, names[:MOST_NAMES])], len(names) if count is None else count)


def brief_list(items: Sequence[str], count: int | None = None) -> str:
    """The first three items of `count`, and how many there are more; without a count, these are all."""
    more = (len(items) if count is None else count) - min(len(items), MOST_NAMES)
    return ", ".join(items[:MOST_NAMES]) + (f" and {more:,} more" if more else "")


def first_of(problems: Sequence[str], count: int | None = None) -> list[str]:
    """The first problems of many alike, and the number of the others.

    Args:
        problems: the first ten at least.
        count: how many there are; None if these are all.
    """
    more = (len(problems) if count is None else count) - MOST_ALIKE
    return [*problems[:MOST_ALIKE], *([f"and {more:,} more"] if more > 0 else [])]


def decimals(value: float, digits: int) -> str:
    """A number with so many decimals; without a sign where it rounds to zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


MOST_BITS = 63
"""The largest whole number in a recipe or a flag, in bits: more fits no seed and no size."""

TOO_LARGE = (
    f"a whole number of more than {MOST_BITS} bits is no value of a key; write a large real number with an exponent, "
    "such as 1e30"
)
"""About a whole number in a recipe or a flag that is larger."""

UNREADABLE = re.compile(r"(?<![0-9_])[0-9][0-9_]{600,}")
"""Digits of a whole number that are so many that Python may refuse to read them: 640 at least, by its settings."""


def is_too_large(value: object) -> bool:
    """Whether plain values hold a whole number of more than `MOST_BITS`, of which Python may refuse to print digits."""
    if isinstance(value, dict):
        return any(map(is_too_large, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return any(map(is_too_large, value))
    return isinstance(value, int) and value.bit_length() > MOST_BITS


def literal(value: object) -> str:
    """`repr(value)`, also of values for which Python refuses it because a whole number has too many digits."""
    try:
        return repr(value)
    except ValueError:
        return f"{type(value).__name__} of too many digits to print"


def quoted(text: object, most: int = 120) -> str:
    """An untrusted name or value for a message, quoted and shortened."""
    return brief(without_secrets(one_line(literal(text))), most)


def message(text: str) -> str:
    """A message with untrusted names in it, escaped, shortened and `without_secrets`.

    Its further lines are indented by four spaces. A line break without these comes from untrusted text, and is
    escaped.
    """
    return "\n".join(map(one_line, _CONTINUATION.split(brief(without_secrets(text)))))


def without_secrets(values: Plain) -> Plain:
    """Remove user, password, query and fragment from the addresses in a text, or in plain values.

    A path may hold spaces, so everything that looks like a query after the beginning of an address is left out.
    """
    result: Any = values
    if isinstance(values, str) and (match := _ADDRESS.search(values)):
        begin = match.start()
        result = values[:begin] + _QUERY.sub(r"\1…", _HOST.sub(_without_user, values[begin:]))
    elif isinstance(values, dict):
        result = {key: without_secrets(value) for key, value in values.items()}
    elif isinstance(values, list | tuple):
        result = [without_secrets(value) for value in values]
    return cast(Plain, result)


def _without_user(match: re.Match[str]) -> str:
    user, _, host = match[2].rpartition("@")
    return f"{match[1]}…" if "?" in user or "#" in user else f"{match[1]}…@{host}"


def visible(values: Any) -> Any:
    """Plain values in which every text, also every key, is escaped by `one_line`."""
    if isinstance(values, str):
        return one_line(values)
    if isinstance(values, dict):
        return {visible(key): visible(value) for key, value in values.items()}
    return [visible(value) for value in values] if isinstance(values, list | tuple) else values


def markdown(text: str) -> str:
    """Text on one line, escaped so that Markdown shows it literally."""
    return _MARKDOWN.sub(r"\\\1", one_line(text))


def csv_cell(value: object) -> object:
    """A value for a CSV table. Text that a spreadsheet would read as a formula gets an apostrophe at its beginning."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def nearest(name: str, candidates: Iterable[str], cutoff: float = _NEAR) -> str | None:
    """The known name that is most like a mistyped one, or with which it begins, as `base_model` does; or None."""
    # a plus may be spelled out, as in file names
    plus = ("+", "plus", "p")
    by_lower_case = {candidate.lower().replace("+", each): candidate for candidate in candidates for each in plus}
    lower_name = name.lower()[:200]
    near = get_close_matches(lower_name, by_lower_case, n=1, cutoff=cutoff)
    near = near or [each for each in by_lower_case if re.match(rf"{re.escape(each)}[_.-]", lower_name)]
    return by_lower_case[near[0]] if near else None


def unknown(what: str, name: str, known_names: Sequence[str], *, few: bool = False) -> str:
    """`unknown key 'agnets'; did you mean 'agents'?`, or the list of known names.

    Args:
        what: the kind of thing that is named.
        name: the name.
        known_names: all that are known.
        few: whether they are so few that they are always listed; then only a name that is very near is suggested.
    """
    near = nearest(name, known_names, cutoff=_VERY_NEAR if few else _NEAR)
    names = brief(", ".join(known_names), 1000) or "none"
    hints = [f"did you mean {near!r}?"] if near is not None else []
    hints += [f"known: {names}"] if few or near is None else []
    return f"unknown {what} {quoted(name)}; {' '.join(hints)}"


class Displayed:
    """A result that shows itself in one line, and in notebooks as a table. Dataclasses take `repr=False` for it.

    Texts of a result come from files of strangers, so they are shortened, and escaped for HTML.
    """

    def _summary(self) -> Mapping[str, object]:
        """The most important figures, by name."""
        raise NotImplementedError

    def _rows(self) -> Sequence[Mapping[str, object]]:
        """The rows of the table, each by column."""
        return [self._summary()]

    def __repr__(self) -> str:
        figures = ", ".join(f"{name}={_cell(value)}" for name, value in self._summary().items())
        return shown(f"{type(self).__name__}({figures})")

    def _repr_html_(self) -> str:
        rows = self._rows()[:_MOST_ROWS]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        head = "".join(f"<th>{_escape(name)}</th>" for name in columns)
        lines = ("".join(f"<td>{_escape(_cell(row.get(name, '')))}</td>" for name in columns) for row in rows)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<p>{_escape(repr(self))}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    """A figure of a result as text, with four significant digits."""
    if isinstance(value, Mapping):
        return enumerated([f"{name} {_cell(each)}" for name, each in value.items()])
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "none" if value is None else shown(without_secrets(str(value)), MOST)


def _escape(value: object) -> str:
    return html.escape(one_line(str(value)))
