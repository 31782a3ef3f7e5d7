"""Access to models by an endpoint or a server that ramerge starts; their chat templates and generation settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramerge import EndpointError, EvaluationError
from ramerge.scoring.serving import SERVERS, ModelServer, RunningServer
from ramerge.sdk.text import JsonLimits, read_object, shown

_FILE = JsonLimits(size=32_000_000, signs=2_000_000, depth=100)
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
_SECONDS = 30.0


@dataclass(frozen=True)
class ModelAccess:
    """Access to the models under test: an endpoint, or a server that ramerge starts.

    Attributes:
        server: the settings of a server to start for each model, or a server that a search keeps running; None
            for your own endpoint.
        endpoint: the URL of an OpenAI-compatible endpoint, up to /v1.
        key_variable: the environment variable that holds the endpoint's key.

    Example:
        >>> ramerge.ModelAccess(endpoint="http://127.0.0.1:8000/v1").check()
    """

    server: ModelServer | RunningServer | None = None
    endpoint: str = ""
    key_variable: str = "RAMERGE_API_KEY"

    @property
    def settings(self) -> ModelServer | None:
        """The settings of the server that ramerge starts; None for an endpoint."""
        return self.server.settings if isinstance(self.server, RunningServer) else self.server

    def check(self) -> None:
        """Raise `EvaluationError` if the settings contradict each other."""
        if self.server and self.endpoint:
            raise EvaluationError("--endpoint and --serve: one of them, not both")
        if not self.server and not self.endpoint:
            raise EvaluationError(f"say where the models run: --endpoint URL, or --serve {'|'.join(SERVERS)}")
        if isinstance(self.server, ModelServer) and (problems := self.server.check()):
            raise EvaluationError(problems)
        if self.endpoint:
            from pydantic import HttpUrl, TypeAdapter, ValidationError  # `ramerge --help` must not wait for it

            try:
                url = TypeAdapter(HttpUrl).validate_python(self.endpoint)
            except ValidationError as error:
                text = error.errors()[0]["msg"]
                raise EvaluationError(
                    f"--endpoint: must be a URL such as http://127.0.0.1:8000/v1, not {self.endpoint!r} ({text})"
                ) from error
            if url.username is not None or url.password is not None:
                raise EvaluationError("--endpoint: must not hold a user or password; put the key into RAMERGE_API_KEY")

    def check_reachable(self) -> None:
        """Raise `EndpointError` if nothing answers at the endpoint's address."""
        import httpx

        if self.endpoint:
            try:
                httpx.get(f"{self.endpoint.rstrip('/')}/models", timeout=_SECONDS)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise EndpointError(f"{self.endpoint}: cannot be reached ({shown(error)})") from error

    def is_raw(self, folder: Path | None) -> bool:
        """Whether to send prompts without a chat template: to ramerge's own server, for a model folder without a
        template.
        """
        settings = self.settings
        if settings is None or folder is None:
            return False
        has_own = any(word.partition("=")[0] == "--chat-template" for word in settings.arguments)
        return not has_own and not has_chat_template(folder)


def generation_defaults(folder: Path) -> Mapping[str, object]:
    """Read a model's generation settings as transformers does: from `generation_config.json`, if there is one.

    Otherwise, only the special tokens in `config.json` are settings.

    Raises:
        EvaluationError: a file cannot be read, or is not a JSON object.
    """
    path = folder / "generation_config.json"
    if path.is_file():
        return _read_object(path)
    config = _read_object(folder / "config.json")
    return {name: config[name] for name in _TOKENS if name in config}


def has_chat_template(folder: Path) -> bool:
    """Whether the tokenizer in a folder has a chat template.

    Raises:
        EvaluationError: a file cannot be read, or is not a JSON object.
    """
    paths = [path for name in ("tokenizer_config.json", "chat_template.json") if (path := folder / name).is_file()]
    return (folder / "chat_template.jinja").is_file() or any(_read_object(path).get("chat_template") for path in paths)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        return read_object(path, _FILE)
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path}: {shown(error)}") from error
