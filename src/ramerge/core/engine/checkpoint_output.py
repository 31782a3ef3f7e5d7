"""Writes a merge as checkpoints: shards, and the files that belong to a model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from ramerge.core.engine.fingerprint import fingerprint_of
from ramerge.core.engine.outputs import OpenOutput, OutputKind, OutputSpec
from ramerge.core.engine.reads import Passes
from ramerge.core.engine.record import Record
from ramerge.core.engine.sidecars import records_of, write_sidecars
from ramerge.core.engine.sinks import Shards, all_shards
from ramerge.core.engine.uploads import UploadedShards
from ramerge.core.output.write import Writer
from ramerge.core.planning.model import MergePlan


@dataclass(frozen=True)
class AsCheckpoint(OutputKind):
    """Writes a merge as a checkpoint, or a sweep as several checkpoints."""

    def spec(self, plan: MergePlan) -> OutputSpec:
        assert plan.output.target is not None
        files = {shard.name: shard.file_bytes for shard in all_shards(plan)}
        return OutputSpec(plan.output.target, plan.output.overwrite, fingerprint_of(plan), plan.bytes_read, files)

    def write(
        self, plan: MergePlan, passes: Passes, output: OpenOutput, warnings: Sequence[str], start: float
    ) -> tuple[Record, ...]:
        with closing(_shards_of(plan, output)) as shards:
            passes.count()
            passes.merge(shards)
            nbytes = shards.finish(passes.listen)
        records = records_of(plan, passes, nbytes, warnings, start)
        write_sidecars(plan, records, output.staging)
        return records


def _shards_of(plan: MergePlan, output: OpenOutput) -> Shards:
    """Return a sink that writes the plan's shards into the staging directory."""
    staging = output.staging
    left = [shard for shard in all_shards(plan) if shard.name not in staging.arrived]
    writer = Writer(staging, left, output.journal.before_sync)
    return UploadedShards(plan, writer, staging) if staging.sends else Shards(plan, writer)


CHECKPOINT = AsCheckpoint()
