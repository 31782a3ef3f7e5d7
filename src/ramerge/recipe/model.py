"""The structure of a recipe: its keys, and what their values may be."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Container
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

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

from ramerge.foundation.dtypes import full_dtype
from ramerge.foundation.errors import RecipeError
from ramerge.foundation.text import quoted
from ramerge.recipe.document import Document
from ramerge.recipe.layers import layer_of, parse_layers
from ramerge.recipe.sentences import describe

DEFAULT_METHOD = "ram+"
MAX_AGENTS = 16
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)

_NO_SIZE_BYTES = 1000


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
            parse_layers(self.layers)
        return self

    def catches(self, name: str) -> bool:
        """Whether a tensor of this name is meant."""
        if not any(fnmatchcase(name, pattern) for pattern in self.match):
            return False
        if self.layers is None:
            return True
        layer = layer_of(name)
        return layer is not None and layer.number in parse_layers(self.layers)

    def __str__(self) -> str:
        where = f" of layers {self.layers}" if self.layers else ""
        return f"{', '.join(self.match)}{where}"


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

    inside: ClassVar[dict[str, type[BaseModel]]] = {"agents": Agent, "rules": Rule, "allow": Allow}

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


def read_structure(document: Document, without: Container[str] = ()) -> tuple[Recipe | None, list[str]]:
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
