"""Uploads each shard as soon as it is complete, while later ones are merged."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ramerge.core.engine.sinks import Shards, shard_name
from ramerge.core.foundation.progress import Listener, Progress, silence
from ramerge.core.output.staging import StagingDir
from ramerge.core.output.write import Writer
from ramerge.core.planning.model import Block, MergePlan

# The number of shards that workers may write while another shard is uploaded.
_AHEAD = 2
_PARTING_SECONDS = 10.0


class UploadedShards(Shards):
    """Shards that a thread uploads, in the order of their last blocks in a pass that goes forwards.

    A block is processed once in a pass, and writes only its own bytes. So a shard is complete when all blocks of its
    tensors are done. Workers that are too far ahead wait, so the staging directory holds few files. Blocks up to the
    next shard never wait, so there is no deadlock.

    Args:
        writer: the writer of the shards that are not yet uploaded.
    """

    def __init__(self, plan: MergePlan, writer: Writer, staging: StagingDir) -> None:
        super().__init__(plan, writer, frozenset(staging.arrived))
        self._staging = staging
        self._sizes = {shard.name: shard.file_bytes for shard in plan.shards}
        self._shards = [{part.shard for part in tensor.parts} for tensor in plan.tensors]
        self._missing = dict.fromkeys(self._sizes, 0)  # elements, of each shard
        last = dict.fromkeys(self._sizes, -1)
        for index, tensor in enumerate(plan.tensors):
            for shard in self._shards[index]:
                self._missing[shard] += tensor.base.elements
                last[shard] = index
        self._order = sorted(last, key=last.__getitem__)
        self._lasts = sorted(last.values())
        self._merge_events = {shard: threading.Event() for shard in self._order}
        self._upload_events = {shard: threading.Event() for shard in self._order}
        self._failure: BaseException | None = None
        self._note_complete(self._order)
        self._uploader = threading.Thread(target=self._upload_shards, name="ramerge-upload", daemon=True)
        self._uploader.start()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as plain `Shards`: another node only writes, and this process uploads."""
        plan = replace(self._plan, output=replace(self._plan.output, target=None))
        return Shards, (plan, self._writer, frozenset(self._staging.arrived))

    def write(self, point: int, tensor: int, part: int, start: int, data: NDArray[np.uint8]) -> None:
        behind = bisect_left(self._lasts, tensor) - _AHEAD
        if behind > 0:
            self._upload_events[self._order[behind - 1]].wait()
        self._raise_failure()
        super().write(point, tensor, part, start, data)

    def advance(self, block: Block) -> None:
        """Queue the shards that this block completes for upload."""
        for shard in self._shards[block.tensor]:
            self._missing[shard] -= block.stop - block.start
            assert self._missing[shard] >= 0, "what was done again may have been uploaded"
        self._note_complete(self._shards[block.tensor])
        self._raise_failure()

    def _note_complete(self, shards: Iterable[str]) -> None:
        for shard in shards:
            if not self._missing[shard]:
                self._merge_events[shard].set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def finish(self, listen: Listener = silence) -> int:
        """Wait until all shards have been uploaded; return their size in bytes."""
        points = len(self._plan.points)
        while self._uploader.is_alive():
            self._uploader.join(0.1)  # short waits, so that signals are handled
            nbytes = sum(self._sizes[shard] for shard, event in self._upload_events.items() if event.is_set())
            listen(Progress("uploading", points * nbytes, points * sum(self._sizes.values())))
        self._raise_failure()
        return super().finish()

    def close(self) -> None:
        """Stop after the current upload, and close the files."""
        self._note_failure(RuntimeError("the pass has ended"))
        self._uploader.join(_PARTING_SECONDS)
        super().close()

    def _note_failure(self, failure: BaseException) -> None:
        self._failure = self._failure or failure
        for event in (*self._merge_events.values(), *self._upload_events.values()):
            event.set()

    def _upload_shards(self) -> None:
        try:
            for shard in self._order:
                self._merge_events[shard].wait()
                for point in range(len(self._plan.points)):
                    if self._failure is not None:
                        return
                    name = shard_name(self._plan, point, shard)
                    if name not in self._staging.arrived:
                        self._writer.release(name)
                        self._staging.upload(name)
                self._upload_events[shard].set()
        except BaseException as failure:
            self._note_failure(failure)
