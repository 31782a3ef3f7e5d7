"""Merges in forks that are killed at a moment of choice, and what they leave."""

from __future__ import annotations

import os
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramerge.core.engine import journal
from ramerge.core.engine.execute import execute
from ramerge.core.engine.executors.ray import RayExecutor, connection
from ramerge.core.engine.executors.threads import ThreadExecutor
from ramerge.core.engine.worker import Worker
from ramerge.core.foundation.errors import RamergeError
from tests.plans import planned

BLOCK = 32
WORKERS = 3


def merge(source: object, out: Path, *, block: int = BLOCK, fresh: bool = False, cluster: str = "", **more: Any):
    """A merge, or with `vary` a sweep, in many small blocks; on the Ray cluster of that address, if one is given."""
    plan = planned(source, out, cache=False, **more)
    plan = replace(plan, resources=replace(plan.resources, block_elements=block, workers=WORKERS))
    if not cluster:
        return execute(plan, ThreadExecutor(WORKERS), fresh=fresh)
    with connection({"address": cluster}) as ray:
        return execute(plan, RayExecutor(ray, WORKERS, 2, plan.resources.memory_of), fresh=fresh)


def forked(work: Callable[[], object]) -> int:
    """The process id of a fork that does this; it ends with 1 for an error, and with 2 for a defect."""
    child = os.fork()
    if child:
        return child
    code = 2
    try:
        warnings.simplefilter("ignore")  # that work is continued
        work()
        code = 0
    except RamergeError as error:
        code = 1
        os.write(2, f"{error}\n".encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Its exit code, or minus the number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed(work: Callable[[], object], records: int, *, torn: bool = False, marked: bool = False) -> bool:
    """Do it in a fork that is killed with SIGKILL at its so many-th record, which may be half written.

    False if the work was done before.
    """

    def doomed() -> None:
        die_at(records, torn=torn, marked=marked)
        work()

    code = ended(forked(doomed))
    assert code in (0, -signal.SIGKILL)
    return code != 0


def die_at(records: int, *, torn: bool = False, marked: bool = False) -> None:
    """End this process at its so many-th record; marks, which come by the clock, do not count.

    With `marked` it ends when all records before have a mark.
    """
    append, left = journal.JournalWriter.append, iter(range(records))
    one_at_a_time = threading.Lock()  # so that all records before the last are written
    mark = threading.Event()

    def counted(own: journal.JournalWriter, *arguments: Any) -> None:
        if arguments[0] == journal._SYNCED:
            append(own, *arguments)
            mark.set()
            return
        with one_at_a_time:
            if next(left, None) is None:
                for _ in range(2 * marked):  # the first one may have been begun before the last record
                    mark.clear()
                    mark.wait()
                if torn:
                    os.write(own._descriptor, b"\x20" * 17)
                os.kill(os.getpid(), signal.SIGKILL)
            append(own, *arguments)

    journal.JournalWriter.append = counted  # type: ignore[method-assign]  # in a fork


def counting(calls: list[str], monkeypatch: Any) -> None:
    """Note every block that a worker begins."""
    for name in ("count", "merge"):
        real = getattr(Worker, name)

        def begun(worker: Worker, *arguments: Any, real: Any = real, name: str = name) -> Any:
            calls.append(name)
            return real(worker, *arguments)

        monkeypatch.setattr(Worker, name, begun)


def weights(out: Path) -> dict[str, bytes]:
    """All files of an output but those that tell how it was made, which hold times and paths relative to the output."""
    return weights_of(
        {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    )


def weights_of(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The same of the files of an output by their names."""
    told = ("ramerge.json", "ramerge.yaml", "sweep.json", "README.md", "delta.safetensors.index.json")
    return {name: data for name, data in sorted(files.items()) if name.rpartition("/")[2] not in told}


def left_behind(out: Path) -> list[str]:
    """Hidden folders next to an output."""
    return sorted(path.name for path in out.parent.glob(".*"))
