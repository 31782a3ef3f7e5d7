"""Translates recipes from mergekit's form to ramerge's, and reports everything that is not supported.

    merge_method, base_model    method, base
    models                      agents, named after the last part of each path or hub id
    slices                      the same, if there is one slice with all layers of every model
    parameters                  parameters; a model's own override those of the whole recipe
    out_dtype, else dtype       dtype

A parameter that is missing in the recipe gets mergekit's default, never ramerge's. Mistakes that mergekit ignores
silently, such as a misspelt key, are refused here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ramerge import CheckpointError, RecipeError
from ramerge.core.foundation.dtypes import full_dtype
from ramerge.core.recipe.document import Key
from ramerge.core.recipe.paths import parts_of
from ramerge.core.recipe.read import Look, blind
from ramerge.mergekit.methods import MERGEKITS_ALONE, METHODS, MergekitMethod, MergekitSetting
from ramerge.mergekit.values import (
    ANYWHERE,
    NamedTensor,
    ParameterLevel,
    Value,
    ValueCase,
    chain,
    is_varying,
    read_value,
    rules_of,
    tensors_of,
    value_text,
)
from ramerge.sdk.recipes import Dialect, Document
from ramerge.sdk.text import unknown

_CPU = "leave it out: the CPU merges about as fast as files are read; --device cuda is for spectral methods"
_WRITING = "leave it out: writing always overlaps with computing"

FLAGS: Mapping[str, str] = {
    "--allow-crimes": "leave it out: architectures cannot be mixed; `allow` of the recipe accepts single differences",
    "--async-write": _WRITING,
    "--clone-tensors": "leave it out: the output has each layer once",
    "--copy-tokenizer": "leave it out: tokenizer files are always copied; `companions` of the recipe chooses whose",
    "--cuda": _CPU,
    "--gpu-rich": _CPU,
    "--lazy-unpickle": "leave it out: every format is read block by block, and pickles are never executed",
    "--lora-merge-cache": "leave it out: adapters are applied while they are read",
    "--lora-merge-dtype": "leave it out: adapters are applied in float32",
    "--low-cpu-memory": "use --max-memory SIZE, such as 2GB",
    "--multi-gpu": _CPU,
    "--num-threads": "use --threads N",
    "--out-shard-size": "use --shard-size SIZE, in bytes, such as 5GB",
    "--random-seed": "leave it out: every run draws the same; --set parameters.seed=N draws differently",
    "--read-to-gpu": _CPU,
    "--safe-serialization": "leave it out: the output is always safetensors",
    "--transformers-cache": "set the variable HF_HUB_CACHE to the folder",
    "--trust-remote-code": "leave it out: no code of a model is executed",
    "--unsafe-truncate-embeddings": "use --set allow.vocabulary=common, which keeps rows that only some models have",
    "--write-model-card": "leave it out: a model card (README.md) is always written",
    "--write-threads": _WRITING,
    "-j": "use --threads N",
    "-v": "use --debug",
}
"""Advice on each flag of mergekit-yaml; `python -m docs.tables` lists it in the guide on mergekit."""

# keys of recipes for other programs that come with mergekit, and the messages about them
_OTHER_PROGRAMS = {
    "experts": "this is a recipe of mergekit-moe, which builds a mixture of experts; ramerge does not build these: use "
    "mergekit-moe",
    "genome": "this is a recipe of mergekit-evolve, which searches for parameters; `ramerge search` does that here",
}
_MARKS = frozenset({"merge_method", "models", "slices", "modules", *_OTHER_PROGRAMS})
_KEYS = ("merge_method", "base_model", "models", "parameters", "dtype", "out_dtype")
_MODEL_KEYS = ("model", "parameters")
# ramerge's own keys. mergekit does not know them and ignores them, so both programs take the same file.
_ADDED_KEYS = ("rounding", "rounding_seed", "companions", "shard_size", "allow", "prompts")
_OWN_KEYS = {
    "method": "use merge_method, or write it in ramerge's own form first: `ramerge plan RECIPE --write-recipe FILE`",
    "base": "use base_model",
    "agents": "use models",
    "preset": "use parameters",
    "rules": "write the recipe in ramerge's own form",
}
_DTYPES = ("bfloat16", "float16", "float32", "float64")
_SHORT = ("bfloat16", "float16")
_COMPUTES = (
    "dtype: {}: mergekit computes in it, ramerge in float32 with one rounding at the end; in a bfloat16 merge by {} "
    "{} of the elements differ in the last digits"
)
_ELSEWHERE = ("tokenizer_source", "tokenizer", "chat_template", "slices", "modules", "name")
_TEMPLATES = ("alpaca", "chatml", "exaone", "llama3", "mistral")
"""Chat templates that come with mergekit."""
_WHOLE = (
    "only whole models can be merged: list them under models, or in one slice with all layers of every model; to stack "
    "layers (a frankenmerge), use mergekit"
)


_REARRANGED = (
    "{} is not supported: ramerge moves no rows of embeddings. Leave it out, and the output gets the base's tokenizer; "
    "`companions: AGENT` takes an agent's. If agents added tokens, add `allow: {{vocabulary: common}}`. To choose the "
    "rows of single tokens, use mergekit"
)


def translate(document: Document, look: Look = blind) -> Document:
    """Translate a recipe from mergekit's form to ramerge's. Messages still show the lines and flags of the original.

    Args:
        look: returns the names of the base's tensors (without a base, the first agent's); called if values depend on
            them.
    """
    return _Translation(document, look).run()


@dataclass(frozen=True)
class MergekitModel:
    """A model of the recipe: its text, its key in the document, and its own parameters.

    Models are the same if they are spelled the same, as in mergekit: `./base` is not `base`.
    """

    text: str
    key: Key
    own: ParameterLevel = field(default_factory=dict)


def _name_models(models: Iterable[MergekitModel]) -> dict[str, MergekitModel]:
    """Name models after the last part of their path or hub id, in ASCII. Repeated names get -2, -3 and so on."""
    by_name: dict[str, MergekitModel] = {}
    for model in models:
        path = model.text if "+" in model.text else model.text.partition("@")[0]
        parts = [part for part in re.split(r"[/\\]", path) if part not in ("", ".", "..")]
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", parts[-1] if parts else "").strip("-._") or "model"
        name, count = stem, 1
        while name in by_name:
            count += 1
            name = f"{stem}-{count}"
        by_name[name] = model
    return by_name


def _text_of(value: object) -> str:
    """Return a model as recipes write it, from `path`, `path@revision`, or the mapping into which mergekit converts
    these.
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, Mapping):
        if any(part is not None for name, part in value.items() if name not in ("model", "lora")):
            raise ValueError("a model of another architecture is not supported")
        if value.get("lora") is not None:
            return "+".join(_text_of({"model": value.get(part)}) for part in ("model", "lora"))
        value = value.get("model")
    elif isinstance(value, str) and "+" in value:
        return value  # a model with adapters, each with its own revision
    if isinstance(value, Mapping) and set(value) <= {"path", "revision"}:
        path, revision = value.get("path"), value.get("revision")
    elif isinstance(value, str):
        path, at, revision = value.partition("@")
        revision = revision if at else None
    else:
        raise ValueError(f"must be a path or a hub id, not {value_text(value)}")
    if not isinstance(path, str) or not path or not isinstance(revision, str | None) or "@" in (revision or ""):
        raise ValueError(f"must be a path or a hub id with at most one @revision, not {value_text(value)}")
    return f"{path}@{revision}" if revision else path


def _sources_of_whole_slice(slices: object) -> tuple[list[Any], int, Any]:
    """Sources without their range, the number of layers that they all have, and the parameters of the only slice."""
    whole = slices[0] if isinstance(slices, list | tuple) and len(slices) == 1 else None
    if not isinstance(whole, Mapping) or not set(whole) <= {"sources", "parameters"}:
        raise ValueError("are not supported")
    sources = whole.get("sources")
    if not isinstance(sources, list | tuple) or not sources or not all(isinstance(part, Mapping) for part in sources):
        raise ValueError("sources must be a list such as [{model: ./coder, layer_range: [0, 24]}]")
    stops: set[int] = set()
    for part in sources:
        match part.get("layer_range"):
            case [0, int(stop)] if not isinstance(stop, bool) and stop > 0:
                stops.add(stop)
            case span:
                raise ValueError(f"layer_range {value_text(span)} is not supported")
    if len(stops) > 1:
        raise ValueError("with different layers are not supported")
    entries = [{key: value for key, value in part.items() if key != "layer_range"} for part in sources]
    return entries, stops.pop(), whole.get("parameters")


class _Translation:
    def __init__(self, document: Document, look: Look) -> None:
        self.document = document
        self.look = look
        self.values = {str(key): value for key, value in document.as_dict().items()}
        self.problems: list[str] = []
        self.lacks_base = False
        self.entries: object = self.values.get("models")
        self.models_key: Key = ("models",)
        self.slice_parameters: object = None
        self.output: dict[str, Any] = {}  # the values of `result`, which looks at tensors while they are filled in
        self.result = Document(self.output, document.source, document.folder, {}, document.text, {})

    def run(self) -> Document:
        for key, text in _OTHER_PROGRAMS.items():
            if key in self.values:
                raise RecipeError(self.document.where((key,), text))
        self.check_keys()
        self.open_slice()
        method = self.read_method()
        base = self.read_model(self.values["base_model"], ("base_model",)) if self.values.get("base_model") else None
        agents = self.choose_agents(method, self.read_models(method), base)
        self.write_models(method, base, agents)
        self.keep_own_keys()
        self.write_dtype(method)
        self.write_tokenizer(base, agents)
        self.write_parameters(method, agents)
        if self.problems:
            raise RecipeError(self.problems)
        return self.result

    # --- reports and results ---

    def problem(self, key: Key, message: str) -> None:
        self.problems.append(self.document.where(key, message))

    def put(self, key: Key, value: object, origin: Key = ()) -> None:
        mapping = self.output
        for part in key[:-1]:
            mapping = mapping.setdefault(part, {})
        mapping[key[-1]] = value
        self.mark(key, origin)

    def mark(self, key: Key, origin: Key) -> None:
        """Make messages about `key` of the result show the line or flag of `origin`, or of the mapping around it."""
        for length in range(len(origin), 0, -1):
            if origin[:length] in self.document.flags:
                self.result.flags[key] = self.document.flags[origin[:length]]
                return
            if origin[:length] in self.document.lines:
                self.result.lines[key], self.result.origins[key] = self.document.lines[origin[:length]], origin
                return

    # --- keys and method ---

    def check_keys(self) -> None:
        if (name := self.values.get("name")) is not None:
            self.result.notes.append(f"name: {value_text(name)} is ignored: the output has the name of its folder")
        for key, value in self.values.items():
            if key == "modules" and value:
                self.problem((key,), f"is not supported; {_WHOLE}")
            elif key in _OWN_KEYS:
                flag_key = next((flag_key for flag_key in self.document.flags if flag_key[0] == key), (key,))
                self.problem(flag_key, f"does not belong in a recipe of mergekit's form: {_OWN_KEYS[key]}")
            elif key not in (*_KEYS, *_ADDED_KEYS, *_ELSEWHERE):
                flag = f"--{key.replace('_', '-')}"
                if flag in FLAGS:
                    text = f"is a flag of mergekit's, not a key of recipes: {FLAGS[flag]}"
                elif any(key in form.settings for form in METHODS.values()):
                    text = f"is a parameter of methods; write it under parameters, as in parameters: {{{key}: VALUE}}"
                else:
                    text = unknown(
                        "key", key, [*_KEYS, *_ADDED_KEYS, *(each for each in _ELSEWHERE if each != "modules")]
                    )
                self.problem((key,), text)

    def read_method(self) -> MergekitMethod | None:
        name = self.values.get("merge_method")
        if isinstance(name, str) and name in METHODS:
            self.put(("method",), METHODS[name].ours, ("merge_method",))
            return METHODS[name]
        names = ", ".join(METHODS)
        if name is None:
            wrong = f"is missing; known: {names}"
        elif name in MERGEKITS_ALONE:
            wrong = f"mergekit has {name}, ramerge does not: use mergekit for it, or another method; both have {names}"
        else:
            wrong = unknown("method", str(name), [*METHODS])
        self.problem(("merge_method",), wrong)
        return None

    # --- models ---

    def open_slice(self) -> None:
        """Take the models from a slice that holds all layers. mergekit makes such a slice from `models`."""
        slices = self.values.get("slices")
        if not slices:
            return
        try:
            sources, layers, self.slice_parameters = _sources_of_whole_slice(slices)
        except ValueError as error:
            self.problem(("slices",), f"{error}; {_WHOLE}")
            return
        if self.entries:
            self.problem(("slices",), "cannot be used together with models; remove one of the two")
        self.entries, self.models_key = sources, ("slices", "0", "sources")
        self.mark(("slices",), ("slices",))
        # planning checks that these are all layers, once the base is open
        self.result.layers = layers

    def read_models(self, method: MergekitMethod | None) -> list[MergekitModel]:
        entries = self.entries
        if not entries and (self.values.get("slices") or self.values.get("modules")):
            return []  # already reported as a problem of these keys
        if entries is None:
            self.problem(("models",), "is missing")
            return []
        if not isinstance(entries, list | tuple) or not entries:
            self.problem(("models",), f"must be a list such as [{{model: ./coder}}], not {value_text(entries)}")
            return []
        read = [self.read_entry(entry, (*self.models_key, str(index)), method) for index, entry in enumerate(entries)]
        models = [model for model in read if model is not None]
        texts = [model.text for model in models]
        for index, model in enumerate(models):
            if model.text in texts[:index]:
                self.problem(model.key, f"{model.text} is listed twice")
        return models

    def read_entry(self, entry: object, key: Key, method: MergekitMethod | None) -> MergekitModel | None:
        if not isinstance(entry, Mapping):
            self.problem(key, f"must be a mapping such as {{model: ./coder}}, not {value_text(entry)}")
            return None
        for name in entry:
            if name not in _MODEL_KEYS:
                self.problem((*key, str(name)), unknown("key", str(name), list(_MODEL_KEYS)))
        own = self.read_parameters(entry.get("parameters"), (*key, "parameters"), method)
        if entry.get("model") is None:
            self.problem((*key, "model"), "is missing")
            return None
        return self.read_model(entry["model"], (*key, "model"), own)

    def read_model(self, value: object, key: Key, own: ParameterLevel | None = None) -> MergekitModel | None:
        try:
            return MergekitModel(_text_of(value), key, own or {})
        except ValueError as error:
            self.problem(key, str(error))
            return None

    def choose_agents(
        self, method: MergekitMethod | None, models_of_recipe: Sequence[MergekitModel], base: MergekitModel | None
    ) -> dict[str, MergekitModel]:
        """Return agents by name, in summation order. For some methods, the base is one of them, as in mergekit."""
        others = [model for model in models_of_recipe if base is None or model.text != base.text]
        if method is None or method.base in ("origin", "if given"):
            if models_of_recipe and not others:
                self.problem(("models",), "only the base model is listed; there is nothing to merge into it")
            return _name_models(others)
        # mergekit adds the base to `models`, but not to a slice
        base_counts = base is not None and (len(others) < len(models_of_recipe) or self.models_key == ("models",))
        if method.base == "first":
            if base is not None and not base_counts:
                self.problem(
                    ("base_model",), f"{base.text} must be one of the models that are merged, as mergekit requires"
                )
            return _name_models([*([base] if base is not None and base_counts else []), *others])
        extra = [base] if base is not None and base_counts and len(others) == len(models_of_recipe) else []
        models = [*models_of_recipe, *extra]
        if method.only is not None and models_of_recipe and len(models) != method.only:
            text = f"{self.values['merge_method']} takes exactly {method.only} model, not {len(models)}"
            self.problem(self.models_key, text)
        return _name_models(models)

    def write_models(
        self, method: MergekitMethod | None, base: MergekitModel | None, agents: Mapping[str, MergekitModel]
    ) -> None:
        if base is not None:
            self.put(("base",), base.text, base.key)
        elif method is not None and method.base in ("origin", "first") and not self.values.get("base_model"):
            self.lacks_base = True
            self.problem(("base_model",), f"is missing; {self.values['merge_method']} needs it")
        self.put(("agents",), {}, self.models_key)
        for name, model in agents.items():
            self.put(("agents", name), model.text, model.key)
        models = [model.text for model in agents.values()] + ([base.text] if base is not None else [])
        self.result.folder, note = choose_folder(self.document, models)
        self.result.notes += [note] if note else []

    # --- parameters ---

    def read_parameters(self, values: object, key: Key, method: MergekitMethod | None) -> ParameterLevel:
        if values is None:
            return {}
        if not isinstance(values, Mapping):
            self.problem(key, f"must be a mapping such as {{weight: 1}}, not {value_text(values)}")
            return {}
        result: dict[str, tuple[Value, Key]] = {}
        for name, value in ((str(name), value) for name, value in values.items()):
            inside = (*key, name)
            result[name] = (), inside
            try:
                if method is not None:
                    setting = self.setting(method, name, for_all=key[:-2] != self.models_key)
                    result[name] = read_value(value, setting.kind, setting.convert), inside
            except ValueError as error:
                self.problem(inside, str(error))
        return result

    def setting(self, method: MergekitMethod, name: str, *, for_all: bool) -> MergekitSetting:
        if name not in method.settings:
            others = [other for other, form in METHODS.items() if name in form.settings]
            hint = f" ({name} belongs to {', '.join(others)})" if others else ""
            raise ValueError(unknown(f"parameter of {self.values['merge_method']}", name, list(method.settings)) + hint)
        if not for_all and not method.settings[name].each:
            raise ValueError("is not possible for a single model in mergekit: put it under the recipe's parameters")
        return method.settings[name]

    def write_parameters(self, method: MergekitMethod | None, agents: Mapping[str, MergekitModel]) -> None:
        levels = [
            self.read_parameters(self.slice_parameters, ("slices", "0", "parameters"), method),
            self.read_parameters(self.values.get("parameters"), ("parameters",), method),
        ]
        if method is None:
            return
        is_read = self.entries or not self.values.get("slices")  # else slices could not be opened, which is reported
        for name, setting in method.settings.items():
            if setting.is_required and is_read:
                self.check_parameter(name, levels, agents)
        slots = list(_parameter_slots(method, agents, levels))
        for slot in slots:
            self.mark(("parameters", *slot.key), slot.origin)
            if len(slot.key) > 1:
                self.mark(("parameters", slot.key[0]), self.models_key)
        self.put(("parameters",), {}, ("parameters",))
        varying = [slot for slot in slots if is_varying(slot.value)]
        if self.problems:
            return
        if not varying:
            self.output["parameters"] = _parameters_of_tensor(method, slots, ANYWHERE)
            return
        tensors = self.read_tensors(varying)
        for slot in varying:
            self.check_cases(slot, tensors)
        if tensors and not self.problems:
            texts = {case.text for slot in varying for case in slot.value if case.text is not None}
            common, rules = rules_of(
                tensors, sorted(texts), lambda tensor: _parameters_of_tensor(method, slots, tensor)
            )
            self.output["parameters"] = common
            self.put(("rules",), rules, varying[0].origin)
            self.result.rules_from = "filters and gradients"

    def read_tensors(self, varying: Sequence[_ParameterSlot]) -> list[NamedTensor]:
        """Return the tensors on which values depend; empty if they are unknown, which is reported as a problem."""
        try:
            names = self.look(self.result)
            if any(len(case.steps) > 1 for slot in varying for case in slot.value):
                return tensors_of(names)
            return [NamedTensor(name, None, 0.0) for name in names]
        except CheckpointError as error:
            self.problem(("base_model",) if self.values.get("base_model") else self.models_key, str(error))
        except ValueError as error:
            self.problem(varying[0].origin, f"depends on the tensor, and {error}")
        return []

    def check_cases(self, slot: _ParameterSlot, tensors: Sequence[NamedTensor]) -> None:
        """Warn about filters that match no tensor, and report tensors without a case."""
        for case in slot.value:
            if tensors and case.text is not None and not any(case.text in tensor.name for tensor in tensors):
                warning = self.document.where(slot.origin, f"filter {case.text!r}: no tensor's name holds it")
                self.result.warnings.append(warning)
        uncovered = next((tensor.name for tensor in tensors if tensor.value(slot.value) is None), None)
        if uncovered is not None:
            self.problem(
                slot.origin, f"has no value for {uncovered!r}; add a last entry without a filter: {{value: ...}}"
            )

    def check_parameter(self, name: str, levels: Sequence[ParameterLevel], agents: Mapping[str, MergekitModel]) -> None:
        for model in agents.values():
            if any(name in level for level in (model.own, *levels)):
                continue
            if name == "t":
                self.problem(("parameters",), f"{name} is missing")
                return
            where = (
                "the recipe's parameters" if model.key == ("base_model",) else "this model's parameters or the recipe's"
            )
            self.problem(
                model.key, f"{name} is missing: mergekit merges this model like the others; give it in {where}"
            )

    # --- the rest ---

    def write_dtype(self, method: MergekitMethod | None) -> None:
        dtypes = {key: name for key in ("out_dtype", "dtype") if (name := self.read_dtype(key)) is not None}
        if ("dtype",) in self.document.flags:
            dtypes.pop("out_dtype", None)
        elif dtypes.get("dtype") in _SHORT and method is not None and method.in_bfloat16:
            self.result.notes.append(_COMPUTES.format(dtypes["dtype"], self.values["merge_method"], method.in_bfloat16))
        for key in list(dtypes)[:1]:
            self.put(("dtype",), dtypes[key], (key,))

    def read_dtype(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is None or value in ("", "auto"):
            return None
        name = full_dtype(value) if isinstance(value, str) else value_text(value)
        if not isinstance(value, str) or name not in _DTYPES:
            self.problem((key,), unknown("dtype", name, _DTYPES, few=True))
            return None
        return name

    def write_tokenizer(self, base: MergekitModel | None, agents: Mapping[str, MergekitModel]) -> None:
        """Write the source of the output's tokenizer. Report unsupported changes of embeddings, and note other chat
        templates.
        """
        advice = "the output gets the base's tokenizer and chat template; companions: AGENT takes an agent's"
        source, tokenizer = self.values.get("tokenizer_source"), self.values.get("tokenizer")
        if source is not None:
            self.write_tokenizer_source(("tokenizer_source",), source, base, agents)
        if tokenizer is not None:
            # without a source, mergekit uses the union of all vocabularies
            parts = {"source": "union", **tokenizer} if isinstance(tokenizer, Mapping) else {"source": None}
            source = parts.pop("source")
            if not isinstance(tokenizer, Mapping):
                self.problem(("tokenizer",), f"must be a mapping such as {{source: base}}, not {value_text(tokenizer)}")
            elif any(parts.values()):
                self.problem(("tokenizer",), _REARRANGED.format(", ".join(map(str, filter(parts.get, parts)))))
            elif source is not None:
                self.write_tokenizer_source(("tokenizer",), source, base, agents)
        # agents of one base share its template, and mergekit's vote would select it
        template = self.values.get("chat_template")
        if template in (None, "", "auto"):
            return
        if isinstance(template, str) and (template in _TEMPLATES or "{" in template):
            template_name = template if template in _TEMPLATES else "the template of the recipe"
            self.result.notes.append(
                f"chat_template: {template_name} is ignored: {advice}. To set another one, assign "
                "chat_template of the output's tokenizer and save it"
            )
        else:
            self.problem(("chat_template",), unknown("chat template", str(template), ["auto", *_TEMPLATES], few=True))

    def write_tokenizer_source(
        self, key: Key, source: object, base: MergekitModel | None, agents: Mapping[str, MergekitModel]
    ) -> None:
        """Write a model of the recipe as the tokenizer's source; planning checks that all have the same tokens.

        With the same tokens, neither the union of all vocabularies nor an agent's vocabulary moves a row of the
        embeddings.
        """
        if source == "base":
            self.put_companions("base" if base is not None else next(iter(agents), "base"), key)
            return
        model = self.read_model(source, key) if source != "union" else base
        names = [name for name, agent in agents.items() if model is not None and agent.text == model.text]
        is_base = base is not None and model is not None and base.text == model.text
        if source != "union" and model is not None and not names and not is_base:
            if not self.lacks_base:  # which the source may name
                self.problem(key, f"{value_text(source)} is neither base, union nor a model of this recipe")
        elif source == "union" or not is_base:
            self.result.same_tokenizers = key
            self.mark(key, key)
        if source != "union" and (is_base or names):
            self.put_companions("base" if is_base else names[0], key)

    def put_companions(self, owner: str, key: Key) -> None:
        """Write the source of the output's tokenizer, unless the recipe has ramerge's own key for it."""
        if "companions" not in self.values:
            self.put(("companions",), owner, key)

    def keep_own_keys(self) -> None:
        for key in _ADDED_KEYS:
            if key in self.values:
                self.put((key,), self.values[key])
        self.result.lines |= {key: line for key, line in self.document.lines.items() if key[0] in _ADDED_KEYS}
        self.result.flags |= {key: flag for key, flag in self.document.flags.items() if key[0] in _ADDED_KEYS}


class _ParameterSlot(NamedTuple):
    """A parameter of the result, or its value for an agent: its key, mergekit's value, and the origin of that value."""

    key: Key
    value: Value
    origin: Key


def _parameter_slots(
    method: MergekitMethod, agents: Mapping[str, MergekitModel], levels: Sequence[ParameterLevel]
) -> Iterator[_ParameterSlot]:
    for name, setting in method.settings.items():
        if setting.ours is None:
            continue
        own = any(name in model.own for model in agents.values())
        for agent, model in agents.items() if own else [("", None)]:
            levels_with_value = [level[name] for level in ([model.own] if model else []) + [*levels] if name in level]
            default = (ValueCase(None, (setting.default,), setting.convert),) if setting.default is not None else ()
            value = chain([*(value for value, _ in levels_with_value), default])
            if value:
                key = (setting.ours, agent) if own and not setting.is_shared else (setting.ours,)
                yield _ParameterSlot(key, value, levels_with_value[0][1] if levels_with_value else ("merge_method",))


def _parameters_of_tensor(
    method: MergekitMethod, slots: Sequence[_ParameterSlot], tensor: NamedTensor
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for slot in slots:
        case = tensor.value(slot.value)
        assert case is not None, slot.key
        inside = values.setdefault(slot.key[0], {}) if len(slot.key) > 1 else values
        inside[slot.key[-1]] = case.at(tensor.place)
    return {**method.join(values), **method.constants}


DIALECT = Dialect(_MARKS, translate, FLAGS)


def choose_folder(document: Document, models: Sequence[str]) -> tuple[Path, str | None]:
    """Return the folder that paths of a recipe in mergekit's form are relative to, and a note if there was a choice.

    In mergekit, paths are relative to the working directory; recipes are often stored next to their models, or in a
    subfolder. All paths start at the same folder: the first of these three with the most models.
    """
    if document.source is None:
        return document.folder, None
    folders = [Path(), document.folder, document.folder.absolute().parent]
    relative = [model for model in models if not Path(model).is_absolute()]
    # models of which a part exists under the folder
    counts = [sum(any(part.path for part in parts_of(model, folder)) for model in relative) for folder in folders]
    best_folder = folders[counts.index(max(counts))]
    here, start = Path().resolve(), best_folder.resolve()
    if not any(counts) or here == start == document.folder.resolve():
        return best_folder, None
    why = "as in mergekit" if here == start else f"because fewer of the models are under {here}"
    return best_folder, f"relative paths start at {start}, {why}"
