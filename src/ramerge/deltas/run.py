"""The functions that users call: `delta` and `apply`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from ramerge.checkpoint import relay
from ramerge.checkpoint.delta.apply import write_agent
from ramerge.checkpoint.delta.codec import Compression
from ramerge.checkpoint.delta.layout import Index, size_of
from ramerge.checkpoint.hub import Model, resolve
from ramerge.checkpoint.model import Checkpoint
from ramerge.checkpoint.open import open_stacked
from ramerge.checkpoint.outputs import out_of, path_of, problems_of
from ramerge.checkpoint.read import threads_for
from ramerge.checkpoint.stage import staged
from ramerge.checkpoint.storage.destination import Destination
from ramerge.deltas.card import card
from ramerge.deltas.make import compare, fill, write_delta
from ramerge.deltas.record import DeltaRecord
from ramerge.engine.chosen import chosen_executor
from ramerge.engine.ranks import TIMEOUT, Executors, chosen_rank
from ramerge.engine.site import building
from ramerge.foundation.dtypes import full_name, widest
from ramerge.foundation.errors import PlanError, RecipeError
from ramerge.foundation.events import Listener, silence
from ramerge.foundation.machine import check_threads
from ramerge.foundation.text import without_secrets

COMPRESSIONS = get_args(Compression)


def delta(
    base: str | Path,
    agent: str | Path,
    out: str | Path,
    *,
    compression: Compression = "none",
    threads: int | None = None,
    allow_outside_links: bool = False,
    overwrite: bool = False,
    stage: str | Path | None = None,
    public: bool = False,
    fresh: bool = False,
    executor: Executors = "threads",
    rank_timeout: float = TIMEOUT,
    ray_init: Mapping[str, Any] | None = None,
    on_progress: Listener | None = None,
) -> DeltaRecord:
    """Write what an agent has changed of its base, so that base and delta give every file of the agent back.

    Args:
        base: a folder or hub id.
        agent: a folder or hub id of any format that merging reads, also a delta of a trainer, which is then on `base`.
        out: the folder to make, also in a bucket (`s3://bucket/delta`, `gs://`, `az://`), or a repository of the hub
            (`hub:owner/name`). It appears complete or not at all.
        compression: `none`; or `zstd`, where that saves something: for slow disks and networks. Files become half as
            large, and are read half as fast.
        threads: worker threads; by default one for each processor, and one more.
        allow_outside_links: follow links of files that lead out of a model's folder.
        overwrite: replace an existing folder at `out`.
        stage: of an `out` elsewhere, a folder on this machine in which the delta lies until it is sent; by default in
            the user's cache folder. With the executors `ranks` and `ray` all processes must see it.
        public: whether everybody may see a repository that is written on the hub.
        fresh, executor, rank_timeout, ray_init: as for `ramerge.merge`.
        on_progress: called with a `Progress` in bytes that are read.

    Returns:
        What was written.

    Raises:
        RecipeError: an argument is wrong.
        CheckpointError: a model cannot be found or read, is quantised, or has changed meanwhile.
        PlanError: `out` cannot be where it is wanted.
        OutputError: the disk is full or fails.
        RankError: another rank has failed or is lost.
        RayError: a Ray cluster cannot be reached, or cannot do the work.
    """
    began = time.monotonic()
    rank = chosen_rank(executor, rank_timeout, ray_init)
    if compression not in COMPRESSIONS:
        raise RecipeError(f"compression: {compression!r} is not known; choose one of {', '.join(COMPRESSIONS)}")
    check_threads(threads)
    below, above = _find(base), _find(agent)
    opened_base = open_stacked(below.folders, allow_outside_links=allow_outside_links)
    opened = open_stacked(above.folders, base=opened_base, allow_outside_links=allow_outside_links)
    place, inputs = out_of(out, stage, public=public), [*below.folders, *above.folders]
    if isinstance(place, Destination):
        place.joins = rank is not None and rank.number > 0
    # how much disk it takes is only known when it is made
    if isinstance(place, Path):
        problems = problems_of(place, inputs, 0, overwrite=overwrite)
    else:
        problems = relay.problems_of(place, inputs, 0, overwrite=overwrite)
    if problems:
        raise PlanError(problems)
    work = compare(opened_base, opened, compression)
    workers = threads or threads_for((*opened_base.files, *opened.files))
    with (
        chosen_executor(executor, workers, work.memory_of, ray_init) as carrier,
        building(work.building(place, overwrite=overwrite), rank, fresh=fresh) as site,
        closing(site.opened(site.spool)) as spool,
    ):
        if not site.leads:
            fill(work, site, carrier, spool)
            return DeltaRecord.of(site.written(spool.finish))
        index = write_delta(
            work, site, carrier, spool, listen=on_progress or silence, allow_outside_links=allow_outside_links
        )
        made = _record(str(base), str(agent), index, opened, size_of(site.stage.folder), began)
        record = replace(made, warnings=tuple(_retyped(opened_base, opened)))
        site.stage.write("README.md", card(record, below.hub_id, below.folder.resolve().name))
        site.say(asdict(record))
    return record


def apply(
    base: str | Path,
    deltas: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    threads: int | None = None,
    allow_outside_links: bool = False,
    overwrite: bool = False,
    on_progress: Listener | None = None,
) -> DeltaRecord:
    """Write the agent that deltas give, with all its files, equal to the byte.

    Args:
        base: the model that the first delta was made for: a folder or hub id.
        deltas: a delta, or several of which each was made for what the ones before give.
        out: the folder to make. It appears complete or not at all.
        threads, allow_outside_links, overwrite, on_progress: as for `delta`.

    Returns:
        What the last delta says of the agent.

    Raises:
        RecipeError: an argument is wrong.
        CheckpointError: a folder cannot be found or read, is no delta, is a delta for another model, or is damaged. The
            message names tensor and file, and nothing is written.
        PlanError: `out` cannot be where it is wanted.
        OutputError: the disk is full or fails.
    """
    began = time.monotonic()
    check_threads(threads)
    below = _find(base)
    above = [_find(each) for each in ([deltas] if isinstance(deltas, str | os.PathLike) else deltas)]
    if not above:
        raise RecipeError("no delta: give at least one")
    folders = [place for model in above for place in model.folders]
    opened_base = open_stacked(below.folders, allow_outside_links=allow_outside_links)
    opened = open_stacked(folders, base=opened_base, only_deltas=True, allow_outside_links=allow_outside_links)
    size = sum(tensor.nbytes for tensor in opened.tensors.values())
    folder = path_of(out)
    if problems := problems_of(folder, [*below.folders, *folders], size, overwrite=overwrite):
        raise PlanError(problems)
    with staged(folder, overwrite=overwrite) as stage:
        index = write_agent(opened, stage, workers=threads, listen=on_progress or silence)
    stored = sum(map(size_of, folders))
    return _record(str(base), str(folder), index, opened, stored, began)


def _retyped(base: Checkpoint, agent: Checkpoint) -> Iterator[str]:
    """A warning about tensors that are stored whole because base and agent have them in different dtypes."""
    pairs = [(base.tensors[name], tensor) for name, tensor in agent.tensors.items() if name in base.tensors]
    others = [(old, new) for old, new in pairs if old.dtype != new.dtype and old.is_float and new.is_float]
    if not others:
        return
    dtypes = {(full_name(new.dtype), full_name(old.dtype)) for old, new in others}
    said = ", ".join(f"{new} instead of {old}" for new, old in sorted(dtypes))
    text = (
        f"{len(others):,} of {len(agent.tensors):,} tensors have another dtype than the base's ({said}), so they are "
        f"stored whole: {sum(new.nbytes for _, new in others):,} bytes"
    )
    # Rounding to a dtype that lacks the base's values has moved nearly all of them, which converting does not undo.
    if all(widest((old.dtype, new.dtype)) == new.dtype for old, new in others):
        wide = full_name(widest(new.dtype for _, new in others))
        text += (
            f"; of models that are both in {wide}, a delta holds only what moved, and converting to it changes no "
            f"value (`ramerge convert MODEL OUT --dtype {wide}`)"
        )
    yield text


def _find(model: str | Path) -> Model:
    return resolve(os.fspath(model), Path.cwd())


def _record(base: str, agent: str, index: Index, opened: Checkpoint, stored: int, began: float) -> DeltaRecord:
    kinds = [tensor.kind for tensor in index.tensors.values()]
    return DeltaRecord(
        base=without_secrets(base),
        agent=without_secrets(agent),
        tensors=len(kinds),
        changed=kinds.count("changed"),
        whole=kinds.count("whole"),
        dropped=len(index.dropped),
        moved=sum(tensor.moved for tensor in index.tensors.values()),
        elements=sum(tensor.elements for tensor in opened.tensors.values()),
        agent_bytes=sum(tensor.nbytes for tensor in opened.tensors.values()),
        delta_bytes=stored,
        digest=index.metadata.result,
        seconds=round(time.monotonic() - began, 3),
    )
