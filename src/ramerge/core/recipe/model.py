"""The structure of a recipe: its keys and their types."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
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

from ramerge.core.foundation.dtypes import full_dtype
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.settings import parse_size
from ramerge.core.foundation.text import TOO_LARGE, is_too_large, quoted
from ramerge.core.methods.base import SEED, SIDE_INPUTS
from ramerge.core.methods.registry import METHODS, unknown_method
from ramerge.core.recipe.document import DEFAULT_METHOD, Document, Key, plain_value, to_yaml
from ramerge.core.recipe.globs import catches_any, first_rules
from ramerge.core.recipe.layers import parse_layers
from ramerge.core.recipe.other_method import change_method
from ramerge.core.recipe.patterns import LONGEST_NAME, check_template
from ramerge.core.recipe.sentences import describe, key_not_text_message

AUTO = "auto"
"""Used as a method's name, it stands for the method that `ramerge recommend` chooses; replaced before planning."""
LIKE_BASE = "like base"


def _path_to_text(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _paths_to_texts(value: object) -> object:
    return tuple(map(_path_to_text, value if isinstance(value, list | tuple) else (value,)))


def _join_layers(value: object) -> object:
    if is_too_large(value):
        raise ValueError(TOO_LARGE)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_Text = Annotated[str, Field(min_length=1)]


def _wrap_agent(value: object) -> object:
    return {"model": _path_to_text(value)} if isinstance(value, str | os.PathLike) else value


class _StrictModel(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True
    )


class Agent(_StrictModel):
    """One RL-trained model.

    Attributes:
        model: a folder, or a hub id with an optional `@revision`.
        delta: instead of `model`: the folder or hub id of a delta on the base, or a list of deltas, applied in order.
        over: the name of an agent listed earlier, to which the delta is applied instead of the base. The checkpoints of
            a run can thus be a chain of deltas, each of which is read once.
        soup: instead of `model`: checkpoints of a run whose weighted mean is the agent.
        importance: a folder or hub id with importances for all tensors of the model, for methods that need them.
        inputs: a folder with recorded inputs of linear layers, from `ramerge calibrate`, for methods that need them.

    Example:
        >>> agents = {"code": ramerge.Agent(model="coder"), "tool": "tool"}
        >>> ramerge.Recipe(base="base", agents=agents).agents["tool"].model
        'tool'
    """

    model: Annotated[str, BeforeValidator(_path_to_text), Field(min_length=1)] | None = None
    delta: Annotated[tuple[_Text, ...], BeforeValidator(_paths_to_texts), Field(min_length=1, strict=False)] | None = (
        None
    )
    over: _Text | None = None
    soup: Soup | None = None
    importance: Annotated[str, BeforeValidator(_path_to_text), Field(min_length=1)] | None = None
    inputs: Annotated[str, BeforeValidator(_path_to_text), Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _is_one_model(self) -> Agent:
        if self.over is not None and self.delta is None:
            raise ValueError("over: names the agent that a delta changes; give the delta")
        if sum(value is not None for value in (self.model, self.delta, self.soup)) != 1:
            raise ValueError("must have exactly one of model: FOLDER, delta: FOLDER, soup: {agents: {...}}")
        return self

    @property
    def parts(self) -> tuple[str, ...]:
        """The model, or the deltas in order; empty for a soup."""
        return (self.model,) if self.model is not None else self.delta or ()

    @property
    def written(self) -> str:
        """The model as one text, with a plus between deltas; for a soup, its method and agents."""
        if self.soup is not None:
            return f"{self.soup.method} of {', '.join(self.soup.agents)}"
        return "+".join(self.parts)

    @property
    def sides(self) -> dict[str, str]:
        """The folders of side inputs, by key; a checked recipe has at most the one that the method takes."""
        folders = {side.key: getattr(self, side.key) for side in SIDE_INPUTS}
        return {key: folder for key, folder in folders.items() if folder is not None}

    @property
    def plain(self) -> str | dict[str, object]:
        """The agent as plain values for a recipe: its model, or a mapping."""
        if self.model is not None and not self.sides:
            return self.model
        return self.model_dump(mode="json", exclude_defaults=True)


class Soup(_StrictModel):
    """Checkpoints of a run whose weighted mean is used as one agent. The mean is computed while they are read.

    Attributes:
        method: a method that is a weighted mean of agents, such as `uniform` or `ema`.
        agents: the checkpoints by name; each may be a delta over one that is listed earlier.
        parameters: the method's parameters.

    Example:
        >>> code = {"soup": {"method": "ema", "agents": {"step-10": "coder", "step-20": "tool"}}}
        >>> ramerge.Recipe(base="base", agents={"code": code}).agents["code"].soup.method
        'ema'
    """

    method: str = "uniform"
    agents: dict[str, Annotated[Agent, BeforeValidator(_wrap_agent)]] = Field(min_length=1)
    parameters: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _holds_checkpoints(self) -> Soup:
        if any(agent.soup is not None or agent.sides for agent in self.agents.values()):
            raise ValueError(f"agents of a soup must be checkpoints, without {' or '.join(s.key for s in SIDE_INPUTS)}")
        return self


Agent.model_rebuild()


class Rule(_StrictModel):
    """A rule for some tensors: keep the base's, take one agent's, merge with other parameters, or write another dtype.

    Attributes:
        match: shell patterns (`*`, `?`, `[0-9]`) for tensor names; at least one must match.
        layers: restricts the rule to these layers, such as `0-7` or `3, 10-12`; the layer is the first number in a
            tensor's name.
        keep: `base`, to keep the base's tensors.
        take: the name of the agent whose tensors are taken.
        parameters: parameters of the method that differ from the recipe's.
        dtype: the dtype of these tensors in the output, if they are floating point.

    Example:
        >>> rules = [ramerge.Rule(match="*norm*", keep="base")]
        >>> recipe = ramerge.Recipe(base="base", agents={"code": "coder"}, rules=rules)
        >>> [note for note in ramerge.plan(recipe).notes if "rule" in note] != []
        True
    """

    match: Annotated[
        tuple[str, ...],
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
        Field(min_length=1, strict=False),
    ] = ("*",)
    layers: Annotated[str | None, BeforeValidator(_join_layers)] = None
    keep: Literal["base"] | None = None
    take: str | None = None
    parameters: dict[str, Any] | None = None
    dtype: Annotated[Literal["bfloat16", "float16", "float32", "float64"] | None, BeforeValidator(full_dtype)] = None

    @model_validator(mode="after")
    def _check_single_action(self) -> Rule:
        actions = sum(value is not None for value in (self.keep, self.take, self.parameters))
        if actions > 1 or not (actions or self.dtype):
            raise ValueError(
                "must have exactly one of keep: base, take: AGENT, parameters: {...}; or only dtype: DTYPE"
            )
        if not all(self.match):
            raise ValueError("match must not be empty")
        if self.layers is not None:
            parse_layers(self.layers)
        return self

    @property
    def merges(self) -> bool:
        """Whether tensors that match the rule are merged by the method."""
        return self.keep is None and self.take is None

    def catches(self, name: str) -> bool:
        """Whether the rule matches a tensor of this name. For many names, `Recipe.rules_of` is faster."""
        return catches_any(self, [name])

    def __str__(self) -> str:
        where = f" of layers {self.layers}" if self.layers else ""
        return f"{', '.join(self.match)}{where}"


class Rename(_StrictModel):
    """A rule that maps the names of agents' tensors to the base's names.

    Attributes:
        pattern: a Python regular expression; its key in a recipe is `from`. All matches are replaced.
        to: the replacement; `\\1` stands for the match of the first group.
        agent: the agent that the rule applies to; by default all agents.

    Example:
        >>> rename = [ramerge.Rename(**{"from": "^actor[.]", "to": ""})]
        >>> ramerge.Recipe(base="base", agents={"code": "coder"}, rename=rename).rename[0].to
        ''
    """

    pattern: Annotated[str, Field(alias="from", min_length=1, max_length=LONGEST_NAME)]
    to: Annotated[str, Field(max_length=LONGEST_NAME)]
    agent: str | None = None

    @model_validator(mode="after")
    def _check_pattern(self) -> Rename:
        try:
            re.compile(self.pattern)
            check_template(self.pattern, self.to)
        except (re.error, ValueError, RecursionError) as error:
            raise ValueError(f"{self.pattern!r} to {self.to!r}: {error}") from error
        return self


class Allow(_StrictModel):
    """Allows models that are otherwise refused.

    Attributes:
        missing_tensors: agents may lack tensors; the base's tensors are used instead.
        extra_tensors: agents may have tensors that the base lacks; these are dropped.
        different_shapes: agents' tensors may have other shapes; the base's tensors are used instead.
        different_tokens: models may have different tokens in the same row of their embeddings; these rows are merged.
        swapped_base: the base may look like an agent, and an agent like the base that the others were trained from.
        other_base: agents may look as if they were trained from another base.
        non_finite: weights may contain NaN and Inf, which follow the rules of IEEE arithmetic. They are still refused
            if a method computes the elements of a tensor from each other, because they would corrupt all of them.
        outside_links: files of a checkpoint may be links to files outside of it.
        vocabulary: `common`: embeddings may have different numbers of rows. Rows that all models have are merged, and
            other rows come from the models that have them.
        config: keys of config.json that may differ, although they change or may change what the weights mean.

    Example:
        >>> allow = ramerge.Allow(missing_tensors=True)
        >>> ramerge.plan(ramerge.Recipe(base="base", agents={"code": "coder"}, allow=allow)).problems
        ()
    """

    missing_tensors: bool = False
    extra_tensors: bool = False
    different_shapes: bool = False
    different_tokens: bool = False
    swapped_base: bool = False
    other_base: bool = False
    non_finite: bool = False
    outside_links: bool = False
    vocabulary: Literal["common"] | None = None
    config: tuple[str, ...] = Field(default=(), strict=False)


def _convert_size(value: object) -> object:
    return parse_size(value) if isinstance(value, str | int) and not isinstance(value, bool) else value


class Recipe(_StrictModel):
    """A checked recipe. Relative paths start at the folder of the recipe's file, or else at the working folder.

    Attributes:
        method: a method from `ramerge methods`; by default `ram+`.
        base: folder or hub id of the base model. Methods that do not use task vectors do not need it.
        agents: the agents by name, in the order in which they are summed. The method limits their number.
        prompts: for each agent, a file or folder with prompts of its task, or with rollouts. They are used to gather
            the recorded inputs or importances that some methods need, once; these are kept in the user's cache.
        parameters: the method's parameters; all others have the preset's value or the default.
        preset: a named set of parameters, such as `paper`.
        dtype: the dtype of the output's floating-point tensors, except those that the base stores wider than its other
            weights, which are not narrowed; or `widest`: for each tensor, the narrowest dtype that holds all values of
            base and agents; or `like base`: quantized like the base. By default, each tensor keeps the base's dtype,
            and quantized tensors of the base get the dtype that its `config.json` states.
        rounding: how results of the method are rounded to the output's dtype: `nearest`, or `stochastic`: to one of the
            two neighbors, so that results are right on average. Copies are rounded to nearest.
        rounding_seed: the seed of the random draws of `rounding: stochastic`; any whole number. The same seed gives
            the same bytes.
        companions: the agent whose tokenizer, chat template and generation config the output gets.
        shard_size: bytes of an output shard; by default, the output is split like the base.
        rules: rules for some tensors; the first matching rule applies.
        rename: rules that map agents' tensor names to the base's, applied one after another.
        allow: exceptions from checks.

    Raises:
        RecipeError: the structure is wrong; lists all problems.

    Example:
        >>> recipe = ramerge.Recipe(base="base", agents={"code": "coder", "tool": "tool"}, parameters={"r": 0.2})
        >>> ramerge.merge(recipe, "merged").parameters["r"]
        0.2
    """

    inside: ClassVar[dict[str, type[BaseModel]]] = {"agents": Agent, "rules": Rule, "rename": Rename, "allow": Allow}

    method: str = DEFAULT_METHOD
    base: Annotated[Annotated[str, Field(min_length=1)] | None, BeforeValidator(_path_to_text)] = None
    agents: dict[str, Annotated[Agent, BeforeValidator(_wrap_agent)]] = Field(min_length=1)
    prompts: dict[str, Annotated[_Text, BeforeValidator(_path_to_text)]] = Field(default_factory=dict)
    parameters: dict[str, Any] = Field(default_factory=dict)
    preset: str | None = None
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32", "float64", "widest", "like base"] | None, BeforeValidator(full_dtype)
    ] = None
    rounding: Literal["nearest", "stochastic"] = "nearest"
    rounding_seed: Annotated[int, Field(ge=-SEED, le=SEED)] = 0
    companions: str | None = None
    shard_size: Annotated[Annotated[int, Field(gt=0)] | None, BeforeValidator(_convert_size)] = None
    rules: tuple[Rule, ...] = Field(default=(), strict=False)
    rename: tuple[Rename, ...] = Field(default=(), strict=False)
    allow: Allow = Allow()

    _document: Document = PrivateAttr(default_factory=lambda: Document({}))

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**plain_value(values))
        except ValidationError as error:
            raise RecipeError(describe(error, Document(values), Recipe)) from error

    @field_validator("method")
    @classmethod
    def _check_method_name(cls, name: str) -> str:
        if name not in METHODS and name != AUTO:
            raise ValueError(unknown_method(name))
        return name

    @field_validator("prompts")
    @classmethod
    def _check_prompt_paths(cls, prompts: dict[str, str]) -> dict[str, str]:
        for name, path in prompts.items():
            try:
                Path(path).expanduser().resolve()
            except (ValueError, RuntimeError, OSError) as error:
                raise ValueError(f"{name}: {quoted(path)} is no path: {error}") from error
        return prompts

    @field_validator("agents")
    @classmethod
    def _plain_names(cls, agents: dict[str, Agent]) -> dict[str, Agent]:
        for name in agents:
            if not name.strip() or not name.isprintable():
                raise ValueError(f"agent name {quoted(name)} must be printable and not empty")
        return agents

    @property
    def folder(self) -> Path:
        """The folder at which relative paths start."""
        return self._document.folder

    @property
    def document(self) -> Document:
        """The document that the recipe was made from, for messages."""
        return self._document

    @property
    def seed(self) -> int | None:
        """The seed of the random draws that round results; None to round to nearest."""
        return self.rounding_seed if self.rounding == "stochastic" else None

    def as_document(self) -> Document:
        """The recipe as a document, with line numbers if it was read from a file."""
        structure, _ = read_structure(self.document)
        # a copy with other values (`model_copy`) still has the document of the original
        if structure is not None and structure.model_dump() == self.model_dump(warnings=False):
            return self.document
        return Document(self.model_dump(exclude_none=True, warnings=False, by_alias=True), folder=self.folder)

    def with_(self, **values: Any) -> Recipe:
        """Return a copy with other values. Mappings, such as `parameters`, are updated key by key; None resets a key.

        A new method removes the parameters, preset and side inputs of the previous method.

        Raises:
            RecipeError: a value is wrong, or there is no such method; lists all problems.

        Example:
            >>> recipe = ramerge.Recipe(base="base", agents={"code": "coder"}, parameters={"r": 0.2})
            >>> recipe.with_(dtype="float32", parameters={"alpha": 1.0}).parameters
            {'r': 0.2, 'alpha': 1.0}
        """
        document = self.as_document()
        if values.get("method") is not None:
            document = change_method(document, values["method"], "method")
        changes: dict[Key, object] = {
            ((key, name) if name else (key,)): value
            for key, value_or_mapping in values.items()
            for name, value in (
                value_or_mapping.items() if isinstance(value_or_mapping, Mapping) else [("", value_or_mapping)]
            )
        }
        document_with_changes = document.with_values(changes).without(
            *(key for key, value in values.items() if value is None)
        )
        recipe, problems = read_structure(document_with_changes)
        if recipe is None:
            raise RecipeError(problems)
        return recipe

    def rules_of(self, tensors: Iterable[str]) -> dict[str, int]:
        """For each tensor name, the number of the first matching rule, counted from 1; 0 if no rule matches."""
        return first_rules(self.rules, tensors)

    def rule_of(self, tensor: str) -> int:
        """The number of the first rule that matches a tensor name, counted from 1; 0 if no rule matches."""
        return self.rules_of([tensor])[tensor]

    def to_yaml(self) -> str:
        """Write the recipe as YAML: the method, and all values that are not defaults."""
        # the method is always written, because its default may change
        values = {"method": self.method} | self.model_dump(mode="json", exclude_defaults=True, by_alias=True)
        values["agents"] = {name: agent.plain for name, agent in self.agents.items()}
        return to_yaml(values)


def read_structure(document: Document) -> tuple[Recipe | None, list[str]]:
    """Make a recipe from a document. Return None and the problems if its structure is wrong."""
    values = document.as_dict()
    if others := [key for key in values if not isinstance(key, str)]:
        return None, [document.where((str(key),), key_not_text_message(key)) for key in others]
    try:
        recipe = Recipe(**values)
    except RecipeError as error:
        cause = error.__cause__
        return None, describe(cause, document, Recipe) if isinstance(cause, ValidationError) else list(error.messages)
    recipe._document = document  # noqa: SLF001  # set by this module alone
    return recipe, []
