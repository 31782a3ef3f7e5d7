"""Merges in memory: `merge_state_dicts` and `merge_tensors`.

A state dict becomes a folder in memory (`storage.memory`) that holds its tensors as a safetensors file does, and
`config.json` if one is given. So plans, checks and passes are those of a merge of folders, and so are the bytes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ramerge.api import merge_into
from ramerge.core.engine.record import Record
from ramerge.core.engine.sinks import MergedTensor
from ramerge.core.formats.encodings.decode import without_declaration
from ramerge.core.formats.recorded import PLACES
from ramerge.core.formats.safetensors import ONE_FILE
from ramerge.core.foundation.dtypes import TORCH_NAMES
from ramerge.core.foundation.errors import RamergeError, RecipeError, WeightsError
from ramerge.core.foundation.settings import check_options
from ramerge.core.foundation.text import Displayed, brief, brief_list, first_of, quoted
from ramerge.core.methods.base import IMPORTANCE, INPUTS, SIDE_INPUTS
from ramerge.core.options import Options, in_python
from ramerge.core.output.write import lay_out
from ramerge.core.planning.model import MergePlan
from ramerge.core.recipe.checks import advice_on_auto
from ramerge.core.recipe.document import DEFAULT_METHOD, Document
from ramerge.core.recipe.model import AUTO
from ramerge.core.storage.location import Remote
from ramerge.core.storage.memory import Extent, MemoryFolder

_DEFAULTS = Options()
_DTYPES = {name: dtype for dtype, name in TORCH_NAMES.items()}
"""Maps names of NumPy and ml_dtypes, which torch uses too, to safetensors' names."""
_OF_FILES = ("config", "different_tokens", "outside_links")
"""Keys of `allow` that do not apply to state dicts: these have no configuration, no tokenizer and no links."""
_KEYS = ("dtype", "preset", "rounding", "rounding_seed", "rules", "rename", "allow")
"""Keys of recipes that apply to merges in memory, in addition to those that are arguments."""


class MergedStateDict(Displayed, dict[str, Any]):
    """Merged tensors by name, with the merge's record.

    Attributes:
        record: the content of `ramerge.json` after `ramerge.merge`: statistics of agents, notes, warnings.

    Example:
        >>> import numpy as np
        >>> base = {"w": np.zeros(2, np.float32)}
        >>> agents = {"code": {"w": np.ones(2, np.float32)}}
        >>> ramerge.merge_state_dicts(base, agents, method="task_arithmetic", scale=0.5).record.method
        'task_arithmetic'
    """

    record: Record

    def __init__(self, tensors: Mapping[str, Any], record: Record) -> None:
        super().__init__(tensors)
        self.record = record

    def _summary(self) -> Mapping[str, object]:
        return {"tensors": len(self), "record": self.record}

    def _rows(self) -> Sequence[Mapping[str, object]]:
        return [{"name": name, "dtype": each.dtype, "shape": tuple(each.shape)} for name, each in self.items()]


def merge_state_dicts(
    base: Any,
    agents: Mapping[str, Any],
    method: str = DEFAULT_METHOD,
    *,
    out: Any = None,
    config: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    options: Options = _DEFAULTS,
    **parameters: Any,
) -> MergedStateDict:
    """Merge state dicts in memory: the bytes equal those of `ramerge merge`, and no file is read or written.

    Arrays are read in place, block by block; only arrays that are not contiguous, and blocks of tensors on another
    device, are copied. Arrays must not change until the function returns. Threads may call it at the same time.

    Args:
        base: the base: a mapping of names to NumPy arrays (bfloat16 and float8 are those of ml_dtypes) or torch tensors
            on any device, or an object with `state_dict()`, such as a module. None for a method that takes no base.
        agents: agents by name, in the order of sums. Each is like the base, or as in a recipe, a
            mapping with `model` and side inputs. `importance` maps names to arrays of the tensors' shapes. `inputs`
            maps weights that meet d inputs to recorded rows of shape (n, d), or to a pair of rows and their weights,
            shape (n,); by default 1 / n. Expert 3 of a tensor that stacks all of them is `NAME[3]`.
        method: as for `Recipe`.
        out: a mapping or module whose tensors become the merged ones, in place, after everything was computed. It may
            be the base or an agent, must hold each merged tensor in its shape and dtype, and may hold others. Elements
            of a view must not share memory, and different tensors must not overlap.
        config: the base's `config.json` as a mapping. Needed for quantized weights, and if shapes of stacked experts do
            not tell which side is the inputs'. It also holds for agents that have all tensors of the base, scales
            included; others are not quantized.
        recipe: further keys of a recipe: `dtype`, `preset`, `rounding`, `rounding_seed`, `rules`, `rename`, `allow`.
        options: how to carry out the merge; `threads`, `max_memory` and `strict` apply.
        **parameters: parameters of the method.

    Returns:
        The merged tensors in the base's order, each of the kind that the base (or else the first agent) has under this
        name, on the same device; with `out`, those of `out`. Names that share their memory in the base, as tied
        embeddings do, are merged once and share it in the result.

    Raises:
        RecipeError: method or parameters are wrong, or a value is neither a NumPy array nor a torch tensor, or is a
            part of a tensor, such as a DTensor.
        PlanError: the state dicts do not fit each other, `out` or the memory; all problems are listed.
        WeightsError: as for `ramerge.merge`, or `out` ties tensors whose merges differ.

    Example:
        >>> import numpy as np
        >>> base = {"w": np.zeros(4, np.float32)}
        >>> code = {"w": np.array([0, 1, 0, 2], np.float32)}
        >>> tool = {"w": np.array([0, 0, 3, 4], np.float32)}
        >>> merged = ramerge.merge_state_dicts(base, {"code": code, "tool": tool}, method="ram")
        >>> merged["w"]
        array([0., 1., 3., 3.], dtype=float32)
        >>> ramerge.merge_state_dicts(base, {"code": code, "tool": tool}, method="ram", out=base)["w"] is base["w"]
        True
    """
    check_options(options)
    for label, value in (("agents", agents), ("recipe", recipe or {}), ("config", config or {})):
        _check_mapping(label, value)
    if method == AUTO:
        raise RecipeError(f"method: {advice_on_auto(agents)}")
    if options.ray is not None:
        raise RecipeError("ray: state dicts are merged in the process that holds them; leave out `ray`")
    if keys := [key for key in _KEYS if key in parameters]:
        raise RecipeError(f"{key}: is a key of recipes and no parameter; write recipe={{{key!r}: ...}}" for key in keys)
    if isinstance(nested := parameters.get("parameters"), Mapping):
        keywords = ", ".join(f"{name}={value!r}" for name, value in nested.items()) or "density=0.3"
        raise RecipeError(f"parameters: are keywords of their own here; write {brief(keywords)}")
    if others := (recipe or {}).keys() - set(_KEYS):
        raise RecipeError(f"recipe: {quoted(min(others))} is no key for state dicts, which take {', '.join(_KEYS)}")
    allow = (recipe or {}).get("allow")
    if isinstance(allow, Mapping) and (files_only := [key for key in _OF_FILES if allow.get(key)]):
        raise RecipeError(f"allow.{key}: is for models in files; leave it out for state dicts" for key in files_only)
    entries = {name: _agent_entry(agent) for name, agent in agents.items()}
    models = {name: _held_tensors(entry["model"], f"agents.{name}") for name, entry in entries.items()}
    own = _held_tensors(base, "base") if base is not None else next(iter(models.values()), {})
    _refuse_factors({"base": own} | {f"agents.{name}": tensors for name, tensors in models.items()})
    ties = _tied_names(own)
    folders = _InMemoryFolders(own, ties, config)
    values = {
        **(recipe or {}),
        "method": method,
        "parameters": parameters,
        "agents": {
            name: {"model": folders.model(name, tensors), **folders.sides(name, entries[name])}
            for name, tensors in models.items()
        },
    }
    if base is not None:
        values["base"] = folders.model("base", own)

    target = None if out is None else _checked_mapping(out, "out")
    merged_tensors: dict[str, MergedTensor] = {}
    wording = _MessageRewording(folders.arguments)
    with wording.errors():
        record = merge_into(
            lambda tensor: merged_tensors.update({tensor.name: tensor}),
            Document(values, models=folders.folders),
            options,
            lambda plan: () if target is None else _misfit_problems(plan, target, ties),
        )
    record = replace(
        record, notes=(*map(wording.reword, record.notes),), warnings=(*map(wording.reword, record.warnings),)
    )
    if target is not None:
        merged_tensors |= {
            again: merged_tensors[name] for again, name in ties.items() if name in merged_tensors and again in target
        }
        _check_ties(target, merged_tensors)
        result = {name: _write_into(tensor, target[name]) for name, tensor in merged_tensors.items()}
    else:
        kinds = _checked_mapping(base if base is not None else next(iter(entries.values()))["model"], "base")
        usual = next(iter(kinds.values()), None)
        result = {name: _array_like(tensor, kinds.get(name, usual)) for name, tensor in merged_tensors.items()}
        result |= {again: result[name] for again, name in ties.items() if name in result}
    places = {name: place for place, name in enumerate(own)}
    names = sorted(result, key=lambda name: places.get(name, len(places)))
    return MergedStateDict({name: result[name] for name in names}, record)


def merge_tensors(base: Any, agents: Mapping[str, Any], *, name: str = "weight", **keywords: Any) -> Any:
    """Merge one tensor, as `merge_state_dicts` merges models with only this tensor.

    Methods that count over the whole model count over this tensor.

    Args:
        base: a NumPy array or torch tensor, or None for a method that takes no base.
        agents: name to tensor, each of the base's shape.
        name: the tensor's name; draws of `dare`, `della` and `rounding="stochastic"` depend on it.
        **keywords: as for `merge_state_dicts`; `out` is a tensor, and an agent's side inputs are those of this tensor.

    Returns:
        The merged tensor: `out` if given, otherwise of the same kind as `base` (without a base, as the first agent).

    Raises:
        RamergeError: as for `merge_state_dicts`.

    Example:
        >>> import numpy as np
        >>> base, code = np.zeros(2, np.float32), np.array([1, 2], np.float32)
        >>> ramerge.merge_tensors(base, {"code": code}, method="task_arithmetic", scale=0.5)
        array([0.5, 1. ], dtype=float32)
    """
    if keywords.get("out") is not None:
        keywords["out"] = {name: keywords["out"]}
    _check_mapping("agents", agents)
    models = {
        agent: {key: {name: value} for key, value in agent_input.items()}
        if isinstance(agent_input, Mapping)
        else {name: agent_input}
        for agent, agent_input in agents.items()
    }
    return merge_state_dicts(None if base is None else {name: base}, models, **keywords)[name]


# --- inputs in memory ---------------------------------------------------------------------------------------------


class _HeldTensor(NamedTuple):
    """A tensor in memory: safetensors' dtype, shape, bytes, and its place, equal for names of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    data: Extent
    place: Hashable


class _DeviceTensorBytes:
    """The bytes of a torch tensor on another device, copied as they are read."""

    def __init__(self, flat: Any) -> None:
        self._flat = flat

    def __len__(self) -> int:
        return len(self._flat)

    def __getitem__(self, part: slice) -> NDArray[np.uint8]:
        data: NDArray[np.uint8] = self._flat[part].cpu().numpy()
        return data


_EXAMPLES = {"agents": "{'code': ..., 'tool': ...}", "recipe": "{'dtype': 'float32'}", "config": "{'model_type': ...}"}


def _check_mapping(label: str, value: Any) -> None:
    """Raise RecipeError for an argument whose form differs from its example."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise RecipeError(
            f"{label}: must be a mapping of names, such as {_EXAMPLES[label]}; it is a {type(value).__name__}"
        )


def _checked_mapping(model: Any, label: str) -> Mapping[str, Any]:
    mapping = model.state_dict() if not isinstance(model, Mapping) and hasattr(model, "state_dict") else model
    if not isinstance(mapping, Mapping) or not all(isinstance(name, str) for name in mapping):
        raise RecipeError(f"{label}: must map names to tensors, or be a module; it is a {type(model).__name__}")
    return mapping


def _agent_entry(agent: Any) -> Mapping[str, Any]:
    """Return an agent as in a recipe: its model, and its side inputs by key."""
    model = agent.get("model") if isinstance(agent, Mapping) else None
    is_entry = isinstance(model, Mapping) or hasattr(model, "state_dict")
    if is_entry and (others := agent.keys() - {"model", *(side.key for side in SIDE_INPUTS)}):
        raise RecipeError(f"agents: {quoted(min(others))} is neither model nor a side input")
    return agent if is_entry else {"model": agent}


def _held_tensors(model: Any, label: str) -> dict[str, _HeldTensor]:
    tensors, problems = {}, []
    for name, value in _checked_mapping(model, label).items():
        try:
            name.encode()
            tensors[name] = _hold_torch(value) if _is_torch_tensor(value) else _hold_numpy(value)
        except UnicodeEncodeError:
            problems.append(f"{quoted(name)} holds half of a surrogate pair, which is no character; rename the tensor")
        except ValueError as error:
            problems.append(f"{quoted(name)} {error}")
        except (RuntimeError, TypeError):  # of torch, for subclasses and in transformations that hide the data
            problems.append(f"{quoted(name)} is a {type(value).__name__} without bytes to read; give a plain tensor")
    if problems:
        raise RecipeError(f"{label}: {brief_list(problems)}")
    return tensors


def _refuse_factors(models: Mapping[str, Mapping[str, _HeldTensor]]) -> None:
    """Raise RecipeError for the module of a LoRA adapter: its changes would be no part of the merge."""
    problems = [
        f"{label}: is a model of PEFT, with factors of LoRA such as {quoted(name)}; give the whole model, "
        "copy.deepcopy(MODEL).merge_and_unload(), or save the adapter and merge its folder with ramerge.merge"
        for label, tensors in models.items()
        if (name := next((name for name in tensors if ".lora_A." in name), None)) is not None
    ]
    if problems:
        raise RecipeError(problems)


def _is_torch_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # a program that has a tensor has imported it
    return torch is not None and isinstance(value, torch.Tensor)


def _hold_numpy(value: Any) -> _HeldTensor:
    if not isinstance(value, np.ndarray | np.generic):
        raise ValueError(f"is a {type(value).__name__}, neither a NumPy array nor a torch tensor")
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError("is a masked array, and merging knows no masks; give filled(VALUE), or data for all elements")
    array = np.asarray(value)
    name = array.dtype.name
    if name not in _DTYPES:
        raise ValueError(f"is {name}, which is not a type of weights")
    place = (array.ctypes.data, array.strides, array.shape, name, array.dtype.byteorder) if array.size else None
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return _HeldTensor(_DTYPES[name], array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8), place)


def _hold_torch(tensor: Any) -> _HeldTensor:
    import torch

    name = str(tensor.dtype).removeprefix("torch.")
    if hasattr(tensor, "full_tensor"):
        raise ValueError("is a DTensor, a part of a tensor; give its full_tensor()")
    if (
        torch.nn.parameter.is_lazy(tensor)
        or tensor.layout != torch.strided
        or tensor.is_meta
        or tensor.is_quantized
        or (tensor.numel() and not tensor.data_ptr())  # freed, as by FSDP, or a wrapper of other tensors
    ):
        raise ValueError("is sparse, quantized or has no data; give a dense tensor")
    if name not in _DTYPES:
        raise ValueError(f"is {name}, which is not a type of weights")
    plain = tensor.detach().as_subclass(torch.Tensor)
    values = plain.resolve_neg().contiguous() if plain.numel() else plain.new_empty(0)
    # `contiguous` and `reshape` keep any stride along a dimension of one element, and `view` takes only 1
    flat = values.as_strided((values.numel(),), (1,)).view(torch.uint8)
    data = flat.numpy() if flat.device.type == "cpu" else _DeviceTensorBytes(flat)
    where = (str(plain.device), plain.data_ptr(), plain.stride(), tuple(plain.shape), name, plain.is_neg())
    place = where if plain.numel() else None
    return _HeldTensor(_DTYPES[name], tuple(plain.shape), data, place)


def _tied_names(tensors: Mapping[str, _HeldTensor]) -> dict[str, str]:
    """Return the repeated names of tensors, each with the tensor's first name."""
    firsts: dict[Hashable, str] = {}
    first_names = {
        name: firsts.setdefault(tensor.place, name) for name, tensor in tensors.items() if tensor.place is not None
    }
    return {name: first for name, first in first_names.items() if name != first}


class _InMemoryFolders:
    """The models to merge as in-memory folders, so that a recipe can name them.

    Attributes:
        folders: the folders by address; the recipe names a model by its address.
        arguments: the argument that each address stands for, such as `agents.code`.

    Args:
        own: the base's tensors; without a base, the first agent's.
        ties: maps each name in `own` that repeats an earlier tensor to the earlier name; repeated tensors are left out.
    """

    def __init__(
        self, own: Mapping[str, _HeldTensor], ties: Mapping[str, str], config: Mapping[str, Any] | None
    ) -> None:
        self.folders: dict[str, Remote] = {}
        self.arguments: dict[str, str] = {}
        self._names, self._ties, self._config = own.keys(), ties, config or {}

    def model(self, label: str, tensors: Mapping[str, _HeldTensor]) -> str:
        """Make the folder of a model; return its name. It is quantized like the base if it has all of the base's
        tensors.
        """
        # a tensor that the base has under an earlier name, too, is left out where the model has it there as well
        untied = {
            name: tensor
            for name, tensor in tensors.items()
            if name not in self._ties or (first := tensors.get(self._ties[name])) is None or first.place != tensor.place
        }
        as_base = tensors.keys() >= self._names
        return self._put_model(
            label, untied, "config.json", self._config if as_base else without_declaration(self._config)
        )

    def sides(self, label: str, entry: Mapping[str, Any]) -> dict[str, str]:
        """Make the folders of an agent's side inputs, if it has any; return their names by key."""
        addresses: dict[str, str] = {}
        if (importances := entry.get(IMPORTANCE.key)) is not None:
            tensors = _held_tensors(importances, f"agents.{label}.{IMPORTANCE.key}")
            untied = {name: tensor for name, tensor in tensors.items() if name not in self._ties}
            addresses[IMPORTANCE.key] = self._put_model(f"{label}/{IMPORTANCE.key}", untied)
        if (inputs := entry.get(INPUTS.key)) is not None:
            key = f"agents.{label}.{INPUTS.key}"
            pairs = {name: _rows_and_weights(value) for name, value in _checked_mapping(inputs, key).items()}
            places = {name: (f"{name}.rows", f"{name}.weights") for name in pairs}
            rows = {each: value for name, pair in pairs.items() for each, value in zip(places[name], pair, strict=True)}
            addresses[INPUTS.key] = self._put_model(
                f"{label}/{INPUTS.key}", _held_tensors(rows, key), PLACES, {"inputs": places}
            )
        return addresses

    def _put_model(
        self, label: str, tensors: Mapping[str, _HeldTensor], file: str = "", content: Mapping[str, Any] | None = None
    ) -> str:
        address = f"memory:{label}"
        entries = [(name, tensor.dtype, tensor.shape, len(tensor.data)) for name, tensor in tensors.items()]
        header = np.frombuffer(lay_out(ONE_FILE, entries).header, np.uint8)
        files: dict[str, list[Extent]] = {ONE_FILE: [header, *(tensor.data for tensor in tensors.values())]}
        if content:
            try:
                text = json.dumps(content, default=str)
            except (TypeError, ValueError, RecursionError) as error:
                raise RecipeError(
                    f"config: cannot be written as JSON ({error}); give what config.json holds"
                ) from error
            files[file] = [np.frombuffer(text.encode(), np.uint8)]
        self.folders[address] = Remote(MemoryFolder(address, files))
        self.arguments[address] = "base" if label == "base" else f"agents.{label.replace('/', '.')}"
        return address


class _MessageRewording:
    """Rewords messages of a merge of folders for `merge_state_dicts`: arguments instead of folders and flags.

    Args:
        arguments: by address of a folder.
    """

    def __init__(self, arguments: Mapping[str, str]) -> None:
        self._words = {address: arguments[address] for address in sorted(arguments, key=len, reverse=True)}
        files = r"(?:/[\w.-]+\.(?:safetensors|json))?"
        self._pattern = re.compile(rf"({'|'.join(map(re.escape, self._words)) or '(?!)'}){files}(?![\w/-])")
        # a message about an agent names the agent and then the folder, or the folder and then the agent
        agents = "|".join(re.escape(argument) for argument in arguments.values())
        self._twice = re.compile(rf"\b({agents}): (?=\1[.:])|(?<=\bagents\.)(.+?): \2: ")

    def reword(self, text: str) -> str:
        """Return a message with arguments in place of folders and flags."""
        text = self._pattern.sub(lambda match: self._words[match[1]], in_python(text)).replace(f" in {ONE_FILE}", "")
        return self._twice.sub(lambda match: f"{match[2]}: " if match[2] else "", text)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """A context that rewords the messages of errors."""
        try:
            yield
        except RamergeError as error:
            raise type(error)(map(self.reword, error.messages)) from error


def _rows_and_weights(value: Any) -> tuple[Any, Any]:
    """Return recorded rows and their weights."""
    if isinstance(value, tuple | list):
        rows, weights = value
        return rows, weights
    return value, np.full(len(value), 1 / max(len(value), 1))


# --- outputs in memory ---------------------------------------------------------------------------------------------


def _misfit_problems(plan: MergePlan, out: Mapping[str, Any], ties: Mapping[str, str]) -> list[str]:
    """Return problems of output tensors that have no place in `out`."""
    tensors, missing, readonly_names, problems = _held_tensors(out, "out"), [], [], []
    parts = {part.name: part for tensor in plan.tensors for part in tensor.parts}
    parts |= {again: parts[name] for again, name in ties.items() if name in parts and again in tensors}
    for name, part in parts.items():
        found = tensors.get(name)
        if found is None:
            missing.append(quoted(name))
        elif _has_repeated_elements(out[name]) or not (_is_torch_tensor(out[name]) or out[name].flags.writeable):
            readonly_names.append(quoted(name))
        elif (found.dtype, found.shape) != (part.dtype, part.shape):
            problems.append(
                f"out: {quoted(name)} is {found.dtype} {list(found.shape)}, and the merged tensor is {part.dtype} "
                f"{list(part.shape)}; recipe={{'dtype': ...}} sets that of the result"
            )
    absences = [f"out: lacks {brief_list(missing)}, which the merge has"] if missing else []
    why = "read-only, or a view with one place for several elements, as of `expand`; give other arrays, such as copies"
    refusals = [f"out: {brief_list(readonly_names)} cannot be written in place: {why}"] if readonly_names else []
    return [
        *absences,
        *first_of(problems),
        *refusals,
        *_overlap_problems({name: (out[name], tensors[name].place) for name in parts if name in tensors}),
    ]


def _overlap_problems(arrays: Mapping[str, tuple[Any, Hashable]]) -> list[str]:
    """Return problems of arrays that share some, but not all elements: one would overwrite the other."""
    layouts = {name: _layout_view(array) for name, (array, _) in arrays.items() if 0 not in array.shape}
    problems, before = list[str](), list[tuple[int, str]]()  # the ends and names of those that may reach into the next
    for begin, end, name in sorted((*_address_bounds(layout), name) for name, layout in layouts.items()):
        before = [(last, other) for last, other in before if last > begin]
        problems += [
            f"out: {quoted(other)} and {quoted(name)} share a part of their memory, so one would be written over the "
            "other; give arrays of their own"
            for _, other in before
            if arrays[other][1] != arrays[name][1] and np.shares_memory(layouts[other], layouts[name])
        ]
        before.append((end, name))
    return first_of(problems)


def _address_bounds(layout: NDArray[Any]) -> tuple[int, int]:
    """Return the address of the first byte of an array, and the address after its last byte."""
    reach = [stride * (size - 1) for stride, size in zip(layout.strides, layout.shape, strict=True)]
    begin = layout.__array_interface__["data"][0]
    return begin + sum(min(0, each) for each in reach), begin + sum(max(0, each) for each in reach) + layout.itemsize


def _layout_view(array: Any) -> NDArray[Any]:
    """Return an array with the same layout and addresses, on any device; its elements must not be read."""
    if not _is_torch_tensor(array):
        plain: NDArray[Any] = array
        return plain
    size = array.element_size()
    interface = {
        "version": 3,
        "typestr": f"|V{size}",
        "shape": tuple(array.shape),
        "strides": tuple(size * stride for stride in array.stride()),
        "data": (array.data_ptr(), True),
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))


def _has_repeated_elements(array: Any) -> bool:
    """Whether several elements of a view may share one place in memory, as in an expanded tensor."""
    strides, reach = (array.stride(), 1) if _is_torch_tensor(array) else (array.strides, array.itemsize)
    for stride, size in sorted((abs(stride), size) for stride, size in zip(strides, array.shape, strict=True)):
        if size > 1 and stride < reach and 0 not in array.shape:
            return True
        reach += stride * (size - 1)
    return False


def _check_ties(target: Mapping[str, Any], merged_tensors: Mapping[str, MergedTensor]) -> None:
    """Raise WeightsError if two different tensors would be written to one place."""
    problems = [
        f"out: {quoted(name)} and {quoted(first)} are one tensor, but the merged ones differ; give arrays of their own"
        for name, first in _tied_names(_held_tensors({name: target[name] for name in merged_tensors}, "out")).items()
        if not np.array_equal(merged_tensors[name].data, merged_tensors[first].data)
    ]
    if problems:
        raise WeightsError(first_of(problems))


def _array_like(tensor: MergedTensor, value: Any) -> Any:
    """Return a merged tensor as an array of the same kind as `value`, on its device."""
    if _is_torch_tensor(value):
        return tensor.torch().to(value.device)
    return tensor.data.view(_numpy_dtype(tensor.dtype, value)).reshape(tensor.shape)


def _numpy_dtype(dtype: str, value: Any) -> np.dtype[Any]:
    name = TORCH_NAMES[dtype]
    own: np.dtype[Any] = value.dtype
    if own.name == name:
        return own.newbyteorder("=")
    with suppress(TypeError):
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise RecipeError(f"dtype: NumPy has no {name}; install ml_dtypes, or give torch tensors") from error
    made: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return made


def _write_into(tensor: MergedTensor, target: Any) -> Any:
    """Write a merged tensor into an array of its dtype and shape."""
    if _is_torch_tensor(target):
        target.detach().copy_(tensor.torch())
    else:
        target[...] = tensor.data.view(_numpy_dtype(tensor.dtype, target)).reshape(tensor.shape)
    return target
