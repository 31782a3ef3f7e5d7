"""From a recipe and the headers of its checkpoints to everything that will be read and written.

Reads no weights. Problems are collected, not raised one by one, so that a user sees all of them at once.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ramerge.checkpoint import companions as companion
from ramerge.checkpoint.dtypes import FROM_FULL_NAME, INTEGERS, full_name, itemsize
from ramerge.checkpoint.hub import Model, resolve
from ramerge.checkpoint.index import Checkpoint, Tensor, open_checkpoint
from ramerge.checkpoint.write import Shard, lay_out
from ramerge.errors import CheckpointError, RecipeError
from ramerge.methods import METHODS, Method, complete
from ramerge.recipe import Document, Recipe, check, describe, parse_size, read_document, unknown

# Resident memory of the process before any buffer: Python, NumPy, numba and the compiled kernels; and what the plan
# itself takes for each tensor of each input. Measured, and held against measured peaks by the tests.
_BASELINE_BYTES = 170_000_000
_BYTES_PER_TENSOR = 2_000
_LARGEST_BLOCK = 1 << 19
_SMALLEST_BLOCK = 1 << 12
_DEFAULT_BUFFERS = 150_000_000
BUFFER_ALIGNMENT = 64
_LISTED = 40

_LAYER = re.compile(r"^(.*?\.(?:layers|layer|h|blocks|block)\.\d+)\.")
_HEAD = ("lm_head.weight", "output.weight", "embed_out.weight")
_EMBEDDING = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight", "embed_in.weight")
_PACKED = re.compile(r"\.(qweight|qzeros|g_idx|absmax|quant_map|weight_packed|SCB)$")


@dataclass(frozen=True)
class TensorPlan:
    """One tensor of the output.

    Attributes:
        base: the base's tensor.
        agents: the agents' tensors in recipe order; the base's own where an agent leaves it as it is.
        merged: whether the method computes it; else all inputs must hold the same bytes, which are copied.
        dtype: safetensors dtype of the output.
        shard: name of the output file.
        offset: byte in that file where its data begins.
        group: what the method's statistics are counted over, by the scope.
    """

    base: Tensor
    agents: tuple[Tensor, ...]
    merged: bool
    dtype: str
    shard: str
    offset: int
    group: str

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.base.name

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Base and agents."""
        return (self.base, *self.agents)

    @property
    def bytes_read(self) -> int:
        """Bytes of one read of all inputs. What an agent shares with the base is read once."""
        return self.base.nbytes + sum(agent.nbytes for agent in self.agents if agent is not self.base)

    @property
    def bytes_written(self) -> int:
        """Bytes of the output."""
        return self.base.elements * itemsize(self.dtype)

    @property
    def buffer_bytes_per_element(self) -> int:
        """What a worker holds for an element: inputs, output, and where dtypes differ a widened copy of all."""
        dtypes = [source.dtype for source in self.inputs]
        held = sum(map(itemsize, dtypes)) + itemsize(self.dtype)
        uniform = not self.merged or set(dtypes) == {self.dtype}
        return held if uniform else held + 8 * (len(dtypes) + 1)


@dataclass(frozen=True)
class Tie:
    """An output embedding that an agent stores although the base ties it: it must equal the agent's embedding."""

    agent: str
    head: Tensor
    embedding: Tensor


@dataclass(frozen=True)
class Resources:
    """How the work is cut up.

    Attributes:
        workers: threads.
        block_elements: elements that a worker holds of each input at a time.
        buffer_bytes: size of a worker's buffer.
        peak_memory_bytes: what the process will take at most, an estimate from above.
    """

    workers: int
    block_elements: int
    buffer_bytes: int
    peak_memory_bytes: int


@dataclass(frozen=True)
class Plan:
    """Everything about a merge that can be known from headers. It can be carried out if `problems` is empty.

    Sizes are in bytes. `bytes_read` counts every pass.
    """

    recipe: Recipe
    method: Method
    parameters: Any
    out: Path | None
    overwrite: bool
    base: Model
    agents: Mapping[str, Model]
    resources: Resources
    tensors: tuple[TensorPlan, ...] = ()
    shards: tuple[Shard, ...] = ()
    ties: tuple[Tie, ...] = ()
    companions: Mapping[str, Path] = field(default_factory=dict)
    passes: int = 1
    bytes_read: int = 0
    bytes_written: int = 0
    disk_free: int | None = None
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def parameters_count(self) -> int:
        """Elements of the output."""
        return sum(tensor.base.elements for tensor in self.tensors)

    @property
    def dtype(self) -> str:
        """The output's dtype by its full name, `mixed` if it has several; floating-point tensors only."""
        names = {full_name(tensor.dtype) for tensor in self.tensors if tensor.base.is_float}
        return names.pop() if len(names) == 1 else ("mixed" if names else "none")

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain values."""
        return {
            "method": self.method.name,
            "parameters": self.parameters.model_dump(),
            "base": str(self.base.directory),
            "agents": {name: str(model.directory) for name, model in self.agents.items()},
            "out": str(self.out) if self.out else None,
            "tensors": len(self.tensors),
            "merged_tensors": sum(tensor.merged for tensor in self.tensors),
            "parameters_count": self.parameters_count,
            "dtypes": dict(Counter(full_name(tensor.dtype) for tensor in self.tensors)),
            "shards": [shard.name for shard in self.shards],
            "companions": sorted(self.companions),
            "passes": self.passes,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "disk_free": self.disk_free,
            "workers": self.resources.workers,
            "block_elements": self.resources.block_elements,
            "peak_memory_bytes": self.resources.peak_memory_bytes,
            "notes": list(self.notes),
            "problems": list(self.problems),
        }


def load_recipe(source: Recipe | Mapping[str, Any] | str | Path | Document) -> Recipe:
    """A checked recipe from a file, a mapping, a document, or a recipe.

    Raises:
        RecipeError: every problem of structure, method and parameters.
    """
    if isinstance(source, Recipe):
        document, recipe, problems = source.document, source, list[str]()
        if not document.values:
            document = Document(source.model_dump())
    else:
        if isinstance(source, str | Path):
            source = read_document(Path(source))
        document = source if isinstance(source, Document) else Document(dict(source))
        checked, problems = check(document)
        recipe = checked  # type: ignore[assignment]
    problems += _method_problems(document)
    if problems:
        raise RecipeError(problems)
    return recipe


def _method_problems(document: Document) -> list[str]:
    """What is wrong with method, preset and parameters. Values of a wrong type were reported by the structure."""
    values = document.values
    name, preset, given = values.get("method"), values.get("preset"), values.get("parameters") or {}
    problems = []
    if not isinstance(name, str) or not isinstance(given, dict):
        return []
    if name not in METHODS:
        return [document.where(("method",), unknown("method", name, list(METHODS)))]
    method = METHODS[name]
    if isinstance(preset, str) and preset not in method.presets:
        problems.append(document.where(("preset",), unknown(f"preset of {name}", preset, list(method.presets))))
        preset = None
    fields = method.parameters.model_fields
    for key in given:
        if key not in fields:
            others = [other.name for other in METHODS.values() if key in other.parameters.model_fields]
            hint = f" ({key} belongs to {', '.join(others)})" if others else ""
            problems.append(
                document.where(("parameters", key), unknown(f"parameter of {name}", key, list(fields)) + hint)
            )
    kept = {key: value for key, value in given.items() if key in fields}
    try:
        method.parameters(**complete(method, preset, kept))
    except ValidationError as error:
        problems += describe(error, document, method.parameters, ("parameters",))
    agents, chosen = values.get("agents"), values.get("companions")
    if isinstance(agents, dict) and isinstance(chosen, str) and chosen not in agents and chosen != "base":
        problems.append(document.where(("companions",), unknown("agent", chosen, list(agents))))
    return problems


def make_plan(
    source: Recipe | Mapping[str, Any] | str | Path | Document,
    out: Path | None = None,
    *,
    threads: int | None = None,
    max_memory: int | str | None = None,
    overwrite: bool = False,
) -> Plan:
    """Plan a merge; `problems` of the result says what would make it fail.

    Args:
        source: a recipe, in any form that `load_recipe` takes.
        out: the output folder, if it is known.
        threads: worker threads; by default as many as the machine has processors, and two more that wait for disks.
        max_memory: bytes, or a size such as `2GB`, that the process must not exceed.
        overwrite: whether an existing checkpoint at `out` is to be replaced.

    Raises:
        RecipeError: the recipe itself is wrong.
    """
    recipe = load_recipe(source)
    budget = _budget(max_memory)
    method = METHODS[recipe.method]
    parameters = method.parameters(**complete(method, recipe.preset, recipe.parameters))
    problems: list[str] = []
    models = dict(_resolve_all(recipe, problems))
    base_model = models.pop("", Model(recipe.base, recipe.folder / recipe.base))
    draft = Plan(recipe, method, parameters, out, overwrite, base_model, models, Resources(1, _SMALLEST_BLOCK, 0, 0))
    opened = _open_all(draft, problems)
    if out is not None:
        problems += _out_problems(out, overwrite, [base_model, *models.values()])
    if opened is not None:
        draft = _plan_tensors(draft, *opened, problems)
    resources = _cut(draft, threads, budget, problems)
    free = _disk_free(out) if out is not None else None
    if free is not None and draft.bytes_written > free:
        problems.append(f"{out}: needs {draft.bytes_written:,} bytes of disk, {free:,} are free")
    return replace(draft, resources=resources, disk_free=free, problems=tuple(dict.fromkeys(problems)))


def _resolve_all(recipe: Recipe, problems: list[str]) -> Iterator[tuple[str, Model]]:
    """The base under the name "", and the agents under theirs."""
    written = {"": recipe.base, **{name: agent.model for name, agent in recipe.agents.items()}}
    for name, text in written.items():
        try:
            yield name, resolve(text, recipe.folder)
        except CheckpointError as error:
            problems += _located(recipe, name, error)


def _located(recipe: Recipe, name: str, error: CheckpointError) -> list[str]:
    key = ("agents", name) if name else ("base",)
    return [recipe.document.where(key, problem) for problem in error.problems]


def _open_all(plan: Plan, problems: list[str]) -> tuple[Checkpoint, dict[str, Checkpoint]] | None:
    """Base and agents, if all can be opened; problems of all of them otherwise."""
    opened = {}
    for name, model in {"": plan.base, **plan.agents}.items():
        try:
            checkpoint = open_checkpoint(model.directory, allow_outside_links=plan.recipe.allow.outside_links)
        except CheckpointError as error:
            problems += _located(plan.recipe, name, error)
            continue
        problems += [
            plan.recipe.document.where(("agents", name) if name else ("base",), text)
            for text in _unsupported(checkpoint, plan.recipe)
        ]
        opened[name] = checkpoint
    home = plan.base.directory.resolve()
    for name, model in plan.agents.items():
        if model.directory.resolve() == home:
            where = plan.recipe.document.where
            problems.append(where(("agents", name), f"{model.directory} is the base itself, so it has no task vector"))
    if len(opened) != 1 + len(plan.recipe.agents):
        return None
    return opened.pop(""), opened


def _unsupported(checkpoint: Checkpoint, recipe: Recipe) -> list[str]:
    """Quantised weights and dtypes without arithmetic."""
    directory = checkpoint.directory
    method = companion.quantisation(checkpoint.config)
    packed = sorted({match[1] for name in checkpoint.tensors if (match := _PACKED.search(name))})
    dtypes = Counter(
        tensor.dtype for tensor in checkpoint.tensors.values() if not tensor.is_float and tensor.dtype not in INTEGERS
    )
    advice = "merge the unquantised checkpoints and quantise the result"
    problems = []
    if (method or packed) and "quantization_config" not in recipe.allow.config:
        what = method or f"tensors named {', '.join(packed)}"
        problems.append(f"{directory}: quantised weights ({what}) cannot be merged; {advice}")
    for dtype, count in sorted(dtypes.items()):
        eight = "float8, whose scales merging would ignore" if dtype.startswith("F8") else "not a type of weights"
        problems.append(f"{directory}: {count} tensors of dtype {dtype} ({eight}); convert to bfloat16, or {advice}")
    return problems


# --- tensors ---------------------------------------------------------------------------------------------------------


def _plan_tensors(plan: Plan, base: Checkpoint, agents: dict[str, Checkpoint], problems: list[str]) -> Plan:
    recipe, notes = plan.recipe, list[str]()
    ties: list[Tie] = []
    sources = {name: _match(name, base, agent, recipe, problems, notes, ties) for name, agent in agents.items()}
    _compare_configs(recipe, base, agents, problems, notes)
    shards, dtypes = _layout(base, recipe)
    tensors = [
        TensorPlan(
            base=base.tensors[name],
            agents=tuple(sources[agent][name] for agent in agents),
            merged=base.tensors[name].is_float,
            dtype=dtypes[name],
            shard=shard.name,
            offset=offset,
            group=_group(name, plan.parameters.counted_over),
        )
        for shard in shards
        for name, offset in shard.offsets.items()
    ]
    resident = base.resident_bytes + sum(agent.resident_bytes for agent in agents.values())
    if resident:
        notes.append(f"{resident:,} bytes of old pickles are held in memory; safetensors would be streamed")
    passes = 2 if plan.method.needs_counts else 1
    tied = sum(tie.head.nbytes + tie.embedding.nbytes for tie in ties)
    return replace(
        plan,
        tensors=tuple(tensors),
        shards=tuple(shards),
        ties=tuple(ties),
        companions=_companions(plan, problems),
        passes=passes,
        bytes_read=tied + sum(tensor.bytes_read * (passes if tensor.merged else 1) for tensor in tensors),
        bytes_written=sum(shard.file_bytes for shard in shards),
        resources=replace(plan.resources, peak_memory_bytes=resident),
        notes=tuple(notes),
    )


def _match(
    name: str,
    base: Checkpoint,
    agent: Checkpoint,
    recipe: Recipe,
    problems: list[str],
    notes: list[str],
    ties: list[Tie],
) -> dict[str, Tensor]:
    """For every tensor of the base, what the agent has in its place: the base's own where it leaves it as it is."""
    where = ("agents", name)
    found = dict(agent.tensors)
    missing = [tensor for tensor in base.tensors.values() if tensor.name not in found]
    for tensor in list(missing):
        alias = _embedding_of(agent, tensor) if agent.config.get("tie_word_embeddings") else None
        if alias is not None:
            found[tensor.name] = alias
            missing.remove(tensor)
            notes.append(f"{name}: {tensor.name!r} is tied to {alias.name!r}, which is used for it")
    extra = [tensor for tensor in agent.tensors.values() if tensor.name not in base.tensors]
    for tensor in list(extra):
        embedding = _embedding_of(agent, tensor)
        if embedding is not None:
            extra.remove(tensor)
            ties.append(Tie(name, tensor, embedding))
            notes.append(
                f"{name}: {tensor.name!r} must equal {embedding.name!r}, to which the base ties it, and is dropped"
            )
    for allowed, tensors, what, policy in (
        (recipe.allow.missing_tensors, missing, "lacks", "missing_tensors: true keeps the base's"),
        (recipe.allow.extra_tensors, extra, "has tensors unknown to the base:", "extra_tensors: true drops them"),
    ):
        if tensors and allowed:
            notes.append(f"{name}: {what} {len(tensors)} tensors ({policy})")
        elif tensors:
            text = f"{agent.directory}: {what} {_listed(tensors)} (allow.{policy})"
            problems.append(recipe.document.where(where, text))
    shapes, dtypes = [], []
    for tensor in base.tensors.values():
        other = found.setdefault(tensor.name, tensor)
        if other.shape != tensor.shape:
            shapes.append(f"{tensor.name!r}: {_shape_difference(tensor, other)}")
            found[tensor.name] = tensor
        elif other.is_float != tensor.is_float or (not tensor.is_float and other.dtype != tensor.dtype):
            dtypes.append(f"{tensor.name!r}: the base has {tensor.dtype}, the agent {other.dtype}")
    if shapes and recipe.allow.different_shapes:
        notes.append(f"{name}: {len(shapes)} tensors of another shape (different_shapes: true keeps the base's)")
    elif shapes:
        text = f"{agent.directory}: shapes differ: {_cut_list(shapes)} (allow.different_shapes: true keeps the base's)"
        problems.append(recipe.document.where(where, text))
    if dtypes:
        problems.append(recipe.document.where(where, f"{agent.directory}: dtypes do not fit: {_cut_list(dtypes)}"))
    return {tensor: found[tensor] for tensor in base.tensors}


def _embedding_of(agent: Checkpoint, head: Tensor) -> Tensor | None:
    """The input embedding that an output embedding of this name and shape would be tied to."""
    if not head.name.endswith(_HEAD):
        return None
    candidates = [tensor for tensor in agent.tensors.values() if tensor.name.endswith(_EMBEDDING)]
    return next((tensor for tensor in candidates if tensor.shape == head.shape), None)


def _listed(tensors: Sequence[Tensor]) -> str:
    return _cut_list([f"{tensor.name!r} {list(tensor.shape)}" for tensor in tensors])


def _cut_list(items: Sequence[str]) -> str:
    more = f", and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return ", ".join(items[:_LISTED]) + more


def _shape_difference(base: Tensor, agent: Tensor) -> str:
    text = f"the base has {list(base.shape)}, the agent {list(agent.shape)}"
    if base.name.endswith(_HEAD + _EMBEDDING) and base.shape[1:] == agent.shape[1:]:
        rows = agent.shape[0] - base.shape[0]
        text += f", {abs(rows):,} rows of vocabulary {'more' if rows > 0 else 'fewer'}"
    return text


def _group(name: str, scope: str) -> str:
    if scope == "model":
        return ""
    layer = _LAYER.match(name) if scope == "layer" else None
    return layer[1] if layer else name


def _layout(base: Checkpoint, recipe: Recipe) -> tuple[list[Shard], dict[str, str]]:
    """Output shards as the base's or of the size asked for, and each tensor's output dtype."""
    wanted = FROM_FULL_NAME[recipe.dtype] if recipe.dtype else None
    dtypes = {name: wanted if wanted and tensor.is_float else tensor.dtype for name, tensor in base.tensors.items()}

    def entry(name: str) -> tuple[str, str, Sequence[int], int]:
        tensor = base.tensors[name]
        return name, dtypes[name], tensor.shape, tensor.elements * itemsize(dtypes[name])

    groups = {_safetensors_name(shard): [entry(name) for name in names] for shard, names in base.shards.items()}
    if recipe.shard_size is not None:
        groups = _regroup([entry for group in groups.values() for entry in group], recipe.shard_size)
    return [lay_out(name, entries) for name, entries in groups.items()], dtypes


def _regroup(
    entries: Sequence[tuple[str, str, Sequence[int], int]], limit: int
) -> dict[str, list[tuple[str, str, Sequence[int], int]]]:
    """Shards of at most `limit` bytes of data each; a larger tensor gets one of its own."""
    groups: list[list[tuple[str, str, Sequence[int], int]]] = [[]]
    room = limit
    for entry in entries:
        if groups[-1] and entry[3] > room:
            groups.append([])
            room = limit
        groups[-1].append(entry)
        room -= entry[3]
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {f"model-{place:05}-of-{len(groups):05}.safetensors": group for place, group in enumerate(groups, 1)}


def _safetensors_name(shard: str) -> str:
    """Name of an output file: the base's, or its counterpart in safetensors."""
    if not shard.endswith(".bin"):
        return shard
    return shard.replace("pytorch_model", "model").removesuffix(".bin") + ".safetensors"


# --- everything else -------------------------------------------------------------------------------------------------


def _compare_configs(
    recipe: Recipe, base: Checkpoint, agents: Mapping[str, Checkpoint], problems: list[str], notes: list[str]
) -> None:
    if not base.config:
        notes.append(f"{base.directory}: has no config.json, so the output will not load by itself")
        return
    for name, agent in agents.items():
        if not agent.config:
            notes.append(f"{name}: has no config.json to compare with the base's")
            continue
        serious, harmless = companion.compare_configs(base.config, agent.config)
        allowed = {key for key in serious if any(key == k or key.startswith(f"{k}.") for k in recipe.allow.config)}
        refused = [f"{key}: {text}" for key, text in serious.items() if key not in allowed]
        if refused:
            text = (
                f"{agent.directory}/config.json differs from the base's in what the weights mean: "
                f"{'; '.join(refused)} (allow.config: [{', '.join(serious.keys() - allowed)}] accepts it)"
            )
            problems.append(recipe.document.where(("agents", name), text))
        shown = [f"{key}: {text}" for key, text in {**harmless, **{k: serious[k] for k in allowed}}.items()]
        if shown:
            notes.append(f"{name}: config.json differs, which is accepted: {'; '.join(shown)}")


def _companions(plan: Plan, problems: list[str]) -> dict[str, Path]:
    chosen = plan.recipe.companions
    source = plan.agents[chosen].directory if chosen and chosen in plan.agents else None
    try:
        return companion.companion_files(
            plan.base.directory, source, allow_outside_links=plan.recipe.allow.outside_links
        )
    except CheckpointError as error:
        problems += error.problems
        return {}


def _out_problems(out: Path, overwrite: bool, models: Sequence[Model]) -> list[str]:
    place = out.resolve()
    problems = []
    for directory in dict.fromkeys(model.directory.resolve() for model in models):
        if place == directory:
            problems.append(f"{out}: is one of the inputs; choose another folder")
        elif place.is_relative_to(directory):
            problems.append(f"{out}: is inside the input {directory}; choose a folder outside of it")
        elif directory.is_relative_to(place):
            problems.append(f"{out}: holds the input {directory}; choose another folder")
    if os.path.lexists(out):
        if not out.is_dir():
            problems.append(f"{out}: is a file; choose a folder")
        elif not overwrite:
            problems.append(f"{out}: exists; choose another folder or pass --overwrite")
        elif any(out.iterdir()) and not _is_checkpoint(out):
            problems.append(f"{out}: is not a checkpoint, so --overwrite does not replace it; remove it yourself")
    ancestor = _existing_ancestor(place)
    if not ancestor.is_dir():
        problems.append(f"{out}: {ancestor} is a file")
    elif not os.access(ancestor, os.W_OK | os.X_OK):
        problems.append(f"{out}: no right to write in {ancestor}")
    return problems


def _is_checkpoint(folder: Path) -> bool:
    return any(folder.glob("*.safetensors")) or (folder / "ramerge.json").exists()


def _existing_ancestor(place: Path) -> Path:
    return next(folder for folder in (place.parent, *place.parent.parents) if folder.exists())


def _disk_free(out: Path) -> int:
    return shutil.disk_usage(_existing_ancestor(out.resolve())).free


def _budget(max_memory: int | str | None) -> int | None:
    try:
        return parse_size(max_memory) if max_memory is not None else None
    except ValueError as error:
        raise RecipeError(f"--max-memory: {error}") from error


def _cut(plan: Plan, threads: int | None, wanted: int | None, problems: list[str]) -> Resources:
    """The largest blocks, then the most workers, that fit the budget.

    Without a budget, blocks shrink before memory exceeds what a laptop would not notice.
    """
    resident = plan.resources.peak_memory_bytes
    fixed = _BASELINE_BYTES + resident + _BYTES_PER_TENSOR * len(plan.tensors) * (2 + len(plan.agents))
    per_element = max((tensor.buffer_bytes_per_element for tensor in plan.tensors), default=1)
    slack = BUFFER_ALIGNMENT * (2 * len(plan.agents) + 6)
    budget = wanted or fixed + _DEFAULT_BUFFERS
    workers = threads or len(os.sched_getaffinity(0)) + 2

    def resources(workers: int, block: int) -> Resources:
        buffer = block * per_element + slack
        return Resources(workers, block, buffer, fixed + workers * buffer)

    block = _LARGEST_BLOCK
    while block > _SMALLEST_BLOCK and resources(workers, block).peak_memory_bytes > budget:
        block //= 2
    while workers > 1 and resources(workers, block).peak_memory_bytes > budget:
        workers -= 1
    cut = resources(workers, block)
    if wanted and cut.peak_memory_bytes > budget:
        problems.append(f"--max-memory {_readable(wanted)}: at least {_readable(cut.peak_memory_bytes)} are needed")
    return cut


def _readable(size: int) -> str:
    """Rounded up, so that a budget copied from a message is enough."""
    return f"{-(-size // 1_000_000)}MB"
