"""The functions that users call: `delta` and `apply`."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

from ramerge import Options, PlanError, RecipeError
from ramerge.core.engine.outputs import open_output
from ramerge.core.foundation.dtypes import full_name, widest
from ramerge.core.foundation.settings import ResourceLimits, too_little
from ramerge.core.foundation.text import without_secrets
from ramerge.core.output.lifecycle import output_dir, tidy
from ramerge.core.output.targets import OutputTarget, output_target
from ramerge.core.planning.inputs import open_models
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.reader import threads_for
from ramerge.deltas.codec import Compression
from ramerge.deltas.index import Index, size_of
from ramerge.deltas.make import plan_delta, write_delta
from ramerge.deltas.rebuild import memory_of, write_agent
from ramerge.deltas.record import DeltaRecord, card
from ramerge.deltas.spool import spool_of
from ramerge.sdk.options import check_options, read_limits
from ramerge.sdk.outputs import build_output
from ramerge.sdk.passes import chosen_executor
from ramerge.sdk.plans import OpenedInputs
from ramerge.sdk.progress import Listener, silence
from ramerge.sdk.recipes import check, open_recipe
from ramerge.sdk.storage import Location
from ramerge.sdk.text import quoted

COMPRESSIONS = get_args(Compression)
_DEFAULTS = Options()
# The name of the agent in the recipe of a delta.
_MODEL = "agent"


def delta(
    base: str | Path,
    agent: str | Path,
    out: str | Path,
    *,
    compression: Compression = "none",
    allow: Mapping[str, object] | None = None,
    options: Options = _DEFAULTS,
    on_progress: Listener | None = None,
) -> DeltaRecord:
    """Write an agent's changes to its base, so that base and delta restore every file of the agent.

    Args:
        base: a folder or hub id.
        agent: a folder or hub id in any format that merging reads; a trainer's delta is applied to `base`.
        out: the folder to make, also in a bucket (`s3://bucket/delta`, `gs://`, `az://`), or a repository of the hub
            (`hub:owner/name`). It appears complete or not at all.
        compression: `none`, or `zstd` for slow disks and networks: files become half as large, and are read half as
            fast.
        allow: as in recipes; `config` applies, such as `{"config": ["quantization_config"]}`, and `outside_links`.
        options: how to make the delta. By default, there is one worker thread per processor, plus one.
        on_progress: called with a `Progress` in bytes read.

    Returns:
        The record of the delta.

    Raises:
        RecipeError: an argument is wrong.
        CheckpointError: a model cannot be found or read, is quantized, or has changed meanwhile.
        PlanError: `out` cannot be written.
        OutputError: the disk is full or fails.
        RayError: a Ray cluster cannot be reached, or cannot do the work.

    Example:
        >>> made = ramerge.delta("base", "coder", "coder-delta")
        >>> made.delta_bytes < made.agent_bytes
        True
    """
    check_options(options)
    start = time.monotonic()
    if compression not in COMPRESSIONS:
        raise RecipeError(f"compression: {compression!r} is not known; choose one of {', '.join(COMPRESSIONS)}")
    limits = read_limits(options.threads, options.max_memory)
    models = _open_models(base, os.fspath(agent), allow, options)
    opened_base, agent_checkpoint = models.opened
    place = output_target(out, options.upload.staging_dir, public=options.upload.public)
    # how much disk it takes is only known when it is made
    _refuse_problems(place, [*models.folders, *models.files], 0, overwrite=options.overwrite)
    work = plan_delta(opened_base, agent_checkpoint, compression)
    workers = _thread_count(limits, (*opened_base.files, *agent_checkpoint.files), work.memory_of)
    with (
        chosen_executor(options.ray, workers, work.memory_of) as carrier,
        open_output(work.spec(place, overwrite=options.overwrite), fresh=options.fresh) as output,
        closing(spool_of(work.slots, output.spool_folder, output.journal.before_sync)) as spool,
    ):
        index = write_delta(work, output, carrier, spool, listen=on_progress or silence)
        delta_record = _make_record(
            str(base), str(agent), index, agent_checkpoint, size_of(output.staging.folder), start
        )
        record = replace(
            delta_record,
            warnings=(
                *opened_base.warnings,
                *agent_checkpoint.warnings,
                *_doubt_warnings(opened_base, agent_checkpoint, delta_record),
            ),
        )
        output.staging.write("README.md", card(record, models.base))
    return record


def apply(
    base: str | Path,
    deltas: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    allow: Mapping[str, object] | None = None,
    options: Options = _DEFAULTS,
    on_progress: Listener | None = None,
) -> DeltaRecord:
    """Apply deltas: write the resulting agent with all its files, byte-identical.

    Args:
        base: the model that the first delta was made for: a folder or hub id.
        deltas: a delta, or several, each made for the result of the one before.
        out: the folder to make, or a remote location as for `delta`. It appears complete or not at all. In a bucket,
            names of weight files are specific to the run, and the index lists them.
        allow, options, on_progress: as for `delta`.

    Returns:
        The last delta's description of the agent.

    Raises:
        RecipeError: an argument is wrong.
        CheckpointError: a folder cannot be found or read, is not a delta, is a delta for another model, or is damaged.
            The message names tensor and file, and nothing is written.
        PlanError: `out` cannot be written.
        OutputError: the disk is full or fails.

    Example:
        >>> ramerge.delta("base", "coder", "coder-delta").digest == ramerge.apply("base", "coder-delta", "again").digest
        True
    """
    check_options(options)
    start = time.monotonic()
    limits = read_limits(options.threads, options.max_memory)
    names = [os.fspath(each) for each in ([deltas] if isinstance(deltas, str | os.PathLike) else deltas)]
    if not names:
        raise RecipeError("no delta: give at least one")
    models = _open_models(base, {"delta": names}, allow, options)
    agent, checkpoint = models.agents[_MODEL], models.opened_agents[_MODEL]
    size = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    place = output_target(out, options.upload.staging_dir, public=options.upload.public)
    _refuse_problems(place, [*models.folders, *checkpoint.files], size, overwrite=options.overwrite)
    workers = _thread_count(limits, checkpoint.files, partial(memory_of, checkpoint))
    with build_output(place, overwrite=options.overwrite) as folder:
        index = write_agent(
            checkpoint,
            folder,
            workers=workers,
            listen=on_progress or silence,
            advice=_weights_only_command(models, place),
        )
    delta_bytes = sum(map(size_of, agent.folders))
    return _make_record(str(base), str(place), index, checkpoint, delta_bytes, start)


def _open_models(base: str | Path, agent: object, allow: Mapping[str, object] | None, options: Options) -> OpenedInputs:
    """Open the models of a recipe with one agent."""
    values = {"method": "passthrough", "base": os.fspath(base), "agents": {_MODEL: agent}, "allow": allow}
    recipe = check(open_recipe({key: value for key, value in values.items() if value is not None}, options))
    if unused := sorted({*(allow or {})} - {"config", "outside_links"}):
        raise RecipeError(
            f"allow.{key}: has no effect on deltas, which store every tensor of the agent unchanged; leave it out, "
            "or write the agent with the base's tensors first (ramerge convert AGENT OUT --base BASE)"
            for key in unused
        )
    return open_models(recipe)


def _weights_only_command(models: OpenedInputs, out: OutputTarget) -> str:
    """Return a command that writes the same weights next to the base's own other files; empty if no merge can."""
    base, agent = models.base, models.agents[_MODEL]
    kinds = [{name: (one.dtype, one.shape) for name, one in each.tensors.items()} for each in models.opened]
    if kinds[0] != kinds[1]:
        return ""
    agent_word = f"m={without_secrets(agent.written)}"
    words = ["ramerge", "merge", "--base", without_secrets(base.written), "--agent", agent_word]
    command = shlex.join([*words, "--method", "passthrough", without_secrets(str(out))])
    return f"; for the same weights with the other files of this base: `{command}`"


def _refuse_problems(out: OutputTarget, inputs: Sequence[Location], size: int, *, overwrite: bool) -> None:
    if problems := output_dir(out).problems(inputs, size, overwrite=overwrite):
        tidy(out)
        raise PlanError(problems)


def _thread_count(limits: ResourceLimits, files: Iterable[Location], memory_of: Callable[[int], int]) -> int:
    """Return the requested number of threads, or fewer if memory is limited."""
    workers = limits.threads or threads_for(files)
    if limits.memory is None:
        return workers
    if (least := memory_of(1)) > limits.memory:
        raise RecipeError(too_little(limits.memory, least))
    return max(count for count in range(1, workers + 1) if memory_of(count) <= limits.memory)


def _doubt_warnings(base: Checkpoint, agent: Checkpoint, record: DeltaRecord) -> Iterator[str]:
    """Yield warnings about a delta that is probably for another base, or saves nothing."""
    kinds = [model.config.get("model_type") for model in (base, agent)]
    same = kinds[0] == kinds[1]
    if all(kinds) and not same:
        theirs, own = map(quoted, kinds)
        yield (
            f"the base is of another architecture ({theirs}) than the agent ({own}), so a delta saves little; give the "
            "model that the agent was trained from with --base"
        )
        return
    retyped = list(_retyped_warnings(base, agent))
    yield from retyped
    if not retyped and record.moved and record.delta_bytes >= record.agent_bytes:
        yield (
            f"the delta is as large as the model: {record.moved:,} of {record.elements:,} elements differ from the "
            "base; give the model that the agent was trained from with --base, or keep the model itself if this is "
            "the one"
        )


def _retyped_warnings(base: Checkpoint, agent: Checkpoint) -> Iterator[str]:
    """Warn of tensors that are stored whole because their dtype differs from the base's."""
    pairs = [(base.tensors[name], tensor) for name, tensor in agent.tensors.items() if name in base.tensors]
    others = [(old, new) for old, new in pairs if old.dtype != new.dtype and old.is_float and new.is_float]
    if not others:
        return
    dtypes = {(full_name(new.dtype), full_name(old.dtype)) for old, new in others}
    dtypes_text = ", ".join(f"{new} instead of {old}" for new, old in sorted(dtypes))
    text = (
        f"{len(others):,} of {len(agent.tensors):,} tensors differ from the base in dtype ({dtypes_text}), so they "
        f"are stored whole: {sum(new.nbytes for _, new in others):,} bytes"
    )
    # Rounding to a dtype that lacks the base's values has moved nearly all of them, which converting does not undo.
    if all(widest((old.dtype, new.dtype)) == new.dtype for old, new in others):
        wide = full_name(widest(new.dtype for _, new in others))
        text += (
            f"; of models that are both in {wide}, a delta holds only what moved, and converting to it changes no "
            f"value (`ramerge convert MODEL OUT --dtype {wide}`)"
        )
    yield text


def _make_record(
    base: str, agent: str, index: Index, checkpoint: Checkpoint, delta_bytes: int, start: float
) -> DeltaRecord:
    kinds = [tensor.kind for tensor in index.tensors.values()]
    return DeltaRecord(
        base=without_secrets(base),
        agent=without_secrets(agent),
        tensors=len(kinds),
        changed=kinds.count("changed"),
        whole=kinds.count("whole"),
        dropped=len(index.dropped),
        moved=sum(tensor.moved for tensor in index.tensors.values()),
        elements=sum(tensor.elements for tensor in checkpoint.tensors.values()),
        agent_bytes=sum(tensor.nbytes for tensor in checkpoint.tensors.values()),
        delta_bytes=delta_bytes,
        digest=index.metadata.result,
        seconds=round(time.monotonic() - start, 3),
    )
