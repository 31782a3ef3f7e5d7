"""A merge as a delta on its base: `ramerge merge --as-delta`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from ramerge import Record
from ramerge.deltas.collect import collect
from ramerge.deltas.format import sidecar_files
from ramerge.deltas.patches import COMPRESSION, Patches, slots_of
from ramerge.deltas.spool import spool_of
from ramerge.deltas.write import DeltaWriter
from ramerge.sdk.outputs import (
    OpenOutput,
    model_card,
    model_sidecars,
    records_of,
)
from ramerge.sdk.passes import Passes
from ramerge.sdk.plans import MergePlan
from ramerge.sdk.storage import COMPANIONS
from ramerge.sdk.tensors import Checkpoint


def write(plan: MergePlan, passes: Passes, output: OpenOutput, seen: Sequence[str], began: float) -> tuple[Record, ...]:
    """Merge, compare each block with the base's, and write what differs."""
    below: Checkpoint = plan.output.details
    slots = slots_of(plan, below)
    spool = spool_of(slots, output.spool_folder, output.journal.before_sync)
    with closing(Patches(plan, below, spool)) as patches:
        passes.count()
        passes.merge(patches)
        with DeltaWriter(output.staging, [entry.name for entry in slots.entries]) as writer:
            collect(spool, writer, below, COMPRESSION)
            (record,) = records_of(plan, passes, writer.written, seen, began)
            size, whole = writer.written, sum(tensor.bytes_written for tensor in plan.tensors)
            said = (
                f"written as a delta on {below.directory}: {size:,} bytes, {size / whole if whole else 0.0:.1%} of the "
                f"{whole:,} of the model; ramerge apply gives the model"
            )
            record = replace(record, notes=(*record.notes, said))
            theirs = sidecar_files(below, allow_outside_links=True)
            for shard in plan.shards:
                writer.header(shard.name, list(shard.offsets), shard.header)
            for name, content in model_sidecars(plan, plan.points[0], record, folder="MODEL"):
                writer.companion(name, content, theirs.get(name))
            writer.finish()
    # card and record are also written next to the delta's own files
    card = model_card(plan, plan.points[0], record, _usage(size, whole), recipe=f"{COMPANIONS}/ramerge.yaml")
    output.staging.write("README.md", card)
    output.staging.write("ramerge.json", record.to_json())
    return (record,)


def _usage(size: int, whole: int) -> str:
    delta, model = (f"{each / 1e6:,.1f} MB" for each in (size, whole))
    return f"""This folder is a delta: it holds what the model has changed of its base. It takes
{delta}, where the model takes {model}. This gives the model, if BASE is the folder or hub id of the base:

```sh
ramerge apply --base BASE THIS_FOLDER MODEL
```
"""
