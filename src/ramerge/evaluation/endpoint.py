"""An OpenAI-compatible endpoint: one request, its retries, and distrust of what comes back.

The client library does connections, time-outs and retries. Answers are read as plain JSON and checked here, because
every server fills the format a little differently and some say rubbish.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ramerge.evaluation import bounds
from ramerge.evaluation.suite import Message, Reply
from ramerge.foundation.errors import EndpointError, EvaluationError
from ramerge.foundation.text import clean, shown

if TYPE_CHECKING:
    from openai import AsyncOpenAI

KEY = "RAMERGE_API_KEY"
_MOST_CHARACTERS = 4_000_000
_PING_SECONDS = 5.0
_CONNECT_SECONDS = 10.0
_BACKOFF_SECONDS = 10.0
_SHORTEST_SECRET = 6
_MOST_TOKENS = 1 << 53


@dataclass(frozen=True)
class EndpointAccess:
    """How to reach an OpenAI-compatible endpoint.

    Attributes:
        url: the address up to and with `/v1`.
        key_variable: the environment variable that holds the key; the key itself is never kept.
        timeout: seconds that one request may take.
        retries: further tries after time-outs, dropped connections and answers 408, 409, 429 and 5xx.
        concurrency: requests under way at once.
        most_bytes: of an answer, unpacked; longer ones are failed requests.
    """

    url: str
    key_variable: str = KEY
    timeout: float = 600.0
    retries: int = 4
    concurrency: int = 32
    most_bytes: int = bounds.MOST_BYTES


class GoneError(EndpointError):
    """No further request makes sense: the endpoint is gone, refuses the key or does not know the model."""


class Endpoint:
    """An open endpoint, for the length of an `async with`."""

    def __init__(self, access: EndpointAccess) -> None:
        self.access = access
        self.stopped: GoneError | None = None
        self._slots = asyncio.Semaphore(access.concurrency)
        self._client: AsyncOpenAI
        self._secret = ""

    async def __aenter__(self) -> Endpoint:
        import openai

        from ramerge.evaluation.client import BoundedClient

        key = self._key()
        self._client = openai.AsyncOpenAI(
            base_url=self.access.url,
            api_key=key,
            timeout=openai.Timeout(self.access.timeout, connect=_CONNECT_SECONDS),
            max_retries=self.access.retries,
            # its own transport takes three times as long a request when dozens are under way
            http_client=BoundedClient(self.access.most_bytes, trust_env=not _is_local(self.access.url)),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    def _key(self) -> str:
        variable = self.access.key_variable
        if variable != KEY and variable not in os.environ:
            raise EvaluationError(f"--key-env {variable}: there is no such environment variable")
        key = os.environ.get(variable, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise EvaluationError(f"{variable}: holds characters that no key has")
        self._secret = key
        return key or "none"

    async def check(self, model: str) -> None:
        """Make sure that something answers and, where it lists its models, that this one is among them.

        Raises:
            GoneError: nothing answers, the key is refused, or the model is not served.
        """
        served = await self._served()
        if served and model not in served:
            names = ", ".join(shown(name) for name in served[:20]) + (", ..." if len(served) > 20 else "")
            raise GoneError(f"{self.access.url}: does not serve {model!r}; it serves {names}; see --served-name")

    async def _served(self) -> list[str]:
        """Names of the models that the endpoint lists; none where it keeps no list."""
        import openai
        from aiohttp import ClientError

        try:
            answer = bounds.read_json((await self._get_models()).encode(), bounds.ANSWER)
        except (openai.APIConnectionError, TimeoutError, ClientError) as error:
            raise GoneError(f"{self.access.url}: cannot be reached ({_reason(error)})") from error
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise GoneError(self._refused(error)) from error
        except (openai.OpenAIError, bounds.RefusedError, ValueError):
            return []
        listed = answer.get("data") if isinstance(answer, dict) else None
        names = [each.get("id") for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        return [name for name in names if isinstance(name, str)]

    async def _get_models(self) -> str:
        from anyio import fail_after

        client = self._client.with_options(max_retries=1, timeout=_PING_SECONDS)
        with fail_after(3 * _PING_SECONDS):
            return await client.get("/models", cast_to=str)

    async def complete(self, body: Mapping[str, Any]) -> Reply:
        """One chat completion.

        Args:
            body: the request, as the API's reference has it, without streaming.

        Raises:
            GoneError: this and every later request cannot work.
            EndpointError: this one failed after all retries, or its answer is no chat completion.
        """
        async with self._slots:
            if self.stopped:
                raise self.stopped
            began = time.monotonic()
            answer = parsed(await self._post(body))
            return read(answer, time.monotonic() - began)

    async def _post(self, body: Mapping[str, Any]) -> str:
        import openai
        from aiohttp import ClientError
        from anyio import fail_after

        try:
            # the client's time-out is for silence; a server that sends byte by byte would never meet it
            longest = (self.access.timeout + _BACKOFF_SECONDS) * (1 + self.access.retries)
            with fail_after(longest):
                return await self._client.post("/chat/completions", cast_to=str, body=dict(body))
        except TimeoutError as error:
            raise EndpointError(f"no complete answer within {longest:g} seconds") from error
        except ClientError as error:  # what the transport does not translate, such as a broken status line
            raise EndpointError(f"answered with something that is no HTTP: {_reason(error)}") from error
        except openai.APIConnectionError as error:
            if not (_is_silence(error) or await self._is_there()):
                raise self._stop(f"{self.access.url}: does not answer any more ({_reason(error)})") from error
            raise EndpointError(f"no answer: {_reason(error)}") from error
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise self._stop(self._refused(error)) from error
        except openai.NotFoundError as error:
            raise self._stop(
                f"{self.access.url}: does not know {body['model']!r}, or its address is another (it ends with /v1): "
                f"{self._said(error)}"
            ) from error
        except openai.APIStatusError as error:
            raise EndpointError(f"answered {error.status_code}: {self._said(error)}") from error
        except openai.OpenAIError as error:
            raise EndpointError(f"no answer that can be used: {_reason(error)}") from error

    async def _is_there(self) -> bool:
        """Whether anything at all answers, after a request found nobody."""
        import openai
        from aiohttp import ClientError

        try:
            await self._get_models()
        except TimeoutError:
            return True
        except (openai.APIConnectionError, ClientError) as error:
            return _is_silence(error)
        except (openai.OpenAIError, bounds.RefusedError):
            return True
        return True

    def _stop(self, text: str) -> GoneError:
        self.stopped = self.stopped or GoneError(text)
        return self.stopped

    def _said(self, error: Any) -> str:
        """What the server says is wrong, in its own words where it has some, without the key that it may say back."""
        body = error.body
        if isinstance(body, Mapping):
            body = body.get("message") or body.get("detail") or dict(body)
        text = str(body or error.message)
        where = error.response.headers.get("location")
        text += f" (to {where})" if where else ""
        return shown(text.replace(self._secret, "...") if len(self._secret) >= _SHORTEST_SECRET else text)

    def _refused(self, error: Any) -> str:
        return (
            f"{self.access.url}: refuses the key ({error.status_code}: {self._said(error)}); "
            f"it is taken from the environment variable {self.access.key_variable}"
        )


def parsed(body: str) -> Any:
    """The JSON of an answer.

    Raises:
        EndpointError: it is no JSON, or beyond the bounds.
    """
    try:
        return bounds.read_json(body.encode(), bounds.ANSWER)
    except ValueError as error:
        raise EndpointError(f"answered with a text that {error}: {shown(body) or 'nothing'}") from error


def read(answer: Any, seconds: float) -> Reply:
    """The reply in a server's answer.

    Raises:
        EndpointError: it is no chat completion.
    """
    try:
        choice = answer["choices"][0]
        message = choice["message"]
        content, calls = message.get("content"), message.get("tool_calls") or []
        text = clean(_text(content))
        tool_calls = tuple((clean(call["function"]["name"]), _arguments(call)) for call in calls)
        finish_reason = choice.get("finish_reason")
        usage = answer.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        prompt, completion = (_count(usage.get(f"{part}_tokens")) for part in ("prompt", "completion"))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise EndpointError(f"answered with something that is no chat completion: {shown(answer)}") from error
    if len(text) > _MOST_CHARACTERS:
        raise EndpointError(f"answered {len(text):,} characters, more than {_MOST_CHARACTERS:,}")
    reason = finish_reason if isinstance(finish_reason, str) else None
    return Reply(text, tool_calls, reason, prompt, completion, seconds)


def _text(content: object) -> str:
    """Content is text, nothing, or a list of parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part["text"]) for part in content if part.get("type") == "text")
    raise TypeError(type(content).__name__)


def _arguments(call: Mapping[str, Any]) -> str:
    """Some servers send the arguments of a call as an object, not as its text."""
    arguments = call["function"].get("arguments")
    return clean(arguments if isinstance(arguments, str) else json.dumps(arguments or {}))


def _count(value: object) -> int:
    return value if type(value) is int and 0 < value < _MOST_TOKENS else 0


def _is_local(url: str) -> bool:
    """Whether it is this machine, which no proxy leads to."""
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def _is_silence(error: BaseException) -> bool:
    """Whether somebody is there who says nothing in time."""
    return type(error.__cause__).__name__ == "ReadTimeout"


def _reason(error: BaseException) -> str:
    """The innermost cause of a failed connection, which is the one with a name."""
    while error.__cause__ is not None:
        error = error.__cause__
    return shown(str(error) or type(error).__name__)


def request(
    model: str,
    messages: Sequence[Message],
    *,
    temperature: float,
    top_p: float,
    max_tokens: int,
    seed: int | None = None,
    stop: Sequence[str] = (),
    tools: Sequence[Mapping[str, Any]] = (),
    extra_body: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The body of a chat completion, without keys that say nothing, since not every server takes them all.

    A key of `extra_body` replaces ours; one that is null there is left out.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": list(messages),
        "temperature": temperature,
        "top_p": top_p,
        "max_tokens": max_tokens,
    }
    optional = {"seed": seed, "stop": list(stop) or None, "tools": list(tools) or None}
    return {key: value for key, value in (body | optional | dict(extra_body or {})).items() if value is not None}
