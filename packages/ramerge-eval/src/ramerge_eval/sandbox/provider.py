"""The sandbox `bubblewrap` as a provider of Inspect: a /tmp for each sample, and new namespaces for each command."""

from __future__ import annotations

import asyncio
from pathlib import PurePosixPath
from typing import Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    sandboxenv,
)
from pydantic import BaseModel

from ramerge import EvaluationError
from ramerge_eval.sandbox import execution
from ramerge_eval.sandbox.execution import Command, Outcome, open_sandbox
from ramerge_eval.sandbox.watch import Limits

_FOLDER = PurePosixPath("/tmp")
_KILL_CODE = 137


@sandboxenv(name="bubblewrap")
class BubblewrapSandbox(SandboxEnvironment):
    """The sandbox of a sample: a /tmp that lasts as long as the sample, and is all that commands can write to.

    Every command starts with the files that the previous command left, but without its processes: none outlives it.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits
        self._files: dict[str, bytes] = {}

    async def run(self, program: str, stdin: str = "", limits: Limits | None = None) -> Outcome:
        """Run a Python program that shares nothing with others, not even /tmp; see `execution.run`."""
        return await execution.run(open_sandbox(), program, stdin, limits or self.limits)

    async def converse(self, asking: str, answering: str, limits: Limits | None = None) -> tuple[Outcome, Outcome]:
        """Run two programs, each of which reads what the other prints; see `execution.converse`."""
        return await execution.converse(open_sandbox(), asking, answering, limits or self.limits)

    @classmethod
    def config_deserialize(cls, config: dict[str, object]) -> BaseModel:
        """Read the limits of the sandbox from a log."""
        return Limits(**config)

    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        """Raise `EvaluationError` if no sandbox is available, with what is missing."""
        await asyncio.to_thread(open_sandbox)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Make the sandbox of a sample; it needs memory only for its files."""
        if config is not None and not isinstance(config, Limits):
            raise EvaluationError(f"the sandbox bubblewrap: takes limits (sandbox.watch.Limits), not {config!r}")
        return {"default": cls(config or Limits())}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Do nothing, because nothing outlives a command."""

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
        """Run a command in the sandbox's /tmp; Python is the only program there.

        Raises:
            TimeoutError: the command took longer than `timeout`, or than the sandbox allows.
            OutputLimitExceededError: the command printed more than the sandbox allows.
            PermissionError: the command asks for another user, or a folder outside /tmp.
        """
        if user is not None:
            raise PermissionError(f"user {user!r}: programs in bubblewrap run as a user that nothing else is")
        folder = str(_FOLDER / _inside(cwd or "."))
        limits = self.limits if timeout is None else self.limits.model_copy(update={"seconds": timeout})
        outcome = await execution.run(open_sandbox(), Command(cmd, env or {}, folder, self._files), input or "", limits)
        self._files = dict(outcome.files)
        if outcome.status == "time":
            raise TimeoutError(f"the command ran for more than {limits.seconds:g} seconds")
        if outcome.status == "output":
            raise OutputLimitExceededError(f"{limits.output_bytes:,} bytes", outcome.stdout)
        code = _KILL_CODE if outcome.code is None else outcome.code
        beyond = f"\nended beyond {limits.memory_bytes:,} bytes of memory\n" if outcome.status == "memory" else ""
        return ExecResult(code == 0, code, outcome.stdout, outcome.stderr + beyond)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Put a file into the sandbox's /tmp.

        Raises:
            PermissionError: the file is outside of /tmp, or takes more than the disk has left.
            IsADirectoryError: the path is a folder with files.
        """
        path = _inside(file)
        content = contents.encode() if isinstance(contents, str) else contents
        if self._is_folder(path):
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
        """Read a file of the sandbox's /tmp, as the last command left it.

        Raises:
            FileNotFoundError: the file does not exist.
            IsADirectoryError: the path is a folder.
            PermissionError: the file is outside of /tmp.
            UnicodeDecodeError: text is requested, and the file is not text.
        """
        path = _inside(file)
        if path not in self._files:
            raise IsADirectoryError(file) if self._is_folder(path) else FileNotFoundError(file)
        content = self._files[path]
        return content.decode() if text else content

    def _is_folder(self, path: str) -> bool:
        return path == "." or any(name.startswith(f"{path}/") for name in self._files)


def _inside(path: str) -> str:
    """Return a path relative to the sandbox's /tmp. Raises PermissionError if it is outside of /tmp."""
    whole = _FOLDER / path
    if ".." in whole.parts or not whole.is_relative_to(_FOLDER):
        raise PermissionError(f"{path}: only /tmp can be used")
    return str(whole.relative_to(_FOLDER))
