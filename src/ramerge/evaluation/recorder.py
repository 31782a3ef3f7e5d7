"""The `Chat` of one sample: asks with the suite's settings, and keeps what was asked and answered."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ramerge.evaluation.endpoint import Endpoint, request
from ramerge.evaluation.suite import Message, Reply, Settings
from ramerge.foundation.errors import EndpointError


@dataclass
class Recorder:
    """A `Chat` with its record, in the order of asking.

    Attributes:
        sample: names the sample, for the seeds of its requests.
    """

    endpoint: Endpoint
    model: str
    settings: Settings
    sample: str
    _calls: list[dict[str, Any] | None] = field(default_factory=list)

    @property
    def calls(self) -> list[dict[str, Any]]:
        """All requests that came to an end."""
        return [call for call in self._calls if call is not None]

    async def __call__(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        stop: Sequence[str] = (),
        max_tokens: int | None = None,
        extra_body: Mapping[str, Any] = MappingProxyType({}),
        recorded: Sequence[Message] | None = None,
    ) -> Reply:
        """See `Chat`."""
        index = len(self._calls)
        self._calls.append(None)
        seed = self._seed(index)
        body = request(
            self.model,
            messages,
            temperature=self.settings.temperature,
            top_p=self.settings.top_p,
            max_tokens=max_tokens or self.settings.max_tokens,
            seed=seed,
            stop=stop,
            tools=tools,
            extra_body={**self.settings.extra_body, **extra_body},
        )
        asked = {"messages": list(messages if recorded is None else recorded), "seed": seed}
        try:
            reply = await self.endpoint.complete(body)
        except EndpointError as error:
            self._calls[index] = {**asked, "failure": str(error), "prompt_tokens": 0, "completion_tokens": 0}
            raise
        self._calls[index] = {**asked, **_answered(reply)}
        return reply

    def _seed(self, index: int) -> int | None:
        """One of its own for every request, the same in every run."""
        if self.settings.seed is None:
            return None
        text = f"{self.settings.seed}/{self.sample}/{index}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def _answered(reply: Reply) -> dict[str, Any]:
    return {
        "output": reply.text,
        **({"tool_calls": [list(each) for each in reply.tool_calls]} if reply.tool_calls else {}),
        "finish_reason": reply.finish_reason,
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "seconds": round(reply.seconds, 4),
    }
