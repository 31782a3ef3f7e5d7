"""The models under test: from words of a command line to a model as Inspect opens it, with endpoint and tokenizer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import HttpUrl, TypeAdapter, ValidationError

from ramerge import EndpointError, EvaluationError, __version__
from ramerge.evaluation.servers import SERVERS
from ramerge.sdk.commands import parse_scalar
from ramerge.sdk.files import no_such_folder
from ramerge.sdk.text import JsonLimits, parse, shown

if TYPE_CHECKING:
    from inspect_ai.model import ChatCompletionChoice, Model
    from inspect_ai.tool import ToolInfo
    from openai.types.chat import ChatCompletion

RECORD_FILE = "ramerge.json"
_RECORD = JsonLimits(size=32_000_000, signs=2_000_000, depth=100, name=1_000_000, digits=4300)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_NO_NAME = re.compile(r"[^A-Za-z0-9._+-]+")
_NO_KEY = "none"
_SECONDS = 30.0
_URL = TypeAdapter(HttpUrl)


@dataclass(frozen=True)
class ModelAccess:
    """Access to the models under test: an endpoint, a server that is started, or this process.

    Attributes:
        serve: of `SERVERS`, a provider of Inspect's that starts a server (or loads the model) itself; None for an
            endpoint that runs.
        arguments: of that provider, such as `tensor_parallel_size`.
        endpoint: the URL of an OpenAI-compatible endpoint, up to /v1.
        key_variable: the variable that holds the endpoint's key.

    Example:
        >>> ramerge.ModelAccess(endpoint="http://127.0.0.1:8000/v1").check()
    """

    serve: str | None = None
    arguments: Mapping[str, Any] | None = None
    endpoint: str = ""
    key_variable: str = "RAMERGE_API_KEY"

    def check(self) -> None:
        """Raise `EvaluationError` where the access makes no sense."""
        if self.serve and self.endpoint:
            raise EvaluationError("--endpoint and --serve: one of them, not both")
        if not self.serve and not self.endpoint:
            raise EvaluationError(f"say where the models run: --endpoint URL, or --serve {'|'.join(SERVERS)}")
        if self.arguments and not self.serve:
            raise EvaluationError("--serve-args: is for --serve")
        if self.endpoint:
            try:
                url = _URL.validate_python(self.endpoint)
            except ValidationError as error:
                text = error.errors()[0]["msg"]
                raise EvaluationError(
                    f"--endpoint: must be a URL such as http://127.0.0.1:8000/v1, not {self.endpoint!r} ({text})"
                ) from error
            if url.username is not None or url.password is not None:
                raise EvaluationError("--endpoint: must not hold a user or password; put the key into RAMERGE_API_KEY")

    def check_reachable(self) -> None:
        """Raise `EndpointError` where nothing answers at the endpoint's address."""
        import httpx

        if self.endpoint:
            try:
                httpx.get(f"{self.endpoint.rstrip('/')}/models", timeout=_SECONDS)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise EndpointError(f"{self.endpoint}: cannot be reached ({shown(error)})") from error


@dataclass(frozen=True)
class EvaluationTarget:
    """A model under test, as words of a command line name it.

    Attributes:
        name: the model's name in logs and tables: a letter or digit, then at most 99 letters, digits and `._+-`.
        served_name: the name by which the endpoint knows it.
        model: its folder, or its id on the hub; None where only the endpoint knows it.

    Example:
        >>> ramerge.EvaluationTarget("merged", "served-merged", "coder").folder
        PosixPath('coder')
    """

    name: str
    served_name: str
    model: str | None = None

    @property
    def folder(self) -> Path | None:
        """The folder of a model under test, where it is on this machine."""
        return Path(self.model) if self.model and Path(self.model).is_dir() else None

    @property
    def tokenizer(self) -> str | None:
        """The folder that holds the tokenizer of the model under test."""
        return str(self.folder) if self.folder and (self.folder / "tokenizer.json").is_file() else None

    def about(self) -> dict[str, object]:
        """The description of the model that its logs keep; `identity` is the same only while its weights are."""
        identity = self.model or self.served_name
        if self.folder:  # names, sizes and times of its files change with a new merge in the same place
            files = sorted(path for path in self.folder.iterdir() if path.suffix in (".safetensors", ".bin", ".json"))
            stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
            identity = hashlib.sha256(json.dumps(stats).encode()).hexdigest()
        return {
            "name": self.name,
            "model": str(self.folder.resolve()) if self.folder else self.model,
            "identity": identity,
            "record": _record(self.folder),
            "ramerge": __version__,
        }

    @contextmanager
    def opened(self, access: ModelAccess) -> Iterator[Model]:
        """Open the model in Inspect, for `run`. A server that this starts ends with the block."""
        from inspect_ai.model import get_model

        location = str(self.folder.resolve()) if self.folder else str(self.model)
        name = f"{access.serve}/{location}"
        arguments: dict[str, object] = {"host": "127.0.0.1"}
        if access.endpoint:
            name = f"openai-api/ramerge/{self.served_name}"
            arguments = {"base_url": access.endpoint, "api_key": os.environ.get(access.key_variable) or _NO_KEY}
            arguments["max_retries"] = 0  # of the client's own, in addition to Inspect's
        elif access.serve == "transformers":
            name = f"hf/{self.name if self.folder else location}"
            arguments = {"model_path": location, "tokenizer_path": location} if self.folder else {}
        model = get_model(name, memoize=False, **{**arguments, **(access.arguments or {})})
        _keep_texts(model.api)
        try:
            yield model
        finally:
            asyncio.run(model.api.aclose())


def _keep_texts(api: object) -> None:
    """Have a provider keep texts with `<think>`, which it cuts from them: rewards and protocols read it."""
    from inspect_ai.model._providers.openai_compatible import OpenAICompatibleAPI

    from ramerge.evaluation.tasks.common import AS_SENT

    if not isinstance(api, OpenAICompatibleAPI):
        return
    choices_of = api.chat_choices_from_completion

    def keeping(completion: ChatCompletion, tools: list[ToolInfo]) -> list[ChatCompletionChoice]:
        choices = choices_of(completion, tools)
        for choice, sent in zip(choices, completion.choices, strict=True):
            if "<think" in (sent.message.content or ""):
                choice.message.metadata = {**(choice.message.metadata or {}), AS_SENT: sent.message.content}
        return choices

    vars(api)["chat_choices_from_completion"] = keeping


def read_targets(models: Sequence[str], served_names: Sequence[str], *, serve: bool) -> list[EvaluationTarget]:
    """The models under test of `--model NAME=MODEL` and `--served-name`.

    Args:
        models: with an endpoint, folders add the tokenizer and the merge record.
        served_names: `SERVED`, whose last part names the logs, or `NAME=SERVED`.
        serve: whether the run starts servers itself.

    Raises:
        EvaluationError: they make no sense together, or a folder is not there.
    """
    problems = [f"--model {text}: must be NAME=FOLDER or NAME=HUB_ID" for text in models if not text.partition("=")[2]]
    pairs = [text.partition("=")[::2] for text in models]
    served = {}
    for text in served_names:
        # the name of an endpoint is often a path or a hub id: its last part names the logs
        last = _NO_NAME.sub("-", text.rstrip("/").rpartition("/")[2]).lstrip("-._+")
        name, asked = text.partition("=")[::2] if "=" in text else (last, text)
        served[name] = asked
    if serve and served:
        problems.append("--served-name: needs --endpoint; with --serve, models are served under their own names")
    if serve and not models:
        problems.append("--serve: say which models, with --model NAME=FOLDER")
    if not serve and not models and not served:
        problems.append("--endpoint: say which model, with --served-name NAME")
    if not serve and len(pairs) == 1 and len(served_names) == 1 and "=" not in served_names[0]:
        served = {pairs[0][0]: served_names[0]}  # the one model has the one name
    elif not serve and pairs and (strangers := [name for name in served if name not in dict(pairs)]):
        problems.append(
            f"--served-name {', '.join(strangers)}: is none of the models; give NAME=SERVED, with a NAME of --model"
        )
    targets = [EvaluationTarget(name, served.pop(name, name), model) for name, model in pairs]
    targets += [EvaluationTarget(name, asked) for name, asked in served.items()]
    names = [target.name for target in targets]
    problems += [f"model name {name!r}: is given twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    for target in targets:
        model = target.model
        if not _NAME.fullmatch(target.name):
            problems.append(
                f"model name {target.name!r}: names a folder of logs, so it must begin with a letter or digit and have "
                "at most a hundred letters, digits and ._+-; --model NAME=... or --served-name NAME=SERVED gives it "
                "another"
            )
        elif model and not target.folder and (model.startswith((".", "/", "~")) or model.count("/") > 1):
            problems.append(f"--model {target.name}={model}: {no_such_folder(Path(model).expanduser())}")
    if problems:
        raise EvaluationError(problems)
    return targets


def server_arguments(text: str) -> dict[str, Any]:
    """Words of a server's command line as Inspect's providers take them: `--max-model-len 2048` by name and value.

    Raises:
        EvaluationError: a word is neither an option nor the value of one.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise EvaluationError(f"--serve-args {text}: {error}") from error
    found: dict[str, str] = {}
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            found[name.replace("-", "_")] = value
        elif not found or found[name.replace("-", "_")]:
            raise EvaluationError(f"--serve-args {text}: {word!r} follows no option")
        else:
            found[name.replace("-", "_")] = word
    return {name: parse_scalar(value, f"--serve-args --{name}") if value else "" for name, value in found.items()}


def _record(folder: Path | None) -> object:
    """The base and the agents of a merge by name, from its record, for the logs; None where there is none."""
    path = folder / RECORD_FILE if folder else None
    if path is None or not path.is_file() or path.stat().st_size > _RECORD.size:
        return None
    try:
        record = parse(path.read_bytes(), _RECORD, halves="replace")
        agents = {name: str(agent["model"]) for name, agent in record["agents"].items()}
        return {"base": str(record["base"]) if record.get("base") else None, "agents": agents}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
