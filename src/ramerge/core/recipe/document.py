"""The text of a recipe as plain values, with their line numbers."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from ramerge.core.foundation.errors import RecipeError, reason
from ramerge.core.foundation.files import near_file
from ramerge.core.foundation.jsontext import max_nesting
from ramerge.core.foundation.text import (
    TOO_LARGE,
    UNREADABLE,
    brief,
    is_too_large,
    is_unicode,
    one_line,
    quoted,
    unknown,
    without_secrets,
)
from ramerge.core.storage.location import Location

# Parsing YAML is slow, a millisecond for four lines, so the size of a text is checked first.
_MAX_BYTES = 200_000
_REMOTE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}(?=[^/])")
_MAX_SIGNS = 5_000
_MAX_DEPTH = 32
_MAX_NODES = 10_000

_SEVERAL = (
    "a second YAML document begins here, as in files for mergekit-multi, but a recipe is one document; write each into "
    "a file of its own and run them in order, each on the outputs of those before it"
)

Key = tuple[str, ...]
DEFAULT_METHOD = "ram+"


@dataclass
class Document:
    """A recipe as plain values, with the line or flag that each value comes from.

    Only this package works with the nested dicts, lists and scalars. Other packages read keys with `stated`, and get
    changed copies from `with_values`, `replacing`, `without`, or `for_method` (`other_method`).

    Attributes:
        source: the file's name for messages; None for recipes from Python or flags.
        folder: the folder at which relative paths start.
        lines: for each path of keys, its line number, counted from 1.
        text: the lines of the file.
        flags: for each path of keys that was set on the command line, the flag as written.
        origins: in a recipe translated from another form: for each path of keys, the path in that form.
        rules_from: in such a recipe, the name that rules have in that form; empty if it has no rules.
        layers: the number of layers in `slices` of a recipe in mergekit's form; None if there is none.
        same_tokenizers: a key of a recipe in mergekit's form that may only be ignored if all models have the same
            tokens; None if there is no such key.
        warnings: likely mistakes in a translated recipe, or in one whose method was chosen with prompts.
        notes: further remarks for the user.
        models: folders of models that have no path, such as those in memory, by the text that stands for the model.
    """

    _values: dict[str, Any]
    source: str | None = None
    folder: Path = field(default_factory=Path)
    lines: dict[Key, int] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)
    flags: dict[Key, str] = field(default_factory=dict)
    origins: dict[Key, Key] = field(default_factory=dict)
    rules_from: str = ""
    layers: int | None = None
    same_tokenizers: Key | None = None
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    models: Mapping[str, Location] = field(default_factory=dict)

    @property
    def method(self) -> Any:
        """The method's name, unchecked; the default method if the recipe has none."""
        return self._values.get("method", DEFAULT_METHOD)

    @property
    def agents(self) -> Mapping[str, Any]:
        """The agents by name, unchecked; empty if they are not a mapping."""
        return self._mapping_of_key("agents")

    @property
    def prompts(self) -> Mapping[str, Any]:
        """The files of prompts by agent, unchecked; empty if they are not a mapping."""
        return self._mapping_of_key("prompts")

    def _mapping_of_key(self, key: str) -> Mapping[str, Any]:
        value = self._values.get(key)
        return value if isinstance(value, Mapping) else {}

    def stated(self, key: str) -> Any:
        """The value of a top-level key, unchecked; None if the recipe does not have it. Do not modify the value."""
        return self._values.get(key)

    def as_dict(self) -> dict[str, Any]:
        """A copy of all values."""
        return deepcopy(self._values)

    def where(self, key: Key, message: str) -> str:
        """Complete a message about the value at `key` with the file, the line number and the line's text."""
        place = next((key[:n] for n in range(len(key), 0, -1) if key[:n] in self.flags or key[:n] in self.lines), ())
        if place in self.flags:
            flag = self.flags[place]
            assignment = f"{flag.rpartition('=')[2]}: "  # the value, if the flag shows it
            return f"{flag}: {message.removeprefix(assignment)}"
        name = ".".join(map(str, origin := self.origins.get(place, key)))
        if len(origin) > 1 and origin[0] in _LIST_ENTRIES and origin[1].isdecimal():
            rest = [".".join(origin[2:])] if origin[2:] else []
            name = ": ".join([f"{_LIST_ENTRIES[origin[0]]} {int(origin[1]) + 1}", *rest])
        name = brief(one_line(name), 200)
        label = f"{name}: {message}" if name else message
        if place in self.lines:
            return _line_message(self.source, self.lines[place], label, self.text)
        return f"{self.source}: {label}" if self.source else label

    def line_of(self, message: str) -> int:
        """The line number in a message made by `where`; 0 if it has none."""
        match = re.match(rf"{re.escape(str(self.source))}:(\d+): ", message)
        return int(match[1]) if match else 0

    def unknown(self, key: Key, what: str, name: object, known_names: Sequence[str], hint: str = "") -> str:
        """The message that `name`, the value at `key`, is unknown; it suggests the nearest known name."""
        return self.where(key, unknown(what, str(name), known_names) + hint)

    def key_of(self, text: str) -> Key:
        """Split a key such as `parameters.weights.code`; the name of an agent at its end may contain dots."""
        name = max((name for name in self.agents if text.endswith(f".{name}")), key=len, default="")
        return (*text.removesuffix(f".{name}").split("."), name) if name else tuple(text.split("."))

    def check_numbers(self) -> None:
        """Check whole numbers in values that come from Python; those in files are checked when they are read.

        Raises:
            RecipeError: a number has more than 63 bits; lists all keys with such numbers.
        """
        if wrong := [key for key, value in self._values.items() if is_too_large(value)]:
            raise RecipeError(self.where((key,), TOO_LARGE) for key in wrong)

    def set(self, key: Key, value: object, flag: str) -> None:
        """Set the value at `key`, which comes from the flag `flag`.

        Raises:
            RecipeError: a value along the path of keys is not a mapping.
        """
        mapping = self._values
        for depth, part in enumerate(key[:-1]):
            if part not in mapping and (depth or part not in _MAPPINGS):
                self.flags[key[: depth + 1]] = flag  # problems with the new mapping are problems of the flag
            inner = mapping.setdefault(part, {})
            if isinstance(inner, str) and key[0] == "agents" and depth == 1:
                inner = mapping[part] = {"model": inner}
            if not isinstance(inner, dict):
                raise RecipeError(f"{flag}: {'.'.join(key[: depth + 1])} is not a mapping")
            mapping = inner
        mapping[key[-1]] = plain_value(value)
        self.flags[key] = flag

    def with_values(self, values: Mapping[str, object] | Mapping[Key, object], flag: str = "") -> Document:
        """Return a copy with changed values. (The command line changes values in place, with `set`.)

        Args:
            values: the new values by key, such as `dtype`, `parameters.r` or `("parameters", "r")`; None keeps the
                current value.
            flag: the text before `KEY=VALUE` in messages, for example `--vary `.

        Raises:
            RecipeError: a value along the path to a key is not a mapping, or a whole number has more than 63 bits.
        """
        copy = self.rewritten(self._values)
        for key, value in values.items():
            name, parts = (key, self.key_of(key)) if isinstance(key, str) else (".".join(map(str, key)), key)
            if is_too_large(value):
                raise RecipeError(f"{flag}{name}: {TOO_LARGE}")
            if value is not None:
                copy.set(parts, value, f"{flag}{name}={value}")
        return copy

    def replacing(self, values: Mapping[str, object]) -> Document:
        """Return a copy with other values of top-level keys, but the same lines and flags; None removes a key."""
        remaining = {key: value for key, value in {**self._values, **values}.items() if values.get(key, 0) is not None}
        return self.rewritten(remaining)

    def without(self, *keys: str) -> Document:
        """Return a copy without these top-level keys."""
        return self.replacing(dict.fromkeys(keys))

    def rewritten(self, values: Mapping[str, Any]) -> Document:
        """Return a document with copies of these values, and the same lines and flags for messages."""
        copies = deepcopy(dict(values))
        return replace(self, _values=copies, flags=dict(self.flags), warnings=[*self.warnings], notes=[*self.notes])


# Keys whose values must be mappings, so that a mapping made for a flag is never wrong by itself.
_MAPPINGS = ("agents", "prompts", "parameters", "allow")
# Keys whose values are lists, and what users call an entry. Entries are counted from 1, as in the notes of a plan.
_LIST_ENTRIES = {"rules": "rule", "rename": "rename"}


def plain_value(value: Any) -> Any:
    """Convert NumPy's numbers and lists of them, also inside of mappings, to values that a recipe in YAML could have.

    >>> plain_value({"parameters": {"r": np.float64(0.5), "weights": (1, np.int64(2))}})
    {'parameters': {'r': 0.5, 'weights': [1, 2]}}
    """
    if isinstance(value, Mapping):
        return {key: plain_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(inner) for inner in value]
    is_list = isinstance(value, np.ndarray) and value.ndim <= 1  # others are tensors, which a recipe cannot have
    return value.tolist() if is_list or isinstance(value, np.generic) else value


def document_of(model: str, label: str, method: str | None = "passthrough") -> Document:
    """A recipe for a single model; by default, its method rewrites the model unchanged."""
    document = Document({"method": method} if method is not None else {})
    document.set(("agents", "model"), model, label)
    return document


_FORM = "a recipe is a mapping with the keys method, base and agents"


def read_document(path: str | Path, form: str = _FORM) -> Document:
    """Read a recipe, or another YAML file that contains a mapping.

    Args:
        path: the file.
        form: the message about a file that does not contain a mapping.

    Raises:
        RecipeError: the file does not exist, is not YAML, or does not contain a mapping.
    """
    if (remote := _REMOTE.match(str(path))) is not None:  # a Path has kept only one slash
        where = f"{remote[1]}://{str(path)[remote.end() :]}"
        raise RecipeError(f"{without_secrets(where)}: a recipe must be a local file; download it first")
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except IsADirectoryError as error:
        raise RecipeError(
            f"{path}: is a folder, not a recipe; give models with --base and --agent NAME=MODEL, or write one model "
            "again with `ramerge convert`"
        ) from error
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {reason(error)}{near_file(path)}") from error
    return parse_document(data, str(path), path.parent, form)


def parse_document(data: bytes, source: str, folder: Path, form: str = _FORM) -> Document:
    """Parse a YAML text.

    Args:
        data: the text in UTF-8.
        source: the file's name for messages.
        folder: the folder at which relative paths start.
        form: the message about a text that does not contain a mapping.

    Raises:
        RecipeError: the text is not YAML, is too large, or does not contain a mapping.
    """
    # such texts would take too long to parse; signs inside strings and comments count, too
    if len(data) > _MAX_BYTES:
        raise RecipeError(f"{source}: is longer than {_MAX_BYTES:,} bytes, too long for a recipe")
    if sum(map(data.count, (b",", b":", b"[", b"{", b"\n", b"\r"))) > _MAX_SIGNS:
        raise RecipeError(
            f"{source}: has more than {_MAX_SIGNS:,} lines, commas, colons and brackets, too many to read"
        )
    if max_nesting(data) > _MAX_DEPTH:
        raise RecipeError(f"{source}: nested too deeply for a recipe: more than {_MAX_DEPTH} brackets")
    try:
        text = data.decode("utf-8")
        tree = YAML(typ="rt").load(text)
    except UnicodeDecodeError as error:
        raise RecipeError(f"{source}: is not UTF-8 text, so it is not a recipe") from error
    except DuplicateKeyError as error:
        name = str(error.problem).split('"')[1] if '"' in str(error.problem) else "a key"
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise RecipeError(_line_message(source, line, f"{quoted(name)} is given twice", text.splitlines())) from error
    except MarkedYAMLError as error:
        lines = text.splitlines()
        raise RecipeError(_line_message(source, *_explain_error(error, lines), lines)) from error
    except (YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, ValueError) and (match := UNREADABLE.search(text)) is not None:
            line = text.count("\n", 0, match.start()) + 1
            raise RecipeError(_line_message(source, line, TOO_LARGE, text.splitlines())) from error
        raise RecipeError(f"{source}: not valid YAML: {error}") from error
    if not isinstance(tree, CommentedMap):
        raise RecipeError(f"{source}: {form}")
    document = Document({}, source, folder, {}, text.splitlines())
    try:
        document._values |= _convert_node(tree, (), document, iter(range(_MAX_NODES)))  # noqa: SLF001  # its own room
    except RecursionError as error:
        raise RecipeError(f"{source}: nested too deeply for a recipe") from error
    return document


def to_yaml(values: Mapping[str, object]) -> str:
    """Write values as YAML, one key per line."""
    stream, yaml = io.StringIO(), YAML()
    yaml.default_flow_style = False
    yaml.dump(dict(values), stream)
    return stream.getvalue()


def _line_message(source: str | None, number: int, message: str, text: Sequence[str]) -> str:
    """A message about a line, followed by the text of the line."""
    line = brief(text[number - 1].rstrip(), 200) if 0 < number <= len(text) else ""
    return f"{source}:{number}: {message}\n    {number} | {line}"


# A line in which the space after the colon of a key is missing; addresses with :// are values.
_UNSPACED = re.compile(r"\s*(?:- )?[A-Za-z_][\w.+-]*:(?!//)[^\s:]+(?:\s+#.*)?$")
# Parts of messages of the YAML library, our messages, and whether to show the line where the error began.
_YAML_ERRORS = (
    ("single document", _SEVERAL, False),
    ("simple key", "a colon is missing between a key and its value", True),
    ("quoted scalar", "a quotation mark is not closed", True),
    ("flow mapping", "a brace is not closed, or a comma is missing inside of it", True),
    ("flow sequence", "a bracket is not closed, or a comma is missing inside of it", True),
    (r"'\t'", "is indented with a tab; use spaces", False),
    ("mapping values", "unexpected colon; check the indentation, and put values with a colon in quotes", False),
    ("block mapping", "does not line up with the lines above it; keys of one level are indented alike", False),
)


def _explain_error(error: MarkedYAMLError, lines: Sequence[str]) -> tuple[int, str]:
    """The line number of an error in YAML, and its cause."""
    for mark in (error.context_mark, error.problem_mark):
        # without a space after the colon, the line is plain text: the error shows on it, or on the next line
        for number in (mark.line, mark.line - 1) if mark else ():
            if 0 <= number < len(lines) and _UNSPACED.match(lines[number]):
                return number + 1, "not valid YAML: a space is missing after the colon"
    parser_text = f"{error.context} {error.problem}"
    text, from_beginning = next(
        ((text, starts) for words, text, starts in _YAML_ERRORS if words in parser_text),
        (error.problem or error.context or "", False),
    )
    mark = (error.context_mark if from_beginning else None) or error.problem_mark
    return mark.line + 1 if mark else 0, text if text is _SEVERAL else f"not valid YAML: {text}"


def _convert_node(node: object, key: Key, document: Document, budget: Iterator[int]) -> Any:
    """Convert ruamel's tree to plain values, and add the line of each key to `document`."""
    if next(budget, None) is None:
        raise RecipeError(f"{document.source}: has more than {_MAX_NODES:,} values, too many for a recipe")
    if isinstance(node, CommentedMap):
        texts = {name: _text_of_name(name) for name in node}
        for name, text in texts.items():
            document.lines[(*key, text)] = node.lc.key(name)[0] + 1 if name in (node.lc.data or {}) else 1
        # whole numbers may be keys, but ~ would become None, and 1.50 would become 1.5
        if wrong := [text for name, text in texts.items() if not isinstance(name, str) and type(name) is not int]:
            raise RecipeError(
                document.where((*key, text), "is no text in YAML, so it is no name; write it in quotes, such as 'name'")
                for text in wrong
            )
        names = [_convert_scalar(name, (*key, "?"), document) for name in node]
        twice = sorted(name for name, count in Counter(map(str, names)).items() if count > 1)
        if twice:
            raise RecipeError(document.where(key, f"{quoted(name)} is given twice") for name in twice)
        return {str(name): _convert_node(value, (*key, str(name)), document, budget) for name, value in node.items()}
    if isinstance(node, CommentedSeq):
        for index in range(len(node)):
            document.lines[(*key, str(index))] = node.lc.item(index)[0] + 1 if index in (node.lc.data or {}) else 1
        return [_convert_node(value, (*key, str(index)), document, budget) for index, value in enumerate(node)]
    return _convert_scalar(node, key, document)


def _text_of_name(name: object) -> str:
    """A key as YAML writes it."""
    if name is None or isinstance(name, bool):
        return {None: "null", True: "true", False: "false"}[name]
    try:
        return str(name)
    except ValueError:  # Python does not convert numbers with thousands of digits
        return "a number"


def _convert_scalar(node: Any, key: Key, document: Document) -> object:
    kind = next((kind for kind in (bool, int, float, str) if isinstance(node, kind)), None)
    if kind is None and node is not None:
        raise RecipeError(document.where(key, f"{quoted(node)} is neither text nor a number; write it in quotes"))
    value = kind(node) if kind else None
    if is_too_large(value):
        raise RecipeError(document.where(key, TOO_LARGE))
    if isinstance(value, str) and not is_unicode(value):
        text = f"{quoted(value)} holds half of a surrogate pair, which is not a character"
        raise RecipeError(document.where(key, text))
    return value
