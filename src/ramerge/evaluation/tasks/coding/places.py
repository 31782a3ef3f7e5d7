"""Where programs of models run: in bubblewrap, or in any other sandbox of Inspect's."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Protocol

from inspect_ai.util import OutputLimitExceededError, SandboxEnvironment, sandbox

from ramerge.evaluation.sandbox.execution import Outcome
from ramerge.evaluation.sandbox.provider import BubblewrapSandbox
from ramerge.evaluation.sandbox.watch import Limits

_PAIR = Path(__file__).with_name("pair.py").read_text(encoding="utf-8")


class Programs(Protocol):
    """Runs Python programs; see `BubblewrapSandbox`, which is one."""

    async def run(self, program: str, stdin: str = "", limits: Limits | None = None) -> Outcome:
        """Run a program to its end or to a limit."""

    async def converse(self, asking: str, answering: str, limits: Limits | None = None) -> tuple[Outcome, Outcome]:
        """Run two programs, each of which reads what the other one prints."""


def programs() -> Programs:
    """What runs programs of the sample that is scored."""
    environment = sandbox()
    if isinstance(environment, BubblewrapSandbox):
        return environment
    return OtherSandbox(environment)


class OtherSandbox:
    """Programs in docker, or what else the user chose, whose own limits hold besides the one on time."""

    def __init__(self, environment: SandboxEnvironment) -> None:
        self._environment = environment

    async def run(self, program: str, stdin: str = "", limits: Limits | None = None) -> Outcome:
        file = await self._written(program)
        return await self._executed(["python3", file], stdin, limits or Limits())

    async def converse(self, asking: str, answering: str, limits: Limits | None = None) -> tuple[Outcome, Outcome]:
        # both are in one container; where that is root's, the second one becomes another user
        files = [await self._written(each) for each in (_PAIR, asking, answering)]
        outcome = await self._executed(["python3", *files], "", limits or Limits())
        return outcome, Outcome("ok", 0, "", "")

    async def _written(self, program: str) -> str:
        name = f"{uuid.uuid4().hex}.py"
        await self._environment.write_file(name, program.encode("utf-8", errors="surrogatepass"))
        return name

    async def _executed(self, command: list[str], stdin: str, limits: Limits) -> Outcome:
        try:
            done = await self._environment.exec(
                command, input=stdin, timeout=max(1, round(limits.seconds)), timeout_retry=False
            )
        except TimeoutError:
            return Outcome("time", None, "", "")
        except OutputLimitExceededError:
            return Outcome("output", None, "", "")
        except UnicodeDecodeError as error:
            return Outcome("error", None, "", str(error))
        return Outcome("ok" if done.success else "error", done.returncode, done.stdout, done.stderr)
