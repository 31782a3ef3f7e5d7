"""The sandbox itself: whether one can be had here, and programs that run in it."""

from __future__ import annotations

from asyncio import CancelledError, get_running_loop, wait, wrap_future
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol, TypeVar

from ramerge.evaluation.sandbox import bubblewrap
from ramerge.evaluation.sandbox.bubblewrap import INSTEAD, MOST_USERS, Bubblewrap
from ramerge.evaluation.sandbox.execution import Command, Conversation, Execution, Outcome
from ramerge.evaluation.sandbox.watch import Limits
from ramerge.foundation.errors import EvaluationError
from ramerge.foundation.machine import processors

_PROBE_PROCESSES = 4
_PROBE = """
import os, time
made = 1
try:
    while made < 8:
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made)
"""


T = TypeVar("T", covariant=True)


class _Job(Protocol[T]):
    def __call__(self) -> T: ...

    def cancel(self) -> None: ...


class Sandbox:
    """Runs programs, at most `workers` at once. One may be used by many threads and event loops.

    Attributes:
        isolation: what keeps programs in, such as `bubblewrap 0.8.0`.
    """

    def __init__(self, way: Bubblewrap, workers: int) -> None:
        """Starts sandboxes in this way. Use `open`, which knows whether it works."""
        self.isolation = f"bubblewrap {way.version}"
        self._way = way
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="sandbox")

    @classmethod
    def open(cls, *, workers: int | None = None) -> Sandbox:
        """A sandbox that has run a program here.

        Args:
            workers: programs, or pairs of them, at once, at most 64; by default one a processor.

        Raises:
            EvaluationError: no sandbox can be had; says what is missing.
        """
        workers = min(workers or processors(), MOST_USERS // 2)
        problems = []
        for way in bubblewrap.ways():
            sandbox = cls(way, workers)
            problem = sandbox._problem()
            if problem is None:
                return sandbox
            sandbox.close()
            problems.append(problem)
        raise EvaluationError(
            f"bubblewrap cannot make a sandbox here: {'; '.join(dict.fromkeys(problems))}. It needs user namespaces, "
            "which a container or the system may forbid (docker: --security-opt seccomp=unconfined --security-opt "
            "systempaths=unconfined; sysctl kernel.apparmor_restrict_unprivileged_userns, "
            f"kernel.unprivileged_userns_clone, user.max_user_namespaces); {INSTEAD}"
        )

    async def run(self, program: str | Command, stdin: str | bytes = "", limits: Limits | None = None) -> Outcome:
        """Run a program, and wait without blocking the event loop. Canceling kills it.

        Args:
            program: text of a Python program, or a command; whatever is no Python, or no Unicode, is an `error`.
            stdin: what it reads.
            limits: by default `Limits()`.

        Raises:
            EvaluationError: the sandbox itself failed; the program did not run.
        """
        return await self._finished(Execution(self._way, program, stdin, limits or Limits()))

    async def converse(self, asking: str, answering: str, limits: Limits | None = None) -> tuple[Outcome, Outcome]:
        """Run two programs that read what the other one prints, and share nothing else; wait as `run` does.

        They are in different sandboxes: neither sees the other's processes, files or memory, or can send it a signal.

        Args:
            asking: text of the program whose end ends both.
            answering: text of the other.
            limits: of each.

        Returns:
            How they ended, in this order. Their standard output is not kept.

        Raises:
            EvaluationError: the sandbox itself failed.
        """
        return await self._finished(Conversation(self._way, asking, answering, limits or Limits()))

    def execute(self, program: str | Command, stdin: str | bytes = "", limits: Limits | None = None) -> Outcome:
        """`run`, blocking."""
        execution = Execution(self._way, program, stdin, limits or Limits())
        submitted: Future[Outcome] = self._threads.submit(execution)
        try:
            return submitted.result()
        except BaseException:
            execution.cancel()
            raise

    def close(self) -> None:
        """Waits for programs that run; those that wait for a place are canceled."""
        self._threads.shutdown(cancel_futures=True)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _finished(self, job: _Job[T]) -> T:
        submitted = self._threads.submit(job)
        future = wrap_future(submitted, loop=get_running_loop())
        try:
            await wait([future])
        except CancelledError:
            if not submitted.cancel():
                job.cancel()
                await wait([future])
            raise
        return future.result()

    def _problem(self) -> str | None:
        """Why programs cannot be run; None if one was, and the kernel held its number of processes.

        Nothing but the kernel can: killing a fork bomb from outside takes longer than it needs to take the machine. It
        exempts its root, and before Linux 5.14 it counted a user's processes across sandboxes.
        """
        try:
            outcome = self.execute(_PROBE, limits=Limits(processes=_PROBE_PROCESSES))
        except EvaluationError as error:
            return str(error)
        if outcome.status != "ok":
            return f"a program ended with {outcome.status}, saying {outcome.stderr.strip()[-1000:]!r}"
        if int(outcome.stdout) != _PROBE_PROCESSES:
            return f"a program allowed {_PROBE_PROCESSES} processes could have {int(outcome.stdout)}"
        return None
