"""A merge as a delta on its base: `ramerge merge --as-delta`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from ramerge.deltas.collect import collect
from ramerge.deltas.format import sidecar_files
from ramerge.deltas.patches import COMPRESSION, Patches, slots_of
from ramerge.deltas.spool import spool_of, spooled
from ramerge.deltas.write import DeltaWriter
from ramerge.engine.card import model_card
from ramerge.engine.fingerprint import fingerprint_of
from ramerge.engine.outputs import OpenOutput, OutputKind, OutputSpec
from ramerge.engine.reads import Passes
from ramerge.engine.record import Record
from ramerge.engine.sidecars import files_of, records_of
from ramerge.output.staging import StagingDir
from ramerge.planning.model import MergePlan


def spec(plan: MergePlan) -> OutputSpec:
    assert plan.out is not None and plan.below is not None
    slots = slots_of(plan, plan.below)
    return OutputSpec(plan.out, plan.overwrite, fingerprint_of(plan), plan.bytes_read, spooled=spooled(slots))


def write(plan: MergePlan, passes: Passes, output: OpenOutput, seen: Sequence[str], began: float) -> tuple[Record, ...]:
    assert plan.below is not None
    slots = slots_of(plan, plan.below)
    spool = spool_of(slots, output.spool_folder, output.journal.before_sync)
    with closing(Patches(plan, plan.below, spool)) as patches:
        passes.count()
        passes.merge(patches)
        with DeltaWriter(output.staging, [entry.name for entry in slots.entries]) as writer:
            collect(spool, writer, plan.below, COMPRESSION)
            records = records_of(plan, passes, writer.written, seen, began)
            _write_others(plan, records[0], writer, output.staging)
    return records


def _write_others(plan: MergePlan, record: Record, writer: DeltaWriter, staging: StagingDir) -> None:
    """Write the same into a delta, and end it; card and record are also written next to the delta's own files."""
    assert plan.below is not None
    theirs = sidecar_files(plan.below, allow_outside_links=True)
    for shard in plan.shards:
        writer.header(shard.name, list(shard.offsets), shard.header)
    for name, content in files_of(plan, plan.points[0], record):
        writer.companion(name, content, theirs.get(name))
    writer.finish()
    staging.write("README.md", model_card(plan, plan.points[0], record, is_delta=True))
    staging.write("ramerge.json", record.to_json())


DELTA = OutputKind(spec, write)
