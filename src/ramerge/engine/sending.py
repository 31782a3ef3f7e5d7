"""Shards that are sent elsewhere while they are merged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ramerge.checkpoint.relay import Relay
from ramerge.engine.sinks import Shards
from ramerge.foundation.errors import SendError
from ramerge.foundation.events import Listener, Progress, silence
from ramerge.planning.model import Block, Part, Plan

# Files that workers may write into besides the one that is sent.
_AHEAD = 2
_PARTING_SECONDS = 10.0


class Prefixes:
    """How many of each shard's first bytes are final: no block that is still to come writes into them.

    A block is done once in a pass, and writes only what is its own. So bytes are final when the header is written, and
    the blocks of all data before them are done.

    Args:
        plan: the plan.

    Attributes:
        order: the shards, as their last blocks come in a pass that goes forwards.
    """

    def __init__(self, plan: Plan) -> None:
        self._tensors = plan.tensors
        self._sizes = {shard.name: shard.file_bytes for shard in plan.shards}
        self._parts: dict[str, list[tuple[int, Part]]] = {shard.name: [] for shard in plan.shards}
        for index, tensor in enumerate(plan.tensors):
            for part in tensor.parts:
                self._parts[part.shard].append((index, part))
        self._last = {shard: max((index for index, _ in parts), default=-1) for shard, parts in self._parts.items()}
        self.order = sorted(self._parts, key=self._last.__getitem__)
        for parts in self._parts.values():
            parts.sort(key=lambda each: each[1].offset + each[1].begin, reverse=True)  # the next one is the last
        self._reached = [0] * len(plan.tensors)  # elements
        self._apart: dict[int, dict[int, int]] = {}  # by tensor: blocks behind those that are not done

    def add(self, block: Block) -> None:
        """A block is done."""
        reached, apart = self._reached[block.tensor], self._apart.setdefault(block.tensor, {})
        assert block.start >= reached and block.start not in apart, "what was done again may have been sent"
        apart[block.start] = block.stop
        while reached in apart:
            reached = apart.pop(reached)
        self._reached[block.tensor] = reached
        if not apart:
            del self._apart[block.tensor]

    def of(self, shard: str) -> int:
        """How many of a shard's first bytes are final."""
        parts = self._parts[shard]
        while parts and self._reached[parts[-1][0]] == self._tensors[parts[-1][0]].base.elements:
            parts.pop()
        if not parts:
            return self._sizes[shard]
        index, part = parts[-1]
        tensor, begin = self._tensors[index], part.offset + part.begin
        if len(tensor.parts) > 1:  # codes and scales: the whole tensor is waited for
            return begin
        return begin + part.nbytes // tensor.base.elements * self._reached[index]

    def is_behind(self, tensor: int, shard: str) -> bool:
        """Whether a tensor's blocks come after all of a shard's."""
        return tensor > self._last[shard]


class Relayed(Shards):
    """Shards that a thread sends elsewhere, one after another, as far as their bytes are final.

    Workers wait that are too far ahead, so the stage holds few files. Blocks of the shard that is sent, and those
    before them, never wait, so this comes to an end.

    The end of the last shard is sent when all is found to be right. So a model of one file appears only then.
    """

    def __init__(self, plan: Plan, stage: Relay, before_sync: Callable[[], Callable[[], None]] | None = None) -> None:
        """See `Shards`."""
        super().__init__(plan, stage, before_sync)
        self._stage = stage
        self._final = Prefixes(plan)
        self._order = self._final.order
        self._sizes = {shard.name: shard.file_bytes for shard in plan.shards}
        self._sent = 0  # shards
        self._asked = self._taken = 0  # bytes of the next one
        self._changed = threading.Condition()
        self._ends = self._stopped = False
        self._failure: BaseException | None = None
        self._sender = threading.Thread(target=self._send, name="ramerge-send", daemon=True)
        self._sender.start()

    def write(self, point: int, tensor: int, part: int, start: int, data: NDArray[np.uint8]) -> None:
        """See `Sink.write`."""
        with self._changed:
            while self._is_far(tensor) and not self._stopped and self._failure is None:
                self._changed.wait()
            self._raise()
            if self._stopped:
                raise RuntimeError("the pass has ended")
        super().write(point, tensor, part, start, data)

    def _is_far(self, tensor: int) -> bool:
        far = self._sent + _AHEAD
        return far < len(self._order) and self._final.is_behind(tensor, self._order[far])

    def advance(self, block: Block) -> None:
        """Send what is final now.

        Raises:
            SendError: what was final before cannot be sent.
        """
        with self._changed:
            self._final.add(block)
            self._changed.notify_all()
        self._raise()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def finish(self, listen: Listener = silence) -> int:
        """Wait until everything is sent. Returns bytes of the files.

        Args:
            listen: gets the progress.

        Raises:
            OutputError: it cannot be sent.
            OSError: the disk fails.
        """
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        while self._sender.is_alive():
            self._sender.join(0.1)  # signals come in between
            listen(self._progress())
        self._raise()
        return super().finish()

    def _progress(self) -> Progress:
        with self._changed:
            done = sum(self._sizes[shard] for shard in self._order[: self._sent]) + self._taken
        return Progress("sending", done, sum(self._sizes.values()))

    def close(self) -> None:
        """Stop sending, and close the files."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._sender.join(_PARTING_SECONDS)
        super().close()

    def _reaches(self, shard: str, stop: int) -> None:
        """See `Reaches`."""
        with self._changed:
            if stop > self._asked:  # what was asked for before has been taken
                self._asked, self._taken = stop, self._asked
            while self._limit(shard) < stop and not self._stopped:
                self._changed.wait()
            if self._stopped:
                raise SendError(f"{shard}: sending was broken off")

    def _limit(self, shard: str) -> int:
        """How many of a shard's first bytes may be sent."""
        held = shard == self._order[-1] and not self._ends
        return min(self._final.of(shard), self._sizes[shard] - held)

    def _send(self) -> None:
        try:
            for shard in self._order:
                self._stage.send(shard, partial(self._reaches, shard))
                with self._changed:
                    self._sent += 1
                    self._asked = self._taken = 0
                    self._changed.notify_all()
        except BaseException as failure:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()
