"""The model that tasks query: raw prompts if it has no chat template, sampling, failures with a cause."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from inspect_ai._util.notgiven import NOT_GIVEN, NotGiven
from inspect_ai.model import CachePolicy, ChatMessage, GenerateConfig, Model, ModelAPI, ModelOutput
from inspect_ai.model._generate_config import active_generate_config
from inspect_ai.model._stream import StreamHandler
from inspect_ai.tool import Tool, ToolChoice, ToolDef, ToolInfo, ToolSource
from inspect_ai.util import LimitExceededError
from openai import APIStatusError

from ramerge import EndpointError, EvaluationError
from ramerge.scoring.serving import RunningServer
from ramerge.sdk.text import shown
from ramerge_eval.samples import NO_REQUEST

MOST_ALIKE = 5
"""Consecutive requests that fail for the same reason before no further requests are sent."""

_VARIABLE = re.compile(r"[0-9a-f]{8,}|\d+")
_MOST_CHARACTERS = 1000
_SERVER_ERROR = 500


class ServedModel(Model):
    """A model at an endpoint, in place of Inspect's own class.

    Args:
        api: Inspect's provider.
        model_args: arguments for Inspect's logs.
        name: the name of the model, for messages.
        server: the server that ramerge started for it; None for the user's own endpoint.
        is_raw: whether to send prompts without a template, because the model has no chat template.
        defaults: the generation settings in the model's own files, for a server that samples only on request; None for
            other servers.
    """

    def __init__(
        self,
        api: ModelAPI,
        model_args: dict[str, Any],
        *,
        name: str,
        server: RunningServer | None = None,
        is_raw: bool = False,
        defaults: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(api, GenerateConfig(), model_args)
        self._target = name
        self._server = server
        self._is_raw = is_raw
        self._defaults = defaults
        self._failure = ""
        self._alike = 0

    async def generate(
        self,
        input: str | list[ChatMessage],  # Inspect's name
        tools: Sequence[Tool | ToolDef | ToolInfo | ToolSource] | ToolSource = (),
        tool_choice: ToolChoice | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 - Inspect's default, which nothing changes
        cache: bool | CachePolicy | NotGiven = NOT_GIVEN,
        on_stream: StreamHandler | None = None,
    ) -> ModelOutput:
        """Query the model, unless its last requests all failed for the same reason.

        Raises:
            EndpointError: no answer, after all retries; with the cause from the server's log.
            EvaluationError: the model has no chat template, and the prompt is a chat.
        """
        if self._alike >= MOST_ALIKE:
            raise EndpointError(f"{NO_REQUEST}, because {self._alike} requests in a row failed: {self._failure}")
        try:
            if self._is_raw and not (isinstance(input, str) or is_text(input)):
                raise EvaluationError(no_template(self._target, [each.role for each in input]))
            config = config.merge(GenerateConfig(extra_body=self._body(config)))
            output = await super().generate(input, tools, tool_choice, config, cache, on_stream)
        except LimitExceededError:
            raise
        except EvaluationError as error:
            self._count(str(error))
            raise
        except Exception as error:  # whatever a provider raises after its retries
            cause = error.__cause__ or error  # Inspect puts the whole request in front of it
            text = f"{type(cause).__name__}: {shown(str(cause), _MOST_CHARACTERS)}"
            self._count(text)
            server = self._server
            # the cause first, because summaries of logs cut long texts
            raise EndpointError(f"{server.log}: {server.cause()} ({text})" if server else text) from error
        self._count(output.error or ("" if output.choices else "the answer holds no choice"))
        return output

    def should_retry(self, ex: BaseException) -> bool:
        """Whether to send a failed request again: not if ramerge's own server has ended, or its program failed."""
        is_server_error = isinstance(ex, APIStatusError) and ex.status_code == _SERVER_ERROR
        if self._server is not None and (is_server_error or self._server.process.poll() is not None):
            return False
        return super().should_retry(ex)

    def _count(self, failure: str) -> None:
        """Count consecutive failures for the same reason; an answer resets the count."""
        is_alike = failure and _VARIABLE.sub("", failure) == _VARIABLE.sub("", self._failure)
        self._alike = self._alike + 1 if is_alike else int(bool(failure))
        self._failure = failure

    def _body(self, config: GenerateConfig) -> dict[str, object] | None:
        """Further fields of a request. `transformers serve` ignores a temperature unless sampling is requested."""
        whole = active_generate_config().merge(config)
        if self._defaults is None or not whole.temperature:
            return whole.extra_body
        sampling = {"top_k": 0, **self._defaults, "do_sample": True}
        if whole.top_k is not None:
            sampling["top_k"] = whole.top_k
        return {"generation_config": json.dumps(sampling), **(whole.extra_body or {})}


def is_text(messages: Sequence[ChatMessage]) -> bool:
    """Whether a prompt is one user message, as a model without a chat template requires."""
    return [each.role for each in messages] == ["user"]


def no_template(name: str, roles: Sequence[str]) -> str:
    """Return the sentence that refuses a chat for a model without a chat template."""
    return (
        f"{name}: has no chat template, so it gets prompts as they are, and one is a chat ({', '.join(roles)}): add a "
        "chat_template.jinja to its folder, or choose a task whose prompts are texts"
    )
