"""Shards that are uploaded, each as soon as it is complete, while later ones are merged."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge.engine.sinks import Shards, shard_name
from ramerge.foundation.progress import Listener, Progress, silence
from ramerge.output.remote_output import RemoteStagingDir
from ramerge.output.write import Writer
from ramerge.planning.model import Block, MergePlan

# Shards that workers may write into besides the one that is uploaded.
_AHEAD = 2
_PARTING_SECONDS = 10.0


class MissingElements:
    """How many elements of each shard are still to come.

    A block is done once in a pass, and writes only what is its own. So a shard is complete when all blocks of all its
    tensors are done.

    Args:
        plan: the plan.

    Attributes:
        order: the shards, as their last blocks come in a pass that goes forwards. Those of all points are alike.
    """

    def __init__(self, plan: MergePlan) -> None:
        self._shards = [{part.shard for part in tensor.parts} for tensor in plan.tensors]
        self._missing = {shard.name: 0 for shard in plan.shards}
        self._last = dict.fromkeys(self._missing, -1)
        for index, tensor in enumerate(plan.tensors):
            for shard in self._shards[index]:
                self._missing[shard] += tensor.base.elements
                self._last[shard] = index
        self.order = sorted(self._missing, key=self._last.__getitem__)

    def add(self, block: Block) -> None:
        """A block is done."""
        for shard in self._shards[block.tensor]:
            self._missing[shard] -= block.stop - block.start
            assert self._missing[shard] >= 0, "what was done again may have been uploaded"

    def is_complete(self, shard: str) -> bool:
        """Whether all of a shard is done."""
        return not self._missing[shard]

    def is_behind(self, tensor: int, shard: str) -> bool:
        """Whether a tensor's blocks come after all of a shard's."""
        return tensor > self._last[shard]


class UploadedShards(Shards):
    """Shards that a thread uploads, one after another.

    Workers wait that are too far ahead, so the staging directory holds few files. Blocks of the shard that is next, and
    those before them, never wait, so this comes to an end.

    Args:
        plan: the plan.
        writer: of the shards that have not arrived.
        staging: their folder.
    """

    def __init__(self, plan: MergePlan, writer: Writer, staging: RemoteStagingDir) -> None:
        super().__init__(plan, writer, frozenset(staging.arrived))
        self._staging = staging
        self._missing = MissingElements(plan)
        self._sizes = {shard.name: shard.file_bytes for shard in plan.shards}
        self._arrived = 0  # shards, of all points
        self._changed = threading.Condition()
        self._stopped = False
        self._failure: BaseException | None = None
        self._uploader = threading.Thread(target=self._run, name="ramerge-upload", daemon=True)
        self._uploader.start()

    def __reduce__(self) -> tuple[Any, ...]:
        """On another node, the same files: it writes, and this process uploads."""
        return Shards, (replace(self._plan, out=None), self._writer, frozenset(self._staging.arrived))

    def write(self, point: int, tensor: int, part: int, start: int, data: NDArray[np.uint8]) -> None:
        with self._changed:
            while self._is_far(tensor) and not self._stopped and self._failure is None:
                self._changed.wait()
            self._raise()
            if self._stopped:
                raise RuntimeError("the pass has ended")
        super().write(point, tensor, part, start, data)

    def _is_far(self, tensor: int) -> bool:
        far, order = self._arrived + _AHEAD, self._missing.order
        return far < len(order) and self._missing.is_behind(tensor, order[far])

    def advance(self, block: Block) -> None:
        """What is complete now is uploaded next.

        Raises:
            SendError: what was complete before cannot be uploaded.
        """
        with self._changed:
            self._missing.add(block)
            self._changed.notify_all()
            self._raise()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def finish(self, listen: Listener = silence) -> int:
        """Wait until all shards have arrived. Returns bytes of the files.

        Args:
            listen: gets the progress.

        Raises:
            OutputError: one cannot be uploaded.
            OSError: the disk fails.
        """
        sizes = [self._sizes[shard] for shard in self._missing.order]
        while self._uploader.is_alive():
            self._uploader.join(0.1)  # signals come in between
            done = len(self._plan.points) * sum(sizes[: self._arrived])
            listen(Progress("uploading", done, len(self._plan.points) * sum(sizes)))
        self._raise()
        return super().finish()

    def close(self) -> None:
        """Stop after the shard that is being uploaded, and close the files."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._uploader.join(_PARTING_SECONDS)
        super().close()

    def _run(self) -> None:
        try:
            for shard in self._missing.order:
                if not self._waited_for(shard):
                    return
                self._upload([shard_name(self._plan, point, shard) for point in range(len(self._plan.points))])
                with self._changed:
                    self._arrived += 1
                    self._changed.notify_all()
        except BaseException as failure:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _waited_for(self, shard: str) -> bool:
        """Wait until a shard is complete. False if the pass ends before."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._missing.is_complete(shard))
            return not self._stopped

    def _upload(self, names: Collection[str]) -> None:
        for name in names:
            if name not in self._staging.arrived:
                self._writer.release(name)
                self._staging.upload(name)
