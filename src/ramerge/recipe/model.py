"""What to merge, and how: from YAML, flags or Python to a checked `Recipe`. Opens no checkpoint.

A recipe is read in two steps, so that every problem can be reported together and with its line: `Document` is the
text as plain values that remember where they stand, `Recipe` is the checked structure. Which methods exist and what
parameters they take is not known here; the plan adds those checks.
"""

from __future__ import annotations

import io
import os
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from ramerge.foundation.errors import RecipeError
from ramerge.foundation.jsontext import nesting
from ramerge.foundation.text import brief, is_unicode, one_line, quoted, unknown

DEFAULT_METHOD = "ram+"
MAX_AGENTS = 16
# Parsing YAML takes a millisecond for four lines: what may be long is counted before.
_MAX_BYTES = 200_000
_MAX_SIGNS = 5_000
_MAX_DEPTH = 32
_MAX_NODES = 10_000
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)

_LAYER_NUMBER = re.compile(r"(?:^|\.)(\d+)\.")

_NO_SIZE_BYTES = 1000
# Short names of dtypes, as flags of training and serving tools have them.
_SHORT_DTYPES = {
    **dict.fromkeys(("bf16",), "bfloat16"),
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
}

# What a value must be, in words of recipes and not of Python, by pydantic's type of error.
_FORMS = {
    "dict_type": "a mapping, such as {code: ./coder}",
    "model_type": "a mapping, such as {key: value}",
    "tuple_type": "a list",
    "string_type": "text",
    "bool_type": "true or false",
}

Key = tuple[str, ...]


def parse_size(text: str | int) -> int:
    """Bytes of `5GB` (10^9), `500MiB` (2^20) or a plain number.

    Raises:
        ValueError: not a size, not above zero, or so few bytes that a unit must be missing.
    """
    found = _SIZE.fullmatch(str(text).strip())
    if not found:
        raise ValueError(f"{text!r} is not a size such as 5GB or 500MiB")
    number, unit, binary = found.groups()
    size = int(float(number) * (1024 if binary else 1000) ** " KMGT".index(unit.upper() or " "))
    if size <= 0:
        raise ValueError(f"{text!r} is not a size above zero")
    if size < _NO_SIZE_BYTES:
        hint = "" if unit else f"; did you mean {number}GB?"
        raise ValueError(f"{text!r} is not a size that anything fits in: {size} bytes{hint}")
    return size


def _as_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _as_patterns(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _as_layers(value: Any) -> Any:
    """A number or a list of them as text."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else _as_number_text(value)


def _as_number_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class Agent(_Strict):
    """One RL-trained model.

    Attributes:
        model: a folder, or a hub id with an optional `@revision`.
        importance: a folder or hub id with a tensor of importances for each of the model's, for methods that need it.
    """

    model: Annotated[str, BeforeValidator(_as_text), Field(min_length=1)]
    importance: Annotated[str, BeforeValidator(_as_text), Field(min_length=1)] | None = None


class Rule(_Strict):
    """What becomes of the tensors that it catches: the base's own, one agent's, or the method's with other parameters.

    Attributes:
        match: shell patterns (`*`, `?`, `[0-9]`) on names of tensors; one that fits is enough.
        layers: layers that it is limited to, such as `0-7` or `3, 10-12`, by the first number in a tensor's name.
        keep: `base`.
        take: name of the agent.
        parameters: those of the method that are other than in the recipe.
    """

    match: Annotated[tuple[str, ...], BeforeValidator(_as_patterns), Field(min_length=1, strict=False)] = ("*",)
    layers: Annotated[str | None, BeforeValidator(_as_layers)] = None
    keep: Literal["base"] | None = None
    take: str | None = None
    parameters: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _does_one_thing(self) -> Rule:
        if sum(value is not None for value in (self.keep, self.take, self.parameters)) != 1:
            raise ValueError("must have one of keep: base, take: AGENT, parameters: {...}")
        if not all(self.match):
            raise ValueError("match must not be empty")
        if self.layers is not None:
            _layers(self.layers)
        return self

    def catches(self, name: str) -> bool:
        """Whether a tensor of this name is meant."""
        if not any(fnmatchcase(name, pattern) for pattern in self.match):
            return False
        if self.layers is None:
            return True
        layer = _LAYER_NUMBER.search(name)
        return layer is not None and int(layer[1]) in _layers(self.layers)

    def __str__(self) -> str:
        where = f" of layers {self.layers}" if self.layers else ""
        return f"{', '.join(self.match)}{where}"


def _layers(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span = re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", part)
        if not span or int(span[2] or span[1]) < int(span[1]):
            raise ValueError(f"layers must be numbers and ranges, such as 0-7 or 3, 10-12, not {text!r}")
        found.update(range(int(span[1]), int(span[2] or span[1]) + 1))
    return found


class Allow(_Strict):
    """What would otherwise be refused.

    Attributes:
        missing_tensors: an agent that lacks a tensor leaves the base's there.
        extra_tensors: an agent's tensors that the base lacks are dropped.
        different_shapes: an agent's tensor of another shape leaves the base's there.
        non_finite: NaN and Inf in the weights are computed with as IEEE arithmetic has it.
        outside_links: files of a checkpoint may be links to anywhere.
        config: keys of config.json that may differ although they change what the weights mean.
    """

    missing_tensors: bool = False
    extra_tensors: bool = False
    different_shapes: bool = False
    non_finite: bool = False
    outside_links: bool = False
    config: tuple[str, ...] = Field(default=(), strict=False)


def _as_agent(value: Any) -> Any:
    return {"model": _as_text(value)} if isinstance(value, str | os.PathLike) else value


def _as_size(value: Any) -> Any:
    return parse_size(value) if isinstance(value, str | int) and not isinstance(value, bool) else value


def full_dtype(value: Any) -> Any:
    """The full name of a dtype: `bfloat16` for `bf16`, `BF16` and `torch.bfloat16`; what is none stays as it is."""
    name = value.lower().removeprefix("torch.") if isinstance(value, str) else value
    return _SHORT_DTYPES.get(name, name) if isinstance(name, str) else value


class Recipe(_Strict):
    """A checked recipe. Relative paths are relative to the recipe's file, or to the working directory without one.

    Attributes:
        method: a name of `ramerge methods`; by default `ram+`.
        base: folder or hub id of the base model; methods that merge agents and not task vectors do without.
        agents: name to agent, in the order in which sums run; 1 to 16.
        parameters: the method's parameters; what is not given has the preset's or the default value.
        preset: a named set of parameters, such as `paper`.
        dtype: dtype of every floating-point tensor of the output, or `widest`: for each tensor the one that holds all
            values of base and agents; by default each keeps the base's.
        companions: the agent whose tokenizer, chat template and generation config the output gets.
        shard_size: bytes of an output shard; by default the output has the base's shards.
        rules: what is other for some tensors; the first rule that catches a tensor holds.
        allow: what would otherwise be refused.

    Raises:
        RecipeError: the structure is wrong; every problem.
    """

    method: str = DEFAULT_METHOD
    base: Annotated[Annotated[str, Field(min_length=1)] | None, BeforeValidator(_as_text)] = None
    agents: dict[str, Annotated[Agent, BeforeValidator(_as_agent)]] = Field(min_length=1, max_length=MAX_AGENTS)
    parameters: dict[str, Any] = Field(default_factory=dict)
    preset: str | None = None
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32", "float64", "widest"] | None, BeforeValidator(full_dtype)
    ] = None
    companions: str | None = None
    shard_size: Annotated[Annotated[int, Field(gt=0)] | None, BeforeValidator(_as_size)] = None
    rules: tuple[Rule, ...] = Field(default=(), strict=False)
    allow: Allow = Allow()

    _document: Document = PrivateAttr(default_factory=lambda: Document({}))

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise RecipeError(describe(error, Document(values), Recipe)) from error

    @field_validator("agents")
    @classmethod
    def _plain_names(cls, agents: dict[str, Agent]) -> dict[str, Agent]:
        for name in agents:
            if not name.strip() or not name.isprintable():
                raise ValueError(f"agent name {quoted(name)} must be printable and not empty")
        return agents

    @property
    def folder(self) -> Path:
        """What relative paths are relative to."""
        return self._document.folder

    @property
    def document(self) -> Document:
        """The text that the recipe came from, for messages."""
        return self._document

    def rule_of(self, tensor: str) -> int:
        """The number of the first rule that catches a tensor of this name, counted from 1; 0 for none."""
        return next((number for number, rule in enumerate(self.rules, 1) if rule.catches(tensor)), 0)

    def to_yaml(self) -> str:
        """The recipe as YAML, with everything that is not a default."""
        # what a merge was made by must not depend on a default
        values = {"method": self.method} | self.model_dump(mode="json", exclude_defaults=True)
        values["agents"] = {
            name: agent.model if agent.importance is None else agent.model_dump() for name, agent in self.agents.items()
        }
        stream = io.StringIO()
        yaml = YAML()
        yaml.default_flow_style = False
        yaml.dump(values, stream)
        return stream.getvalue()


@dataclass
class Document:
    """A recipe as plain values, each of which remembers where it was written.

    Attributes:
        values: nested dicts, lists and scalars.
        source: the file's name for messages, None for Python and flags.
        folder: what relative paths are relative to.
        lines: path of keys to line number, counted from 1.
        text: the file's lines.
        flags: paths of keys that came from the command line, with the flag as written.
        layers: how many layers a recipe of mergekit's form says the models have, under `slices`; None if it does not.
    """

    values: dict[str, Any]
    source: str | None = None
    folder: Path = field(default_factory=Path)
    lines: dict[Key, int] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)
    flags: dict[Key, str] = field(default_factory=dict)
    layers: int | None = None

    def where(self, key: Key, message: str) -> str:
        """`message` about the value at `key`, with the file, the line and its text."""
        name = brief(one_line(".".join(key)), 200)
        label = f"{name}: {message}" if name else message
        for length in range(len(key), 0, -1):
            if key[:length] in self.flags:
                return f"{self.flags[key[:length]]}: {message}"
            if key[:length] in self.lines:
                number = self.lines[key[:length]]
                line = brief(self.text[number - 1].rstrip(), 200) if number <= len(self.text) else ""
                return f"{self.source}:{number}: {label}\n    {number} | {line}"
        return f"{self.source}: {label}" if self.source else label

    def set(self, key: Key, value: Any, flag: str) -> None:
        """Set the value at `key`, as the flag `flag` asks.

        Raises:
            RecipeError: a value on the way is not a mapping.
        """
        place = self.values
        for depth, part in enumerate(key[:-1]):
            inner = place.setdefault(part, {})
            if isinstance(inner, str) and key[0] == "agents" and depth == 1:
                inner = place[part] = {"model": inner}
            if not isinstance(inner, dict):
                raise RecipeError(f"{flag}: {'.'.join(key[: depth + 1])} is not a mapping")
            place = inner
        place[key[-1]] = value
        self.flags[key] = flag


def read_document(path: Path) -> Document:
    """Read a recipe's file.

    Raises:
        RecipeError: no such file, not YAML, or not a mapping.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except IsADirectoryError as error:
        raise RecipeError(
            f"{path}: is a folder and no recipe; name models with --base and --agent NAME=MODEL"
        ) from error
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}{_near_file(path)}") from error
    try:
        _check_length(path, data)
        text = data.decode("utf-8")
        tree = YAML(typ="rt").load(text)
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text, so not a recipe") from error
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        name = str(error.problem).split('"')[1] if '"' in str(error.problem) else "a key"
        raise RecipeError(
            f"{path}:{line}: {quoted(name)} is given twice\n    {line} | {brief(text.splitlines()[line - 1], 200)}"
        ) from error
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise RecipeError(f"{path}:{line}: not valid YAML: {error.problem or error.context}") from error
    except (YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RecipeError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(tree, CommentedMap):
        raise RecipeError(f"{path}: a recipe is a mapping with the keys method, base and agents")
    document = Document({}, str(path), path.parent, {}, text.splitlines())
    try:
        document.values = _plain(tree, (), document, iter(range(_MAX_NODES)))
    except RecursionError as error:
        raise RecipeError(f"{path}: nested too deeply for a recipe") from error
    return document


def _check_length(path: Path, data: bytes) -> None:
    """Refuse what could not be parsed in a moment. Signs in texts and comments count too."""
    if len(data) > _MAX_BYTES:
        raise RecipeError(f"{path}: more than {_MAX_BYTES:,} bytes is too long for a recipe")
    if sum(map(data.count, (b",", b":", b"[", b"{", b"\n", b"\r"))) > _MAX_SIGNS:
        raise RecipeError(f"{path}: more than {_MAX_SIGNS:,} lines, commas, colons and brackets are too many")
    if nesting(data) > _MAX_DEPTH:
        raise RecipeError(f"{path}: nested too deeply for a recipe: more than {_MAX_DEPTH} brackets")


def _near_file(path: Path) -> str:
    entries = islice(path.parent.iterdir(), 1000) if path.parent.is_dir() else ()
    names = [entry.name for entry in entries if entry.is_file()]
    near = get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / near[0]}?" if near else ""


def _plain(node: Any, key: Key, document: Document, budget: Iterator[int]) -> Any:
    """ruamel's tree as plain values, noting the line of every key."""
    if next(budget, None) is None:
        raise RecipeError(f"{document.source}: more than {_MAX_NODES:,} values is too many for a recipe")
    if isinstance(node, CommentedMap):
        names = [_scalar(name, (*key, "?"), document) for name in node]
        twice = sorted(name for name, count in Counter(map(str, names)).items() if count > 1)
        if twice:
            raise RecipeError(document.where(key, f"{quoted(name)} is given twice") for name in twice)
        for name in node:
            document.lines[(*key, str(name))] = node.lc.key(name)[0] + 1 if name in (node.lc.data or {}) else 1
        return {str(name): _plain(value, (*key, str(name)), document, budget) for name, value in node.items()}
    if isinstance(node, CommentedSeq):
        for place in range(len(node)):
            document.lines[(*key, str(place))] = node.lc.item(place)[0] + 1 if place in (node.lc.data or {}) else 1
        return [_plain(value, (*key, str(place)), document, budget) for place, value in enumerate(node)]
    return _scalar(node, key, document)


def _scalar(node: Any, key: Key, document: Document) -> Any:
    """A value or a key that is a number, text, true, false or nothing."""
    kind = next((kind for kind in (bool, int, float, str) if isinstance(node, kind)), None)
    if kind is None and node is not None:
        raise RecipeError(document.where(key, f"{quoted(node)} is no text and no number; write it in quotes"))
    value = kind(node) if kind else None
    if isinstance(value, int) and value.bit_length() > 63:
        raise RecipeError(document.where(key, f"{quoted(value)} has more than 63 bits"))
    if isinstance(value, str) and not is_unicode(value):
        raise RecipeError(document.where(key, f"{quoted(value)} holds half of a surrogate pair, which is no character"))
    return value


def check(document: Document, without: Container[str] = ()) -> tuple[Recipe | None, list[str]]:
    """The recipe of a document, `without` some of its keys, or the problems of its structure."""
    try:
        recipe = Recipe(**{key: value for key, value in document.values.items() if key not in without})
    except RecipeError as error:
        cause = error.__cause__
        return None, describe(cause, document, Recipe) if isinstance(cause, ValidationError) else list(error.problems)
    except TypeError as error:
        return None, [document.where((), str(error))]
    recipe._document = document
    return recipe, []


def describe(
    error: ValidationError,
    document: Document,
    model: type[BaseModel],
    prefix: Key = (),
    only: Container[Any] | None = None,
) -> list[str]:
    """What a validation found, one sentence a problem, with line, and the nearest valid name for an unknown key.

    `only`: leave out what is wrong with other keys.
    """
    problems = []
    for item in error.errors():
        if only is not None and item["loc"] and item["loc"][0] not in only:
            continue
        key = (*prefix, *(str(part) for part in item["loc"] if part not in ("[key]", "function-before")))
        problems.append(document.where(key, _sentence(item, model)))
    return problems


def _sentence(item: Mapping[str, Any], model: type[BaseModel]) -> str:
    kind, value = item["type"], item.get("input")
    if kind == "extra_forbidden":
        return unknown("key", str(item["loc"][-1]), _known_keys(model, item["loc"][:-1]))
    if kind == "missing":
        return "is missing"
    if kind == "value_error":
        return str(item["ctx"]["error"])
    if kind == "literal_error" and isinstance(value, str):
        return unknown("value", value, re.findall(r"'([^']*)'", item["ctx"]["expected"]))
    if kind in _FORMS:
        return f"must be {_FORMS[kind]}, not {quoted(value)}"
    if kind == "too_long":
        return f"{len(value) if value else 'too many'} are given, {item['ctx']['max_length']} are allowed"
    message = str(item["msg"]).removeprefix("Input ")
    shown = repr(value)
    return f"{message}, not {shown if len(shown) < 60 else type(value).__name__}"


def _known_keys(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    inside: dict[str, type[BaseModel]] = {"agents": Agent, "rules": Rule, "allow": Allow}
    owner = inside.get(str(location[0]), model) if location else model
    return list(owner.model_fields)
