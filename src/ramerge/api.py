"""The functions that users call: `plan`, `merge`, `sweep`, `convert` and `clean`; `analyze` is in `analysis`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

from ramerge.core.engine.execute import execute
from ramerge.core.engine.executors import chosen_executor
from ramerge.core.engine.fingerprint import stopped_at, would_resume
from ramerge.core.engine.gathered_from import notes_of
from ramerge.core.engine.outputs import CHECKPOINT, OutputKind, output_kind
from ramerge.core.engine.record import Record
from ramerge.core.engine.sinks import MergedTensor
from ramerge.core.engine.stream import TensorStream
from ramerge.core.foundation.errors import PlanError, RecipeError
from ramerge.core.foundation.progress import Listener, silence
from ramerge.core.foundation.settings import check_options
from ramerge.core.foundation.text import Displayed, enumerated, quoted
from ramerge.core.methods.registry import METHODS
from ramerge.core.options import Options, in_python
from ramerge.core.output.lifecycle import clean_up_interrupted, output_dir, tidy
from ramerge.core.output.targets import OutputTarget, output_target
from ramerge.core.planning.build import make_plan
from ramerge.core.planning.explain import explain, forecast, values_of
from ramerge.core.planning.inputs import missing_folders, open_recipe
from ramerge.core.planning.model import MergePlan as MergePlan
from ramerge.core.planning.rounds import without_cache
from ramerge.core.recipe.checks import check, check_conversion, check_unchosen
from ramerge.core.recipe.document import Document, document_of
from ramerge.core.recipe.model import AUTO, Recipe
from ramerge.core.recipe.paths import reads_of
from ramerge.core.recipe.points import Point, check_variation, make_points
from ramerge.core.recipe.read import AnyRecipe
from ramerge.core.registry import FEATURES

_DEFAULTS = Options()
_LOG = logging.getLogger("ramerge")


# --- plans ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class _PlanBase(Displayed):
    """Members that a plan for one merge and a plan for a sweep share."""

    details: MergePlan
    kind: OutputKind
    options: Options

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems that would make the merge fail."""
        return tuple(map(in_python, self.details.findings.problems))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings: the merge is possible, but probably not what you want."""
        return self.details.findings.warnings

    @property
    def forecast(self) -> tuple[str, ...]:
        """Further warnings, from headers, about what the merge will count."""
        return forecast(self.details)

    @property
    def notes(self) -> tuple[str, ...]:
        """Further information, such as how many tensors each rule matches."""
        return self.details.findings.notes

    @property
    def recipe(self) -> Recipe:
        """The checked recipe; for a sweep, the first point's."""
        return self.details.recipe

    @property
    def out(self) -> OutputTarget | None:
        """The output, if the plan has one."""
        return self.details.output.target

    @property
    def bytes_read(self) -> int:
        """Bytes of weights that all passes together will read."""
        return self.details.bytes_read

    @property
    def bytes_written(self) -> int:
        """Bytes of the output's safetensors files."""
        return self.details.bytes_written

    @property
    def peak_memory_bytes(self) -> int:
        """An upper estimate of the process's memory."""
        return self.details.resources.peak_memory_bytes

    def _summary(self) -> Mapping[str, object]:
        return {
            "method": self.details.method.name,
            "agents": enumerated(list(self.details.inputs.agents)),
            "out": self.out,
            "dtype": self.details.dtype,
            "points": len(self.details.points),
            "problems": len(self.problems),
            "warnings": len(self.warnings) + len(self.forecast),
        }

    def _rows(self) -> Sequence[Mapping[str, object]]:
        models = {"base": self.recipe.base, **{name: agent.model for name, agent in self.recipe.agents.items()}}
        dtypes = self.details.input_dtypes
        return [{"model": name, "place": place, "dtype": dtypes.get(name, "")} for name, place in models.items()]

    def explain(self) -> str:
        """Return the plan as text: inputs, output, reads, memory, notes."""
        return "\n".join(explain(self.details))

    def to_dict(self) -> dict[str, object]:
        """Return the plan as plain values."""
        return values_of(self.details)

    def tensors(self, *, on_progress: Listener | None = None) -> TensorStream:
        """Merge, and yield the tensors one after another; nothing is written.

        For a sweep, each tensor comes once for each point, in the points' order, before the next tensor.

        Args:
            on_progress: called from the loop over the tensors.

        Raises:
            PlanError: the plan has problems, or the memory does not hold two whole tensors.
            RecipeError: the options ask for a Ray cluster; tensors come from this process only.

        The loop itself raises `WeightsError` and `CheckpointError` as `merge` does; with `strict`, some of these errors
        come after the last tensor.

        Example:
            >>> for tensor in ramerge.plan("recipe.yaml").tensors():
            ...     assert tensor.numpy().shape == tensor.shape
        """
        if self.options.ray is not None:
            raise RecipeError("ray: tensors come one after another from this process only; leave out `ray`")
        plan_in_memory = _make_plan(self.details.points, None, self.kind, self.options, in_memory=True)
        if plan_in_memory.findings.problems:
            raise PlanError(plan_in_memory.findings.problems)

        def work(take: Callable[[MergedTensor], None], listen: Listener) -> tuple[Record, ...]:
            return _run_plan(plan_in_memory, self.options, listen, take)

        return TensorStream(work, on_progress or silence)

    def _plan_with_output(self, out: str | Path | None) -> MergePlan:
        """Return the plan with an output: with `out`, or by default its own."""
        merge_plan = self.details
        if out is not None:
            merge_plan = _make_plan(merge_plan.points, out, self.kind, self.options)
        if merge_plan.output.target is None:
            raise RecipeError("no output folder: give one to `plan` or to `merge`")
        return merge_plan


@dataclass(frozen=True, repr=False)
class Plan(_PlanBase):
    """Plan of a merge: what it reads, writes and needs, from headers only; made by `ramerge.plan`.

    Attributes:
        details: tensors, files, reads and resources; unstable.
        kind: the kind of output.
        options: how the merge will be carried out.

    Example:
        >>> plan = ramerge.plan("recipe.yaml", options=ramerge.Options(threads=1))
        >>> print(plan.explain())
        method ...
        ready to merge; the merge checks the weights
        >>> plan.merge("merged").agents["code"].density > 0
        True
    """

    def merge(self, out: str | Path | None = None, *, on_progress: Listener | None = None) -> Record:
        """Carry the plan out.

        Args:
            out: the output, as for `plan`; by default the plan's own.
            on_progress: called from this thread with a `Progress` after every block.

        Raises:
            RamergeError: as for `ramerge.merge`.
        """
        return _run_plan(self._plan_with_output(out), self.options, on_progress or silence)[0]


@dataclass(frozen=True, repr=False)
class SweepPlan(_PlanBase):
    """Plan of a sweep: what it reads, writes and needs; made by `ramerge.plan(..., vary=...)`.

    Attributes:
        details: tensors, files, reads and resources; unstable.
        kind: checkpoints.
        options: how the sweep will be carried out.

    Example:
        >>> plan = ramerge.plan("recipe.yaml", vary={"parameters.r": [0, 0.1]})
        >>> [record.point["parameters.r"] for record in plan.merge("swept")]
        [0, 0.1]
    """

    def merge(self, out: str | Path | None = None, *, on_progress: Listener | None = None) -> tuple[Record, ...]:
        """Carry the plan out; return a record for each point, in order.

        Args:
            out, on_progress: as for `Plan.merge`.

        Raises:
            RamergeError: as for `ramerge.sweep`.
        """
        return _run_plan(self._plan_with_output(out), self.options, on_progress or silence)


@overload
def plan(
    recipe: AnyRecipe,
    out: str | Path | None = None,
    *,
    vary: None = None,
    kind: str | OutputKind = CHECKPOINT,
    options: Options = _DEFAULTS,
    on_progress: Listener | None = None,
) -> Plan: ...
@overload
def plan(
    recipe: AnyRecipe,
    out: str | Path | None = None,
    *,
    vary: Mapping[str, Sequence[object]],
    options: Options = _DEFAULTS,
    on_progress: Listener | None = None,
) -> SweepPlan: ...
def plan(
    recipe: AnyRecipe,
    out: str | Path | None = None,
    *,
    vary: Mapping[str, Sequence[object]] | None = None,
    kind: str | OutputKind = CHECKPOINT,
    options: Options = _DEFAULTS,
    on_progress: Listener | None = None,
) -> Plan | SweepPlan:
    """Plan a merge (with `vary`: a sweep): what it would read, write and need. Reads headers only, with two exceptions.

    The method `auto` is replaced by the method that `recommend` chooses with the recipe's prompts, which reads weights.
    If the recipe has prompts and its method needs side inputs, these are gathered first (`gather`).

    Args:
        recipe: a `Recipe`, a mapping, or the path of a YAML file, in ramerge's or mergekit's form.
        out: the output folder, also in a bucket (`s3://bucket/model`, `gs://`, `az://`), or a repository of the hub
            (`hub:owner/name`, `hub:owner/name@branch`). If given, the plan checks it and the free space of its
            disk.
        vary: keys to values, such as `{"parameters.r": [0, 0.1]}`, for a sweep; the last key varies fastest.
        kind: the kind of output: `checkpoint`, `delta` (on the base; `apply` turns it into a checkpoint),
            `adapter` (of PEFT), the name of a plug-in's kind, or a kind with settings, such as `AsAdapter(rank=8)`.
        options: how the merge will be carried out.
        on_progress: called with a `Progress` while weights are read for `auto`, or prompts are used.

    Returns:
        The plan. Its `problems` list what would make the merge fail. `plan.merge(out)` carries it out, and
        `plan.tensors()` merges without writing anything.

    Raises:
        RecipeError: the recipe is wrong; all its problems are listed.

    Example:
        >>> plan = ramerge.plan("recipe.yaml", "merged")
        >>> plan.problems
        ()
    """
    check_options(options)
    document = open_recipe(recipe, options)
    written_as = output_kind(kind)
    is_chosen = document.method == AUTO
    if is_chosen or document.stated("prompts"):  # other problems show before agents generate
        if is_chosen:
            check_unchosen(document)
            check_variation(vary or {})
        else:
            _located_points(document, vary)
        place = _output_target(out, options)
        output = output_dir(place) if place is not None else None
        read = reads_of(document)
        if output and not output.sends and (problems := output.problems(read, 0, overwrite=options.overwrite)):
            raise PlanError(problems)
    if is_chosen:
        document = replace_auto_method(document, options, on_progress)
    # where they have chosen a method that takes nothing of them, they stay in its recipe: `handoff` reads them
    if document.stated("prompts") and not (is_chosen and METHODS[str(document.method)].side is None):
        document = replace_prompts_by_side_inputs(document, options, on_progress)
    merge_plan = _make_plan(_located_points(document, vary), out, written_as, options)
    return (SweepPlan if merge_plan.is_sweep else Plan)(merge_plan, written_as, options)


def _located_points(document: Document, vary: Mapping[str, Sequence[object]] | None) -> Sequence[Point]:
    try:
        return make_points(document, vary)
    except RecipeError as error:
        raise RecipeError([*error.messages, *missing_folders(document)]) from error


def _output_target(out: str | Path | None, options: Options) -> OutputTarget | None:
    return output_target(out, options.upload.staging_dir, public=options.upload.public) if out is not None else None


def replace_auto_method(document: Document, options: Options, on_progress: Listener | None = None) -> Document:
    """Replace `auto` in a recipe by the method and parameters recommended on its prompts, with notes and warnings."""
    check_unchosen(document)
    advice = FEATURES["recommend"](document, options=options, on_progress=on_progress)
    rounding = None if document.stated("rounding") else advice.rounding
    values = {"method": advice.method, "parameters": advice.parameters or None, "rounding": rounding}
    method_text = " ".join([advice.method, *(f"{name}={value}" for name, value in advice.parameters.items())])
    note = f"auto: {method_text}, because {'; '.join(filter(None, (*advice.why, advice.rounding_loss)))}"
    new_document = document.with_values(values, "auto: ")
    new_document.notes.append(note)
    new_document.warnings += advice.notes
    return new_document


def replace_prompts_by_side_inputs(
    document: Document, options: Options, on_progress: Listener | None = None
) -> Document:
    """Replace a recipe's prompts by side inputs gathered on them, if its method takes any; else drop the prompts."""
    rest = document.without("prompts")
    name = str(document.method)
    if name not in METHODS:
        return rest
    side = METHODS[name].side
    if side is None:
        note = f"prompts: {name} does not use them; `ramerge search` chooses a merge with them"
        rest.notes.append(note)
        return rest
    new_document = document.with_values({})  # prompts stay: another machine can then merge the output's recipe
    folders = FEATURES["gather"](document, side.key, options=options, on_progress=on_progress)
    for agent, folder in folders.items():
        new_document.set(("agents", agent, side.key), str(folder), f"--prompts {agent}")
        new_document.notes.append(f"prompts: {side.plural} of {agent} are kept in {folder}")
        new_document.warnings += notes_of(folder)
    own = [agent for agent in document.prompts if ("agents", agent, side.key) not in new_document.flags]
    new_document.notes += [f"prompts of {agent} are not used: the recipe has its {side.plural}" for agent in own]
    return new_document


def _make_plan(
    points: Sequence[Point], out: str | Path | None, kind: OutputKind, options: Options, *, in_memory: bool = False
) -> MergePlan:
    place = _output_target(out, options)
    merge_plan = make_plan(points, place, options, in_memory=in_memory, kind=kind)
    _LOG.debug("plan: %s, %d problems", merge_plan.method.name, len(merge_plan.findings.problems))
    for name, form in merge_plan.inputs.formats.items():
        _LOG.debug("input %s: %s", name, form)
    interrupted_fingerprint = stopped_at(place) if merge_plan.counts.cached and place is not None else {}
    # an interrupted run may have begun before these counts were cached: it is resumed with counts of its own
    before = without_cache(merge_plan) if interrupted_fingerprint else merge_plan
    return before if interrupted_fingerprint and would_resume(before, interrupted_fingerprint) else merge_plan


def _run_plan(
    merge_plan: MergePlan, options: Options, listen: Listener, on_tensor: Callable[[MergedTensor], None] | None = None
) -> tuple[Record, ...]:
    if merge_plan.findings.problems:
        tidy(merge_plan.output.target)
        raise PlanError(merge_plan.findings.problems)
    _LOG.debug(
        "%s: %d passes, %d threads, blocks of %d elements",
        merge_plan.method.name,
        merge_plan.passes,
        merge_plan.resources.workers,
        merge_plan.resources.block_elements,
    )
    with chosen_executor(options.ray, merge_plan.resources.workers, merge_plan.resources.memory_of) as executor:
        return execute(merge_plan, executor, listen, on_tensor, fresh=options.fresh)


def merge_into(
    consume: Callable[[MergedTensor], None],
    document: Document,
    options: Options,
    extra_problems: Callable[[MergePlan], Sequence[str]],
) -> Record:
    """Merge, and pass each tensor to a function, in the order of the output; nothing is written.

    Args:
        consume: the function, which is called from this thread.
        extra_problems: returns further problems of the plan.
    """
    merge_plan = _make_plan(
        make_points(document), None, output_kind(CHECKPOINT), replace(options, cache=False), in_memory=True
    )
    findings = replace(merge_plan.findings, problems=(*merge_plan.findings.problems, *extra_problems(merge_plan)))
    return _run_plan(replace(merge_plan, findings=findings), options, silence, consume)[0]


# --- functions --------------------------------------------------------------------------------------------------------


def read_recipe(recipe: AnyRecipe) -> Recipe:
    """Read and check a recipe, in ramerge's or mergekit's form.

    Args:
        recipe: the path of a YAML file, or a mapping.

    Raises:
        RecipeError: the recipe cannot be read or is wrong; all problems are listed.

    Example:
        >>> recipe = ramerge.read_recipe("recipe.yaml").with_(method="ties", parameters={"density": 0.3})
        >>> recipe.method
        'ties'
    """
    return check(open_recipe(recipe))


def merge(
    recipe: AnyRecipe,
    out: str | Path,
    *,
    kind: str | OutputKind = CHECKPOINT,
    options: Options = _DEFAULTS,
    on_progress: Listener | None = None,
) -> Record:
    """Merge a recipe's agents into a checkpoint at `out`, which appears complete or not at all.

    Args:
        recipe: as for `plan`.
        out: the output, as for `plan`; it must not exist unless `options.overwrite` is set.
        kind: as for `plan`.
        options: how the merge is carried out.
        on_progress: called from this thread with a `Progress` after every block.

    Returns:
        The record, which is also `out/ramerge.json`.

    Raises:
        RecipeError: the recipe is wrong.
        PlanError: the inputs do not fit each other, the output or the machine. All problems are listed, before weights
            are read.
        WeightsError: NaN, Inf or overflow, or integer tensors that differ; all such tensors are listed. If `strict`,
            also warnings.
        CheckpointError: an input cannot be read.
        OutputError: the disk is full or fails.
        RayError: a Ray cluster cannot be reached, or cannot do the work.

    Example:
        >>> recipe = {"base": "base", "agents": {"code": "coder", "tool": "tool"}}
        >>> record = ramerge.merge(recipe, "merged")
        >>> record.method
        'ram+'
    """
    merge_plan = plan(recipe, out, kind=kind, options=options, on_progress=on_progress)
    return _run_plan(merge_plan._plan_with_output(None), options, on_progress or silence)[0]


def sweep(
    recipe: AnyRecipe,
    out: str | Path,
    *,
    vary: Mapping[str, Sequence[object]],
    options: Options = _DEFAULTS,
    on_progress: Listener | None = None,
) -> tuple[Record, ...]:
    """Merge with every combination of parameters. Each pass reads the inputs once for all combinations.

    Args:
        recipe: as for `plan`.
        out: a folder that gets one checkpoint for each point, named by its varied parameters, and `sweep.json`; or a
            remote output as for `plan`.
        vary: keys to values, such as `{"parameters.r": [0, 0.1]}`; the last key varies fastest.
        options, on_progress: as for `merge`.

    Returns:
        A record for each point, in order; `record.point` holds its varied parameters.

    Raises:
        RecipeError: the recipe or `vary` is wrong.
        PlanError, WeightsError, CheckpointError, OutputError, RayError: as for `merge`.

    Example:
        >>> records = ramerge.sweep("recipe.yaml", "swept", vary={"parameters.r": [0, 0.1]})
        >>> [record.point["parameters.r"] for record in records]
        [0, 0.1]
    """
    check_options(options)
    if not vary:
        raise RecipeError("nothing varies: give keys and values, such as parameters.r=0,0.1,0.2")
    return plan(recipe, out, vary=vary, options=options, on_progress=on_progress).merge(on_progress=on_progress)


def convert(
    model: str | Path,
    out: str | Path,
    *,
    base: str | Path | None = None,
    dtype: str | None = None,
    values: Mapping[str, object] | None = None,
    options: Options = _DEFAULTS,
    on_progress: Listener | None = None,
) -> Record:
    """Write a model in any format as plain safetensors, block by block.

    Args:
        model: a folder or hub id: FSDP shards, torch.distributed checkpoints, an adapter, quantized weights and so on.
        out: the output, as for `merge`.
        base: the model that an adapter changes. For other models, it determines names, dtypes and layout of the output.
        dtype: dtype of the output, such as `bfloat16`; by default, the dtypes of `base`, or without a base those of the
            model itself: for a quantized model the dtype in `config.json`, for an adapted tensor that of the model
                below.
        values: other keys of a recipe, such as `{"rounding": "stochastic", "shard_size": "5GB"}`, `rename`, or
            `{"allow.extra_tensors": True}`.
        options, on_progress: as for `merge`.

    Returns:
        The record, which is also `out/ramerge.json`.

    Raises:
        RecipeError, PlanError, WeightsError, CheckpointError, OutputError, RayError: as for `merge`.

    Example:
        >>> ramerge.convert("coder", "converted", dtype="float32").dtype
        'float32'
    """
    if not isinstance(values, Mapping | None):
        raise RecipeError(f"values: must be a mapping of keys of a recipe, not {quoted(values)}")
    check_conversion(values or (), "values: ", has_base=base is not None)
    if dtype is not None and "dtype" in (values or ()):
        raise RecipeError("dtype: is given twice, also in values; leave one out")
    changes = {"base": str(base) if base is not None else None, "dtype": dtype, **(values or {})}
    document = document_of(str(model), "model").with_values(changes)
    return merge(document, out, options=options, on_progress=on_progress)


def clean(out: str | Path, *, staging_dir: str | Path | None = None) -> list[str]:
    """Remove what interrupted runs have left alongside an output, and restore an old output that they had moved.

    Args:
        out: the output folder of those runs. It is not changed. In a remote output, an incomplete model is
            removed.
        staging_dir: as for `Upload`.

    Returns:
        What was done, human-readable; empty if nothing was there.

    Raises:
        OutputError: a process is writing to `out`, or leftovers cannot be removed.

    Example:
        >>> ramerge.clean("merged")
        []
    """
    folder = output_target(out, staging_dir)
    if not folder.name:
        raise RecipeError(
            f"{os.fspath(out)!r}: cannot be an output folder; name the folder that the stopped runs wrote"
        )
    return clean_up_interrupted(folder)
