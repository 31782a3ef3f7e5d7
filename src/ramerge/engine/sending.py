"""Shards that are sent elsewhere while they are merged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ramerge.checkpoint.relay import Relay
from ramerge.checkpoint.write import Writer
from ramerge.engine.sinks import Shards, shard_name
from ramerge.foundation.errors import SendError
from ramerge.foundation.events import Listener, Progress, silence
from ramerge.planning.model import Block, Part, Plan

# Files that workers may write into besides the one that is sent.
_AHEAD = 2
_PARTING_SECONDS = 10.0
_SECONDS_BETWEEN_LOOKS = 0.2


class Senders(Protocol):
    """The ranks that send one output, each the files that it makes."""

    number: int
    world: int

    def check(self) -> None:
        """Raise if another one has failed or is lost."""
        ...

    def say_cleared(self) -> None:
        """As rank 0: say that nothing is at the place any more that was there before."""
        ...

    def is_cleared(self) -> bool:
        """As another rank: whether rank 0 has said so."""
        ...


class _Alone:
    """One process makes and sends all files."""

    number = 0
    world = 1

    def check(self) -> None:
        """Nobody can be lost."""

    def say_cleared(self) -> None:
        """Nobody waits for it."""

    def is_cleared(self) -> bool:
        return True


class Prefixes:
    """How many of each shard's first bytes are final: no block that is still to come writes into them.

    A block is done once in a pass, and writes only what is its own. So bytes are final when the header is written, and
    the blocks of all data before them are done.

    Args:
        plan: the plan.

    Attributes:
        order: the shards, as their last blocks come in a pass that goes forwards. Those of all points are alike.
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

    Of several ranks, each makes and sends whole shards. What the place held before is removed by rank 0, when its first
    shard is ready; until then no rank sends the end of a shard.

    Args:
        plan: the plan.
        writer: of the shards.
        stage: their folder.
        senders: the ranks, if there are several.
    """

    def __init__(self, plan: Plan, writer: Writer, stage: Relay, senders: Senders | None = None) -> None:
        super().__init__(plan, writer)
        self._stage, self._senders = stage, senders or _Alone()
        self._final = Prefixes(plan)
        self._sizes = {shard.name: shard.file_bytes for shard in plan.shards}
        self._owners = owners(plan, self._final.order, self._sizes, self._senders.world)
        self._order = [shard for shard in self._final.order if self._owners[shard] == self._senders.number]
        self._sent = 0  # shards, of all points
        self._done = 0  # bytes of files that were sent
        self._asked = self._taken = 0  # bytes of the next one
        self._cleared = False
        self._changed = threading.Condition()
        self._ends = self._stopped = False
        self._failure: BaseException | None = None
        self._sender = threading.Thread(target=self._send, name="ramerge-send", daemon=True)
        self._sender.start()

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process, the same files: it writes, and this one sends."""
        return Shards, (replace(self._plan, out=None), self._writer)

    def owner(self, block: Block) -> int | None:
        """See `Sink.owner`."""
        return self._owners[self._plan.tensors[block.tensor].parts[0].shard]

    def holds(self, block: Block) -> bool:
        """See `Sink.holds`. Where each rank has a folder of its own, only what was sent is there."""
        shards = {part.shard for part in self._plan.tensors[block.tensor].parts}
        points = range(len(self._plan.points))
        return not self._stage.is_apart or all(
            shard_name(self._plan, point, shard) in self._stage.sent for shard in shards for point in points
        )

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
        total = len(self._plan.points) * sum(self._sizes[shard] for shard in self._order)
        with self._changed:
            return Progress("sending", self._done + self._taken, total)

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
        ends = stop == self._sizes[shard]
        if ends and self._senders.world > 1:  # others wait for it, and so they do not wait for the end of this one
            self._wait(shard, lambda: self._final.of(shard) >= stop)
            self._clear(shard)
        self._wait(shard, lambda: self._limit(shard) >= stop)
        if ends:
            self._clear(shard)

    def _clear(self, shard: str) -> None:
        """Remove what the place held before, or wait until that is done."""
        if self._senders.number:
            self._wait(shard, self._senders.is_cleared)
        elif not self._cleared:
            self._stage.clear()
            self._senders.say_cleared()
            self._cleared = True

    def _wait(self, shard: str, is_so: Callable[[], bool]) -> None:
        while True:
            self._senders.check()
            with self._changed:
                if self._stopped:
                    raise SendError(f"{shard}: sending was broken off")
                if is_so():
                    return
                self._changed.wait(_SECONDS_BETWEEN_LOOKS)

    def _limit(self, shard: str) -> int:
        """How many of a shard's first bytes may be sent."""
        held = shard == self._order[-1] and not self._ends
        return min(self._final.of(shard), self._sizes[shard] - held)

    def _send(self) -> None:
        try:
            for shard in self._order:
                for point in range(len(self._plan.points)):
                    self._stage.send(shard_name(self._plan, point, shard), partial(self._reaches, shard))
                    with self._changed:
                        self._done += self._sizes[shard]
                        self._asked = self._taken = 0
                with self._changed:
                    self._sent += 1
                    self._changed.notify_all()
        except BaseException as failure:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()


def owners(plan: Plan, order: Sequence[str], sizes: Mapping[str, int], world: int) -> dict[str, int]:
    """For each shard the rank that makes it. Shards that hold parts of one tensor have the same, so blocks have one.

    Args:
        plan: the plan.
        order: its shards.
        sizes: their bytes.
        world: how many ranks there are. Rank 0 has the first shard, and each next one who has the fewest bytes so far.
    """
    above = {shard: shard for shard in order}

    def top(shard: str) -> str:
        while above[shard] != shard:
            shard = above[shard]
        return shard

    for tensor in plan.tensors:
        for part in tensor.parts:
            above[top(part.shard)] = top(tensor.parts[0].shard)
    loads, found = [0] * world, dict[str, int]()
    for shard in order:
        rank = found.setdefault(top(shard), loads.index(min(loads)))
        loads[rank] += sizes[shard]
    return {shard: found[top(shard)] for shard in order}
