"""The sandbox as a provider of Inspect's, `bubblewrap`: each sample has a /tmp of its own, and each command a world."""

from __future__ import annotations

import asyncio
import threading
from pathlib import PurePosixPath
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from ramerge.evaluation.sandbox.execution import Command, Outcome
from ramerge.evaluation.sandbox.sandbox import Sandbox
from ramerge.evaluation.sandbox.watch import Limits
from ramerge.foundation.errors import EvaluationError
from ramerge.foundation.machine import processors

_FOLDER = PurePosixPath("/tmp")
_KILLED = 137


class BubblewrapConfig(BaseModel):
    """What a command may use; see `Limits`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: float = Limits.seconds
    memory_bytes: int = Limits.memory_bytes
    processes: int = Limits.processes
    output_bytes: int = Limits.output_bytes
    disk_bytes: int = Limits.disk_bytes

    def limits(self) -> Limits:
        """The same as plain values."""
        return Limits(**self.model_dump())


@sandboxenv(name="bubblewrap")
class BubblewrapSandbox(SandboxEnvironment):
    """A /tmp that lasts as long as a sample, and is all that commands can write to.

    Every command starts with the files that the one before left, among processes of its own: none outlives it.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits
        self._files: dict[str, bytes] = {}

    @property
    def programs(self) -> Sandbox:
        """What runs Python programs that share nothing, not even /tmp."""
        return _shared()

    @classmethod
    def default_concurrency(cls) -> int | None:
        """Samples that hold a sandbox at once: what runs at once is bounded by itself."""
        return None

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """The limits of a log."""
        return BubblewrapConfig(**config)

    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        """Makes sure that a sandbox can be had here.

        Raises:
            EvaluationError: what is missing.
        """
        await asyncio.to_thread(_shared)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """One sandbox for a sample; it takes memory for its files only."""
        if config is not None and not isinstance(config, BubblewrapConfig):
            raise EvaluationError(f"the sandbox bubblewrap: takes limits (BubblewrapConfig), not {config!r}")
        return {"default": cls((config or BubblewrapConfig()).limits())}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Nothing outlives a command."""

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command in /tmp; Python is the only one that is there.

        Raises:
            TimeoutError: it took longer than `timeout`, or than the sandbox allows.
            OutputLimitExceededError: it printed more than the sandbox allows.
            PermissionError: another user is asked for, or a folder outside /tmp.
        """
        if user is not None:
            raise PermissionError(f"user {user!r}: programs in bubblewrap run as a user that nothing else is")
        folder = str(_FOLDER / _inside(cwd or "."))
        limits = self.limits if timeout is None else _with_seconds(self.limits, timeout)
        outcome = await self.programs.run(Command(cmd, env or {}, folder, self._files), input or "", limits)
        self._files = dict(outcome.files)
        return _result(outcome, limits)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Put a file into /tmp.

        Raises:
            PermissionError: it lies outside of it, or takes more than the disk has left.
            IsADirectoryError: files lie below it.
        """
        path = _inside(file)
        content = contents.encode() if isinstance(contents, str) else contents
        if path == "." or any(name.startswith(f"{path}/") for name in self._files):
            raise IsADirectoryError(file)
        others = sum(len(each) for name, each in self._files.items() if name != path)
        if others + len(content) > self.limits.disk_bytes:
            raise PermissionError(f"{file}: the sandbox holds {self.limits.disk_bytes:,} bytes of files")
        self._files[path] = content

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """A file of /tmp, as the last command left it.

        Raises:
            FileNotFoundError: it is not there.
            IsADirectoryError: it is a folder.
            PermissionError: it lies outside of it.
            UnicodeDecodeError: text is wanted, and it is none.
        """
        path = _inside(file)
        if path not in self._files:
            below = any(path == "." or name.startswith(f"{path}/") for name in self._files)
            raise IsADirectoryError(file) if below else FileNotFoundError(file)
        content = self._files[path]
        return content.decode() if text else content


def _inside(path: str) -> str:
    """A path below /tmp. Raises PermissionError where it lies outside of it."""
    whole = _FOLDER / path
    if ".." in whole.parts or not whole.is_relative_to(_FOLDER):
        raise PermissionError(f"{path}: only /tmp can be used")
    return str(whole.relative_to(_FOLDER))


def _with_seconds(limits: Limits, seconds: float) -> Limits:
    return Limits(**{**vars(limits), "seconds": seconds})


def _result(outcome: Outcome, limits: Limits) -> ExecResult[str]:
    if outcome.status == "time":
        raise TimeoutError(f"the command ran for more than {limits.seconds:g} seconds")
    if outcome.status == "output":
        raise OutputLimitExceededError(f"{limits.output_bytes:,} bytes", outcome.stdout)
    code = _KILLED if outcome.code is None else outcome.code
    stderr = outcome.stderr
    if outcome.status == "memory":
        stderr += f"\nended beyond {limits.memory_bytes:,} bytes of memory\n"
    return ExecResult(code == 0, code, outcome.stdout, stderr)


_opening = threading.Lock()
_opened: dict[str, Sandbox] = {}


def _shared() -> Sandbox:
    """One for this process: it bounds how many programs run at once."""
    with _opening:
        if "sandbox" not in _opened:
            _opened["sandbox"] = Sandbox.open(workers=processors())
        return _opened["sandbox"]
