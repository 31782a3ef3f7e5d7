"""Replies of candidates, from the model in memory, or from a server that loads one merge after another."""

from __future__ import annotations

import json
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ramerge import EndpointError, InputError, Plan
from ramerge.calibration.exchanges import Exchange
from ramerge.calibration.live_base import LiveBase
from ramerge.calibration.prompts import Prompt
from ramerge.calibration.record import CalibrationSettings
from ramerge.calibration.rewards import reward_of
from ramerge.core.foundation.signals import raise_dropped
from ramerge.scoring.serving import SERVED_NAME, KeptServer, ModelServer, RunningServer
from ramerge.sdk.text import shown
from ramerge.searches.folder import Folder

if TYPE_CHECKING:
    from ramerge.calibration.speaker import Speaker

Keep = Callable[[Sequence[Exchange]], None]
"""A function that receives replies as soon as they exist."""
_SECONDS_TO_END = 2.0  # from a connection that breaks to the end of the server's process


@dataclass
class Replier(ABC):
    """Generates greedy replies of one candidate after another, to prompts encoded as for their agent.

    Attributes:
        live: the base in memory, with the tokenizers of agents.
        settings: the settings of the agents' replies, and the reward function.
    """

    live: LiveBase
    settings: CalibrationSettings

    @abstractmethod
    def put(self, plan: Plan) -> None:
        """Load a merge as the model that replies."""

    @abstractmethod
    def ask(self, agent: str, prompts: Sequence[Prompt], keep: Keep) -> None:
        """Generate a reply to each prompt of an agent."""

    def close(self) -> None:  # noqa: B027  # the model in memory is closed by the search
        """End the model or server."""

    def _speaker(self, agent: str) -> Speaker:
        module: Any = import_module("ramerge.calibration.speaker")  # torch takes seconds
        speaker: Speaker = module.Speaker(agent, self.live.live, self.live.tokenizer_of(agent), self.settings.max_new)
        return speaker


class LiveReplier(Replier):
    """Replies from the model in memory."""

    @override
    def put(self, plan: Plan) -> None:
        self.live.put(plan)

    @override
    def ask(self, agent: str, prompts: Sequence[Prompt], keep: Keep) -> None:
        module: Any = import_module("ramerge.calibration.gather")
        reward = reward_of(self.settings.reward)
        module.exchanges_of(self._speaker(agent), prompts, {}, self.settings.batch, reward, keep)


@dataclass(frozen=True)
class _PromptRequest:
    """A prompt in the form of a server request.

    Attributes:
        ids: token ids of the prompt.
        truncated: whether ids were cut off.
        most: the most tokens of the reply.
        ends: ids of the tokens that end a reply.
        pad: the id of the token that fills shorter sequences of a batch.
    """

    ids: list[int]
    truncated: bool
    most: int
    ends: tuple[int, ...]
    pad: int


class ServedReplier(Replier):
    """Replies from a server, which loads each candidate from the folder of the search.

    Prompts are sent as token ids; `transformers serve`, which takes no ids, gets text that encodes to them. The model
    in memory encodes the prompts and is then unloaded, because the server needs the memory.

    Args:
        live, settings: as for every replier.
        prompts: the prompts of each agent.
        server: the settings of the server.
        concurrency: the number of concurrent requests.
        folder: the folder of the search.
    """

    def __init__(
        self,
        live: LiveBase,
        settings: CalibrationSettings,
        prompts: Mapping[str, Sequence[Prompt]],
        server: ModelServer,
        concurrency: int,
        folder: Folder,
    ) -> None:
        super().__init__(live, settings)
        self._prompts, self._kind, self._folder = prompts, server.kind, folder
        self._seconds = server.timeout
        self._connections = 1 if server.is_sequential else concurrency
        self._server = KeptServer(server, folder.root / SERVED_NAME, folder.root / "server.log")
        self._requests: dict[tuple[str, str], _PromptRequest] = {}
        self._running: RunningServer | None = None
        self._tokenizer: Any = None

    @override
    def put(self, plan: Plan) -> None:
        if not self._requests:
            self._requests = self._encode_requests()
            self.live.unload()
        plan.merge(self._folder.candidate)
        module: Any = import_module("ramerge.calibration.live")
        self._tokenizer = module.load_tokenizer(self._folder.candidate)
        self._running = self._server.load(self._folder.candidate)

    def _encode_requests(self) -> dict[tuple[str, str], _PromptRequest]:
        """Return the requests, by agent and key of the prompt."""
        speakers = {agent: self._speaker(agent) for agent in self._prompts}
        return {
            (agent, prompt.key): _encode_request(speakers[agent], prompt)
            for agent, prompts in self._prompts.items()
            for prompt in prompts
        }

    @override
    def ask(self, agent: str, prompts: Sequence[Prompt], keep: Keep) -> None:
        reward = reward_of(self.settings.reward)
        assert reward is not None and self._running is not None  # what scores replies; `put` comes first
        pool = ThreadPoolExecutor(self._connections)
        try:
            requests = {
                pool.submit(_served_answer, self._running, self._request_body(prompt, request), self._seconds): (
                    prompt,
                    request,
                )
                for prompt in prompts
                for request in [self._requests[agent, prompt.key]]
            }
            for answer in as_completed(requests):
                raise_dropped()
                prompt, request = requests[answer]
                exchange = self._make_exchange(prompt, request, *answer.result())
                keep([replace(exchange, reward=reward(prompt, exchange.text))])
        finally:
            pool.shutdown(cancel_futures=True)

    @override
    def close(self) -> None:
        self._server.close()

    def _request_body(self, prompt: Prompt, request: _PromptRequest) -> dict[str, object]:
        """The fields of a request for a greedy reply, which override the model's own generation configuration."""
        fields: dict[str, object]
        if self._kind == "transformers":
            generation = {"do_sample": False, "eos_token_id": list(request.ends) or None, "pad_token_id": request.pad}
            fields = {"prompt": self._server_text(prompt, request), "generation_config": json.dumps(generation)}
        else:
            greedy = {"temperature": 0, "repetition_penalty": 1.0}
            fields = {"prompt": request.ids, "stop_token_ids": list(request.ends), **greedy}
        return {"max_tokens": request.most, **fields}

    def _make_exchange(self, prompt: Prompt, request: _PromptRequest, text: str, has_ended: bool) -> Exchange:
        """Make an exchange from a reply's text, which is encoded to token ids."""
        ids = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        if has_ended or not ids:
            ids.append((*request.ends, request.pad)[0])
        return Exchange(
            prompt.place,
            (*request.ids, *ids),
            len(request.ids),
            text,
            truncated=request.truncated,
            ended=has_ended,
            key=prompt.key,
        )

    def _server_text(self, prompt: Prompt, request: _PromptRequest) -> str:
        """Return text that the candidate's tokenizer encodes to the prompt's ids, perhaps after a special token."""
        for start in (0, 1):
            text = str(self._tokenizer.decode(request.ids[start:], clean_up_tokenization_spaces=False))
            if list(self._tokenizer(text)["input_ids"]) == request.ids:
                return text
        raise InputError(
            f"{prompt.place}: transformers serve takes texts, and none gives the tokens of this prompt; use another "
            "server, or --no-generate, which chooses by mass alone"
        )


def _encode_request(speaker: Speaker, prompt: Prompt) -> _PromptRequest:
    """Encode a prompt as for its agent."""
    question = speaker.question(prompt)
    if isinstance(question, str):
        raise InputError(f"{prompt.place}: {question}")
    ids, is_cut = question
    return _PromptRequest(ids, is_cut, speaker.most_for(ids), speaker.ends, speaker.pad)


def _served_answer(server: RunningServer, body: Mapping[str, object], seconds: float) -> tuple[str, bool]:
    """Return the text of a server's reply, and whether the reply ended by itself."""
    import httpx

    try:
        answer = httpx.post(
            f"{server.url}/completions", json={"model": server.model, **body}, timeout=seconds, trust_env=False
        )
        answer.raise_for_status()
        choice = answer.json()["choices"][0]
        return str(choice["text"]), choice["finish_reason"] == "stop"
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(_SECONDS_TO_END)
        reason = f"{type(error).__name__}: {shown(str(error), 300)}"
        raise EndpointError(f"{server.log}: {server.cause()} ({reason})") from error
