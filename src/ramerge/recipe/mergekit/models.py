"""Models in mergekit's recipes: their names, and slices of all layers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ramerge.recipe.document import Key
from ramerge.recipe.mergekit.values import Given, shown


@dataclass(frozen=True)
class MergekitModel:
    """A model as recipes of both forms write it, where it was written, and its own parameters.

    Models are the same if they are spelled the same, as in mergekit: `./base` is not `base`.
    """

    written: str
    key: Key
    own: Given = field(default_factory=dict)


def named(models: Iterable[MergekitModel]) -> dict[str, MergekitModel]:
    """Models by the last part of their path or hub id, in ASCII. Repeated names get -2, -3 and so on."""
    named: dict[str, MergekitModel] = {}
    for model in models:
        path = model.written if "+" in model.written else model.written.partition("@")[0]
        parts = [part for part in re.split(r"[/\\]", path) if part not in ("", ".", "..")]
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", parts[-1] if parts else "").strip("-._") or "model"
        name, count = stem, 1
        while name in named:
            count += 1
            name = f"{stem}-{count}"
        named[name] = model
    return named


def spelled(value: Any) -> str:
    """A model as recipes write it, from `path`, `path@revision`, or the mapping into which mergekit turns these.

    Raises:
        ValueError: the value has another form.
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, Mapping):
        if any(part is not None for name, part in value.items() if name not in ("model", "lora")):
            raise ValueError("a model of another architecture is not supported")
        if value.get("lora") is not None:
            return "+".join(spelled({"model": value.get(part)}) for part in ("model", "lora"))
        value = value.get("model")
    elif isinstance(value, str) and "+" in value:
        return value  # a model with adapters, each with its own revision
    if isinstance(value, Mapping) and set(value) <= {"path", "revision"}:
        path, revision = value.get("path"), value.get("revision")
    elif isinstance(value, str):
        path, at, revision = value.partition("@")
        revision = revision if at else None
    else:
        raise ValueError(f"must be a path or a hub id, not {shown(value)}")
    if not isinstance(path, str) or not path or not isinstance(revision, str | None) or "@" in (revision or ""):
        raise ValueError(f"must be a path or a hub id with at most one @revision, not {shown(value)}")
    return f"{path}@{revision}" if revision else path


def whole_slice(slices: Any) -> tuple[list[Any], int, Any]:
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
    raise ValueError(f"layer_range {shown(span)} is not supported")
