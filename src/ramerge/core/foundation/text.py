"""Makes untrusted text safe to show and to write.

Names of tensors, files, keys and models come from downloads. If they are shown unchanged, they can clear a terminal,
reverse the order of its letters, or imitate ramerge's own output. All text that people read goes through `one_line` or
`message`. Markdown, CSV and JSON have their own functions.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar, cast

Plain = TypeVar("Plain")

MOST = 2000
"""The most characters of a message. The middle of a longer message is left out."""

MOST_NAMES = 3
"""The most names that a message lists."""

_MOST_ROWS = 20
"""The most rows of a table in a notebook."""

MOST_ALIKE = 10
"""The most similar problems that are shown, such as problems of records in one file."""

NOT_UTF8 = "the path holds bytes that are not UTF-8; rename the folder"
"""The message about a path that cannot be written into recipes and records, which are UTF-8."""

# Characters that are invisible although Unicode counts them as printable.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_CONTINUATION = re.compile(r"\n(?=    )")
# The beginning of an address, correct or mistyped.
_SCHEME = r"(?:://+|\b(?:https?|s3|gs|az)(?::/*|//)(?=\S))"
_ADDRESS = re.compile(_SCHEME, re.IGNORECASE)
# The parts of an address that may be secret: user and password, the query, which may be a signature, and the fragment.
_HOST = re.compile(rf"({_SCHEME})([^/\s'\"]*@[^/\s'\"]*)", re.IGNORECASE)
_QUERY = re.compile(r"(\?|(?<=\S)#)[^\s'\"]+")
# How similar two names must be for a suggestion; `float8` and `float64` have 0.77.
_NEAR, _VERY_NEAR = 0.6, 0.8
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|~&#!$])")


def _replace_surrogates(text: str) -> str:
    """Make text encodable as UTF-8: replace lone halves of surrogate pairs by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def printable(text: str) -> str:
    """Replace control characters by question marks. White space stays."""
    return "".join(character if character.isprintable() or character.isspace() else "?" for character in text)


def shown(value: object, most: int = 200) -> str:
    """Return the beginning of `str(value)` on one line that is safe for a terminal."""
    text = str(value)
    line = " ".join(printable(_replace_surrogates(text[: 10 * most])).split())
    return line if len(line) <= most and len(text) <= 10 * most else f"{line[:most]}..."


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded as UTF-8; text with lone halves of surrogate pairs cannot."""
    return _replace_surrogates(text) == text


def one_line(text: str) -> str:
    """Escape invisible characters and control characters, line ends included, such as `\\x1b`."""
    if text.isprintable() and not _INVISIBLE.search(text):
        return text
    return "".join(
        each if each.isprintable() and not _INVISIBLE.match(each) else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def brief(text: str, most: int = MOST) -> str:
    """Shorten text to about `most` characters: replace the middle by the number of missing characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}… ({len(text) - 2 * half:,} characters more) …{text[-half:]}"


def enumerated(names: Sequence[str]) -> str:
    """Join names as `a`, `a and b`, or `a, b and c`."""
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
    """List the first three names, quoted, and the number of others. `count`: the total, if `names` are only some."""
    return brief_list([*map(quoted, names[:MOST_NAMES])], len(names) if count is None else count)


def brief_list(items: Sequence[str], count: int | None = None) -> str:
    """List the first three items, and the number of others. `count`: the total, if `items` are only some."""
    more = (len(items) if count is None else count) - min(len(items), MOST_NAMES)
    return ", ".join(items[:MOST_NAMES]) + (f" and {more:,} more" if more else "")


def first_of(problems: Sequence[str], count: int | None = None) -> list[str]:
    """Return the first ten of many similar problems, and the number of the others.

    Args:
        problems: all problems, or at least the first ten.
        count: how many problems there are; None if `problems` holds all.
    """
    more = (len(problems) if count is None else count) - MOST_ALIKE
    return [*problems[:MOST_ALIKE], *([f"and {more:,} more"] if more > 0 else [])]


def decimals(value: float, digits: int) -> str:
    """Format a number with a fixed number of decimals, without a minus sign if it rounds to zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


MOST_BITS = 63
"""The most bits of a whole number in a recipe or a flag; no seed or size needs more."""

TOO_LARGE = (
    f"a whole number of more than {MOST_BITS} bits is no value of a key; write a large real number with an exponent, "
    "such as 1e30"
)
"""The message about a larger whole number in a recipe or a flag."""

UNREADABLE = re.compile(r"(?<![0-9_])[0-9][0-9_]{600,}")
"""Matches whole numbers with so many digits that Python may refuse to read them: its limit is at least 640."""


def is_too_large(value: object) -> bool:
    """Whether plain values contain a whole number of more than `MOST_BITS`, which Python may refuse to print."""
    if isinstance(value, dict):
        return any(map(is_too_large, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return any(map(is_too_large, value))
    return isinstance(value, int) and value.bit_length() > MOST_BITS


def literal(value: object) -> str:
    """Return `repr(value)`, or a description if Python refuses to print a whole number with too many digits."""
    try:
        return repr(value)
    except ValueError:
        return f"{type(value).__name__} of too many digits to print"


def quoted(text: object, most: int = 120) -> str:
    """Quote and shorten an untrusted name or value for a message."""
    return brief(without_secrets(one_line(literal(text))), most)


def message(text: str) -> str:
    """Escape and shorten a message that contains untrusted names, and remove secrets.

    Continuation lines of a message are indented by four spaces. A line break without this indent comes from untrusted
    text, and is escaped.
    """
    return "\n".join(map(one_line, _CONTINUATION.split(brief(without_secrets(text)))))


def without_secrets(values: Plain) -> Plain:
    """Remove user, password, query and fragment from addresses in a text, or in plain values.

    A path may contain spaces, so everything after the beginning of an address that looks like a query is removed.
    """
    result: Any = values
    if isinstance(values, str) and (match := _ADDRESS.search(values)):
        begin = match.start()
        result = values[:begin] + _QUERY.sub(r"\1…", _HOST.sub(_remove_user, values[begin:]))
    elif isinstance(values, dict):
        result = {key: without_secrets(value) for key, value in values.items()}
    elif isinstance(values, list | tuple):
        result = [without_secrets(value) for value in values]
    return cast(Plain, result)


def _remove_user(match: re.Match[str]) -> str:
    user, _, host = match[2].rpartition("@")
    return f"{match[1]}…" if "?" in user or "#" in user else f"{match[1]}…@{host}"


def visible(values: Any) -> Any:
    """Escape every text in plain values, including keys, with `one_line`."""
    if isinstance(values, str):
        return one_line(values)
    if isinstance(values, dict):
        return {visible(key): visible(value) for key, value in values.items()}
    return [visible(value) for value in values] if isinstance(values, list | tuple) else values


def markdown(text: str) -> str:
    """Escape text so that Markdown shows it literally, on one line."""
    return _MARKDOWN.sub(r"\\\1", one_line(text))


def csv_cell(value: object) -> object:
    """Return a value for a CSV table; text that a spreadsheet would read as a formula is prefixed by an apostrophe."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def nearest(name: str, candidates: Iterable[str], cutoff: float = _NEAR) -> str | None:
    """Return the candidate most similar to a mistyped name, or a prefix of it, as `base` of `base_model`; or None."""
    # a plus may be spelled out, as in file names
    plus = ("+", "plus", "p")
    by_lower_case = {candidate.lower().replace("+", each): candidate for candidate in candidates for each in plus}
    lower_name = name.lower()[:200]
    near = get_close_matches(lower_name, by_lower_case, n=1, cutoff=cutoff)
    near = near or [each for each in by_lower_case if re.match(rf"{re.escape(each)}[_.-]", lower_name)]
    return by_lower_case[near[0]] if near else None


def unknown(what: str, name: str, known_names: Sequence[str], *, few: bool = False) -> str:
    """Return a message such as `unknown key 'agnets'; did you mean 'agents'?`, or with the list of known names.

    Args:
        what: the kind of thing, such as `key`.
        name: the unknown name.
        known_names: all known names.
        few: whether to always list the known names, because they are few; then only a very similar name is suggested.
    """
    near = nearest(name, known_names, cutoff=_VERY_NEAR if few else _NEAR)
    names = brief(", ".join(f"'{each}'" if " " in each else each for each in known_names), 1000) or "none"
    hints = [f"did you mean {near!r}?"] if near is not None else []
    hints += [f"known: {names}"] if few or near is None else []
    return f"unknown {what} {quoted(name)}; {' '.join(hints)}"


class ByName(dict[str, Plain]):
    """Figures of agents by name. The error for a name that no agent has lists the names."""

    def __missing__(self, name: object) -> Plain:
        raise KeyError(unknown("agent", str(name), list(self)))


class Displayed:
    """Base class of results with a one-line `repr`, and a table in notebooks. Dataclasses must set `repr=False`.

    Texts of a result may be untrusted, so they are shortened, and escaped for HTML.
    """

    _all_figures: ClassVar[str] = ""  # the attribute with the figures that the table leaves out

    def _summary(self) -> Mapping[str, object]:
        """Return the most important figures, by name."""
        raise NotImplementedError

    def _rows(self) -> Sequence[Mapping[str, object]]:
        """Return the rows of the table, each a mapping by column."""
        return [self._summary()]

    def __repr__(self) -> str:
        figures = ", ".join(f"{name}={_format_cell(value)}" for name, value in self._summary().items())
        return shown(f"{type(self).__name__}({figures})", 400)

    def _repr_html_(self) -> str:
        all_rows = self._rows()
        rows = all_rows[:_MOST_ROWS]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        head = "".join(f"<th>{_escape(name)}</th>" for name in columns)
        lines = ("".join(f"<td>{_escape(_format_cell(row.get(name, '')))}</td>" for name in columns) for row in rows)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        more = f"{len(all_rows) - len(rows):,} more rows. " if len(all_rows) > len(rows) else ""
        rest = f"{more}All figures: .{self._all_figures}" if self._all_figures else more
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<p>{_escape(repr(self))}</p>{table}{f'<p>{rest}</p>' * bool(rest)}"


def _format_cell(value: object) -> str:
    """Format a figure as text, with four significant digits."""
    if isinstance(value, Mapping):
        return enumerated([f"{name} {_format_cell(each)}" for name, each in value.items()])
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "none" if value is None else shown(without_secrets(str(value)), MOST)


def _escape(value: object) -> str:
    return html.escape(one_line(str(value)))
