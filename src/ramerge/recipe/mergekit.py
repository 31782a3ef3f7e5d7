"""Translates recipes from mergekit's form to ramerge's, and reports everything in them that is not supported.

    merge_method, base_model    method, base
    models                      agents, named after the last part of each path or hub id
    slices                      the same, if there is one slice with all layers of every model
    parameters                  parameters; a model's own override those of the whole recipe
    out_dtype, else dtype       dtype

A parameter that the recipe does not give gets mergekit's default, never ramerge's. Mistakes that mergekit ignores
silently, such as a misspelt key, are refused here.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ramerge.foundation.dtypes import full_dtype
from ramerge.foundation.errors import RecipeError
from ramerge.foundation.text import unknown
from ramerge.recipe.document import Document, Key

# a value, and where it was written
_Given = Mapping[str, tuple[Any, Key]]

_MARKS = frozenset({"merge_method", "models", "slices", "modules"})
_KEYS = ("merge_method", "base_model", "models", "parameters", "dtype", "out_dtype")
_MODEL_KEYS = ("model", "parameters")
# ramerge's own keys. mergekit does not know them and ignores them, so both programs take the same file.
_ADDED_KEYS = ("rounding", "rounding_seed", "companions", "shard_size", "allow")
_OWN_KEYS = {
    "method": "use merge_method",
    "base": "use base_model",
    "agents": "use models",
    "preset": "use parameters",
    "rules": "write the recipe in ramerge's own form",
}
_DTYPES = ("bfloat16", "float16", "float32", "float64")
_ELSEWHERE = ("tokenizer_source", "tokenizer", "chat_template", "slices", "modules")
# mergekit's other methods. For these, a suggestion of a similar name would not help.
_OTHER_METHODS = {
    *("arcee_fusion", "breadcrumbs", "breadcrumbs_ties", "della", "della_linear", "karcher", "model_stock"),
    *("multislerp", "nearswap", "nuslerp", "passthrough", "sce", "slerp"),
}

_WHOLE = "only whole models can be merged: list them under models, or in one slice with all layers of every model"
_RULES = "give one value, or use the rules of ramerge's own form"

_READERS: Mapping[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (float, bool, int)}
_WORDS = {float: "a number", bool: "true or false", int: "a whole number"}


def _same(value: Any) -> Any:
    return value


def _fraction(density: float) -> float:
    if not 0 <= density <= 1:
        raise ValueError(f"must be from 0 to 1, not {density:g}")
    return density


def _drop_rate(density: float) -> float:
    """1 - density in decimal: 0.3 for 0.7, where the difference of floats is 0.30000000000000004."""
    rate = float(1 - Decimal(repr(_fraction(density))))
    if rate == 1:
        raise ValueError(f"must be above 0, not {density:g}: nothing would be left of the model")
    return rate


def _unscaled(rescale: bool) -> bool:
    if rescale:
        raise ValueError("true is not supported for ties: ramerge does not rescale after trimming")
    return rescale


@dataclass(frozen=True)
class _Setting:
    """A parameter of one of mergekit's methods.

    Attributes:
        ours: its name here; None if it has no effect here.
        kind: float, bool or int.
        default: mergekit's default; None if there is none. Then the parameter is not written.
        required: whether mergekit refuses a recipe without it.
        each: whether every model may have its own value.
        convert: from mergekit's value to ramerge's; a ValueError says what is wrong with the value.
    """

    ours: str | None
    kind: type = float
    default: float | bool | None = None
    required: bool = False
    each: bool = False
    convert: Callable[[Any], Any] = _same


@dataclass(frozen=True)
class _Method:
    """One of mergekit's methods: its name here, its parameters, and fixed parameters for the same results as there."""

    ours: str
    settings: Mapping[str, _Setting]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    averages: bool = False  # it averages whole models, also the base, not task vectors


# the type of mergekit's masks, which changes no result
_MASK = {"int8_mask": _Setting(None, bool, False)}
_WEIGHT = {"weight": _Setting("weights", required=True, each=True)}
_ARITHMETIC = _MASK | _WEIGHT | {"lambda": _Setting("scale", default=1.0)}


def _normalize(default: bool) -> dict[str, _Setting]:
    return {"normalize": _Setting("normalize", bool, default)}


_DARE = (
    _ARITHMETIC
    | _normalize(False)
    | {
        "density": _Setting("p", default=1.0, each=True, convert=_drop_rate),
        "rescale": _Setting("rescale", bool, True),
        # in mergekit the seed is only a flag
        "seed": _Setting("seed", int),
    }
)
_EPSILON = _MASK | {"epsilon": _Setting("epsilon", default=1e-5)}
_RESCALED = {"r": _Setting("r", default=0.1), "alpha": _Setting("alpha", default=0.2)}

_METHODS: Mapping[str, _Method] = {
    "linear": _Method("linear", _MASK | _WEIGHT | _normalize(True), averages=True),
    "task_arithmetic": _Method(
        "task_arithmetic",
        # mergekit accepts density and rescale here, but they have no effect
        _ARITHMETIC
        | _normalize(False)
        | {"density": _Setting(None, default=1.0, each=True), "rescale": _Setting(None, bool, False)},
    ),
    "ties": _Method(
        "ties",
        _ARITHMETIC
        | _normalize(True)
        | {
            "density": _Setting("density", default=1.0, each=True, convert=_fraction),
            "rescale": _Setting(None, bool, False, convert=_unscaled),
        },
        {"trim": "tensor"},
    ),
    "dare_linear": _Method("dare", _DARE),
    "dare_ties": _Method("dare_ties", _DARE, {"density": 1.0, "trim": "tensor"}),
    "ram": _Method("ram", _EPSILON),
    "ramplus_tl": _Method("ram+", _EPSILON | _RESCALED, {"scope": "tensor"}),
}


def is_mergekit(values: Mapping[str, Any]) -> bool:
    """Whether a recipe's values have mergekit's form: they have one of merge_method, models, slices, modules."""
    return not _MARKS.isdisjoint(values)


def translate(document: Document) -> Document:
    """Translate a recipe from mergekit's form to ramerge's. Messages still show the lines and flags of the original.

    Raises:
        RecipeError: something is wrong or not supported; all problems are listed.
    """
    return _Translation(document).run()


@dataclass(frozen=True)
class _Model:
    """A model, identified by path and revision as in mergekit; where it was written; and its own parameters."""

    path: str
    revision: str | None
    key: Key
    own: _Given = field(default_factory=dict)

    @property
    def written(self) -> str:
        """The model as recipes of both forms write it."""
        return f"{self.path}@{self.revision}" if self.revision else self.path

    def is_same(self, other: _Model | None) -> bool:
        """Whether both are spelled the same, which is how mergekit compares: `./base` is not `base`."""
        return other is not None and (self.path, self.revision) == (other.path, other.revision)


class _Translation:
    """One translation: the given recipe, the result, and the problems."""

    def __init__(self, document: Document) -> None:
        self.given = document
        self.values = {str(key): value for key, value in document.values.items()}
        self.problems: list[str] = []
        self.entries: Any = self.values.get("models")
        self.models_key: Key = ("models",)
        self.slice_parameters: Any = None
        self.result = Document({}, document.source, document.folder, {}, document.text, {})

    def run(self) -> Document:
        """The document in ramerge's form."""
        self.check_keys()
        self.open_slice()
        method = self.read_method()
        base = self.read_model(self.values["base_model"], ("base_model",)) if self.values.get("base_model") else None
        agents = self.choose_agents(method, self.read_models(method), base)
        self.write_models(method, base, agents)
        self.write_parameters(method, agents)
        self.write_dtype()
        self.check_tokenizer(base)
        self.keep_own_keys()
        if self.problems:
            raise RecipeError(self.problems)
        return self.result

    # --- reports and results ---

    def problem(self, key: Key, message: str) -> None:
        """Report a problem of the value at `key`."""
        self.problems.append(self.given.where(key, message))

    def put(self, key: Key, value: Any, origin: Key = ()) -> None:
        """Set a value of the result. It comes from the value that was given at `origin`."""
        mapping = self.result.values
        for part in key[:-1]:
            mapping = mapping.setdefault(part, {})
        mapping[key[-1]] = value
        self.mark(key, origin)

    def mark(self, key: Key, origin: Key) -> None:
        """Make messages about `key` of the result show the line or flag of `origin`, or of the mapping around it."""
        for length in range(len(origin), 0, -1):
            if origin[:length] in self.given.flags:
                self.result.flags[key] = self.given.flags[origin[:length]]
                return
            if origin[:length] in self.given.lines:
                self.result.lines[key] = self.given.lines[origin[:length]]
                return

    # --- keys and method ---

    def check_keys(self) -> None:
        """Report keys that are unknown, not supported, or from ramerge's own form."""
        for key, value in self.values.items():
            if key == "modules" and value:
                self.problem((key,), f"is not supported; {_WHOLE}")
            elif key in _OWN_KEYS:
                given = next((given for given in self.given.flags if given[0] == key), (key,))
                self.problem(given, f"does not belong in a recipe of mergekit's form: {_OWN_KEYS[key]}")
            elif key not in (*_KEYS, *_ADDED_KEYS, *_ELSEWHERE):
                self.problem((key,), unknown("key", key, [*_KEYS, *_ADDED_KEYS]))

    def read_method(self) -> _Method | None:
        """The method; None if there is a problem with it."""
        name = self.values.get("merge_method")
        if isinstance(name, str) and name in _METHODS:
            self.put(("method",), _METHODS[name].ours, ("merge_method",))
            return _METHODS[name]
        supported = f"supported: {', '.join(_METHODS)}"
        if name is None:
            message = f"is missing; {supported}"
        elif not isinstance(name, str):
            message = f"must be text, not {_shown(name)}; {supported}"
        elif name in _OTHER_METHODS:
            message = f"mergekit's {name} is not supported; {supported}"
        else:
            message = f"{unknown('method', name, list(_METHODS)).partition('known:')[0]} {supported}".replace("  ", " ")
        self.problem(("merge_method",), message)
        return None

    # --- models ---

    def open_slice(self) -> None:
        """Take the models from a slice that holds all layers. mergekit itself makes such a slice from `models`."""
        slices = self.values.get("slices")
        if not slices:
            return
        try:
            sources, layers, self.slice_parameters = _whole_slice(slices)
        except ValueError as error:
            self.problem(("slices",), f"{error}; {_WHOLE}")
            return
        if self.entries:
            self.problem(("slices",), "cannot be used together with models; remove one of the two")
        self.entries, self.models_key = sources, ("slices", "0", "sources")
        self.mark(("slices",), ("slices",))
        # planning checks that these are all layers, once the base is open
        self.result.layers = layers

    def read_models(self, method: _Method | None) -> list[_Model]:
        """The listed models. Problems of each are reported."""
        entries = self.entries
        if not entries and (self.values.get("slices") or self.values.get("modules")):
            return []  # already reported as a problem of these keys
        if entries is None:
            self.problem(("models",), "is missing")
            return []
        if not isinstance(entries, list | tuple) or not entries:
            self.problem(("models",), f"must be a list such as [{{model: ./coder}}], not {_shown(entries)}")
            return []
        read = [self.read_entry(entry, (*self.models_key, str(index)), method) for index, entry in enumerate(entries)]
        models = [model for model in read if model is not None]
        for index, model in enumerate(models):
            if any(model.is_same(other) for other in models[:index]):
                self.problem(model.key, f"{model.written} is listed twice")
        return models

    def read_entry(self, entry: Any, key: Key, method: _Method | None) -> _Model | None:
        """A model of the list, with its parameters."""
        if not isinstance(entry, Mapping):
            self.problem(key, f"must be a mapping such as {{model: ./coder}}, not {_shown(entry)}")
            return None
        for name in entry:
            if name not in _MODEL_KEYS:
                self.problem((*key, str(name)), unknown("key", str(name), list(_MODEL_KEYS)))
        own = self.read_parameters(entry.get("parameters"), (*key, "parameters"), method)
        if entry.get("model") is None:
            self.problem((*key, "model"), "is missing")
            return None
        return self.read_model(entry["model"], (*key, "model"), own)

    def read_model(self, value: Any, key: Key, own: _Given | None = None) -> _Model | None:
        """The model that a recipe's value names."""
        try:
            path, revision = _located(value)
        except ValueError as error:
            self.problem(key, str(error))
            return None
        return _Model(path, revision, key, own or {})

    def choose_agents(self, method: _Method | None, listed: Sequence[_Model], base: _Model | None) -> dict[str, _Model]:
        """Agents by name, in the order of sums. For methods that average models, the base is one, as in mergekit."""
        if method is None or not method.averages:
            agents = [model for model in listed if not model.is_same(base)]
            if listed and not agents:
                self.problem(("models",), "only the base model is listed; there is nothing to merge into it")
            return _named(agents)
        # mergekit adds the base to `models`, but not to a slice
        counted = (
            self.models_key == ("models",) and base is not None and not any(model.is_same(base) for model in listed)
        )
        return _named([*listed, *([base] if counted and base is not None else [])])

    def write_models(self, method: _Method | None, base: _Model | None, agents: Mapping[str, _Model]) -> None:
        """Write base and agents to the result."""
        if base is not None:
            self.put(("base",), base.written, base.key)
        elif method is not None and not method.averages and not self.values.get("base_model"):
            self.problem(("base_model",), f"is missing; {self.values['merge_method']} needs it")
        self.put(("agents",), {}, self.models_key)
        for name, model in agents.items():
            self.put(("agents", name), model.written, model.key)

    # --- parameters ---

    def read_parameters(self, given: Any, key: Key, method: _Method | None) -> _Given:
        """The parameters at `key` in ramerge's values; None for wrong ones. Without a method only forms are checked."""
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            self.problem(key, f"must be a mapping such as {{weight: 1}}, not {_shown(given)}")
            return {}
        found: dict[str, tuple[Any, Key]] = {}
        for name, value in ((str(name), value) for name, value in given.items()):
            inside = (*key, name)
            found[name] = None, inside
            try:
                constant = _constant(value)
                if method is not None:
                    setting = self.setting(method, name, for_all=key[:-2] != self.models_key)
                    found[name] = setting.convert(_read(constant, setting.kind)), inside
            except ValueError as error:
                self.problem(inside, str(error))
        return found

    def setting(self, method: _Method, name: str, *, for_all: bool) -> _Setting:
        """The parameter of that name. A ValueError if the method does not have it, or not for a single model."""
        if name not in method.settings:
            others = [other for other, form in _METHODS.items() if name in form.settings]
            hint = f" ({name} belongs to {', '.join(others)})" if others else ""
            raise ValueError(unknown(f"parameter of {self.values['merge_method']}", name, list(method.settings)) + hint)
        if not for_all and not method.settings[name].each:
            raise ValueError("is not possible for a single model in mergekit: put it under the recipe's parameters")
        return method.settings[name]

    def write_parameters(self, method: _Method | None, agents: Mapping[str, _Model]) -> None:
        """Write every parameter of ramerge's method."""
        shared = {
            **self.read_parameters(self.values.get("parameters"), ("parameters",), method),
            **self.read_parameters(self.slice_parameters, ("slices", "0", "parameters"), method),
        }
        if method is None:
            return
        self.put(("parameters",), {}, ("parameters",))
        for name, setting in method.settings.items():
            if setting.required:
                self.check_given(name, shared, agents)
            if setting.ours is None:
                continue
            if any(name in agent.own for agent in agents.values()):
                self.mark(("parameters", setting.ours), self.models_key)
                for agent, model in agents.items():
                    self.write_setting(("parameters", setting.ours, agent), name, setting, {**shared, **model.own})
            else:
                self.write_setting(("parameters", setting.ours), name, setting, shared)
        for name, value in method.fixed.items():
            self.put(("parameters", name), value, ("merge_method",))

    def write_setting(self, key: Key, name: str, setting: _Setting, given: _Given) -> None:
        """Write a parameter: the given value, or mergekit's default."""
        if name in given:
            self.put(key, *given[name])
        elif setting.default is not None:
            self.put(key, setting.convert(setting.default), ("merge_method",))

    def check_given(self, name: str, shared: _Given, agents: Mapping[str, _Model]) -> None:
        """Report every agent without a parameter that mergekit requires."""
        for model in agents.values():
            if name in shared or name in model.own:
                continue
            if model.key == ("base_model",):
                advice = f"list it under models with a {name} (0 excludes it), or remove base_model"
                self.problem(model.key, f"mergekit merges the base model too, but it has no {name}: {advice}")
            else:
                self.problem(model.key, f"{name} is missing: give it in this model's parameters, or in the recipe's")

    # --- the rest ---

    def write_dtype(self) -> None:
        """Write the output's dtype: from a flag, else out_dtype, else dtype, in which mergekit also computes."""
        found = {key: name for key in ("out_dtype", "dtype") if (name := self.read_dtype(key)) is not None}
        if ("dtype",) in self.given.flags:
            found.pop("out_dtype", None)
        for key in list(found)[:1]:
            self.put(("dtype",), found[key], (key,))

    def read_dtype(self, key: str) -> str | None:
        """The full name of the dtype at `key`; None if none is given."""
        value = self.values.get(key)
        if value is None or value in ("", "auto"):
            return None
        name = full_dtype(value) if isinstance(value, str) else _shown(value)
        if not isinstance(value, str) or name not in _DTYPES:
            self.problem((key,), unknown("dtype", name, list(_DTYPES)))
            return None
        return name

    def check_tokenizer(self, base: _Model | None) -> None:
        """Report requests for other tokenizers and chat templates than the base's, which the output has."""

        def is_base(source: Any) -> bool:
            return source is None or source == "base" or (base is not None and source == base.written)

        advice = "the output gets the base's tokenizer and chat template; companions: AGENT takes an agent's"
        source, tokenizer = self.values.get("tokenizer_source"), self.values.get("tokenizer")
        if not is_base(source):
            self.problem(("tokenizer_source",), f"{_shown(source)} is not supported: {advice}")
        if tokenizer is not None:
            # without a source, mergekit uses the union of all vocabularies
            parts = {"source": "union", **tokenizer} if isinstance(tokenizer, Mapping) else {"source": "?"}
            if not is_base(parts.pop("source")) or any(parts.values()):
                self.problem(("tokenizer",), f"is not supported, except {{source: base}}: {advice}")
        # agents of one base share its template, and mergekit's vote would select it
        if self.values.get("chat_template") not in (None, "", "auto"):
            self.problem(("chat_template",), f"is not supported: {advice}")

    def keep_own_keys(self) -> None:
        """Copy ramerge's own keys to the result, with the lines and flags of all values in them."""
        for key in _ADDED_KEYS:
            if key in self.values:
                self.put((key,), self.values[key])
        self.result.lines |= {key: line for key, line in self.given.lines.items() if key[0] in _ADDED_KEYS}
        self.result.flags |= {key: flag for key, flag in self.given.flags.items() if key[0] in _ADDED_KEYS}


def _spelled(path: str, revision: str | None) -> str:
    """A model as recipes name it."""
    return f"{path}@{revision}" if revision else path


def _located(value: Any) -> tuple[str, str | None]:
    """Path or hub id, and revision, from `path`, `path@revision`, or the mapping into which mergekit turns these.

    Raises:
        ValueError: the value has another form.
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, Mapping):
        if any(part is not None for name, part in value.items() if name not in ("model", "lora")):
            raise ValueError("a model of another architecture is not supported")
        if value.get("lora") is not None:
            return "+".join(_spelled(*_located({"model": value.get(part)})) for part in ("model", "lora")), None
        value = value.get("model")
    elif isinstance(value, str) and "+" in value:
        return value, None  # a model with adapters, each with its own revision
    if isinstance(value, Mapping) and set(value) <= {"path", "revision"}:
        path, revision = value.get("path"), value.get("revision")
    elif isinstance(value, str):
        path, at, revision = value.partition("@")
        revision = revision if at else None
    else:
        raise ValueError(f"must be a path or a hub id, not {_shown(value)}")
    if not isinstance(path, str) or not path or not isinstance(revision, str | None) or "@" in (revision or ""):
        raise ValueError(f"must be a path or a hub id with at most one @revision, not {_shown(value)}")
    return path, revision


def _whole_slice(slices: Any) -> tuple[list[Any], int, Any]:
    """Sources without their range, the number of layers that all of them have, and the parameters of the only slice.

    Raises:
        ValueError: there is not exactly one slice, or it does not hold the same first layers of every model.
    """
    whole = slices[0] if isinstance(slices, list | tuple) and len(slices) == 1 else None
    if not isinstance(whole, Mapping) or not set(whole) <= {"sources", "parameters"}:
        raise ValueError("are not supported")
    sources = whole.get("sources")
    if not isinstance(sources, list | tuple) or not sources or not all(isinstance(part, Mapping) for part in sources):
        raise ValueError("sources must be a list such as [{model: ./coder, layer_range: [0, 24]}]")
    stops = {_stop_of(part.get("layer_range")) for part in sources}
    if len(stops) > 1:
        raise ValueError("with different layers are not supported")
    entries = [{key: value for key, value in part.items() if key != "layer_range"} for part in sources]
    return entries, stops.pop(), whole.get("parameters")


def _stop_of(span: Any) -> int:
    """N of a layer_range [0, N].

    Raises:
        ValueError: the value has another form.
    """
    if isinstance(span, list | tuple) and len(span) == 2:
        start, stop = span
        if start == 0 and isinstance(stop, int) and not isinstance(stop, bool) and stop > 0:
            return stop
    raise ValueError(f"layer_range {_shown(span)} is not supported")


def _constant(value: Any) -> Any:
    """The only value of a list over layers, or of filters over tensors.

    Raises:
        ValueError: there are several different values.
    """
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    if any(isinstance(part, Mapping) for part in value):
        text = "a value that depends on the tensor (filter) is not supported"
        value = _first_for_all(value)
    else:
        text = "a gradient over layers is not supported"
    found = [_constant(part) for part in value]
    if not found or any(value != found[0] for value in found):
        raise ValueError(f"{text}; {_RULES}")
    return found[0]


def _first_for_all(entries: Sequence[Any]) -> list[Any]:
    """Values up to the first one without a filter, after which mergekit ignores all others; empty if there is none."""
    values = []
    for entry in entries:
        if not isinstance(entry, Mapping) or not set(entry) <= {"filter", "value"}:
            return []
        values.append(entry.get("value"))
        if entry.get("filter") in (None, "*"):
            return values
    return []


def _read(value: Any, kind: type) -> Any:
    """A value as mergekit reads it: its YAML reads `1e-5` as text, which becomes a number here."""
    try:
        result = _READERS[kind].validate_python(value)
    except ValidationError as error:
        raise ValueError(f"must be {_WORDS[kind]}, not {_shown(value)}") from error
    if isinstance(result, float) and not math.isfinite(result):
        raise ValueError(f"must be a finite number, not {_shown(value)}")
    return result


def _named(models: Iterable[_Model]) -> dict[str, _Model]:
    """Models by the last part of their path or hub id, in ASCII. Repeated names get -2, -3 and so on."""
    named: dict[str, _Model] = {}
    for model in models:
        parts = [part for part in re.split(r"[/\\]", model.path) if part not in ("", ".", "..")]
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", parts[-1] if parts else "").strip("-._") or "model"
        name, count = stem, 1
        while name in named:
            count += 1
            name = f"{stem}-{count}"
        named[name] = model
    return named


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) < 60 else type(value).__name__
