"""The models under test: makes models for Inspect from command-line arguments, with endpoint and tokenizer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramerge import EvaluationError, ModelAccess, ModelServer, __version__
from ramerge.scoring.access import generation_defaults
from ramerge.scoring.serving import serving
from ramerge.sdk.files import no_such_folder
from ramerge.sdk.options import missing
from ramerge.sdk.text import JsonLimits, parse

if TYPE_CHECKING:
    from inspect_ai.model import ChatCompletionChoice, Model
    from inspect_ai.tool import ToolInfo
    from openai.types.chat import ChatCompletion

RECORD_FILE = "ramerge.json"
_RECORD = JsonLimits(size=32_000_000, signs=2_000_000, depth=100, name=1_000_000, digits=4300)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_NO_NAME = re.compile(r"[^A-Za-z0-9._+-]+")
_NO_KEY = "none"
_LOADING = ("--device", "--dtype")
"""Arguments for `transformers serve` that also apply to a model in this process."""


@dataclass(frozen=True)
class EvaluationTarget:
    """A model under test, as given on the command line.

    Attributes:
        name: the model's name in logs and tables: a letter or digit, then at most 99 letters, digits and `._+-`.
        served_name: the endpoint's name for the model.
        model: its folder, or its id on the hub; None if only the endpoint knows it.

    Example:
        >>> ramerge_eval.EvaluationTarget("merged", "served-merged", "coder").folder
        PosixPath('coder')
    """

    name: str
    served_name: str
    model: str | None = None

    @property
    def folder(self) -> Path | None:
        """The folder of a model under test, if it is on this machine."""
        return Path(self.model) if self.model and Path(self.model).is_dir() else None

    @property
    def tokenizer(self) -> str | None:
        """The folder with the tokenizer of the model under test, if any."""
        return str(self.folder) if self.folder and (self.folder / "tokenizer.json").is_file() else None

    def about(self) -> dict[str, object]:
        """Describe the model for its logs; `identity` changes when its weights change."""
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

    @property
    def location(self) -> str:
        """The model's location for a server: its folder, or its id on the hub."""
        return str(self.folder.resolve()) if self.folder else str(self.model)

    @contextmanager
    def opened(self, access: ModelAccess, log: Path) -> Iterator[Model]:
        """Open the model in Inspect, for `run`. A server that this starts prints to `log`, and ends with the block."""
        from inspect_ai.model import get_model

        from ramerge_eval.served_model import ServedModel

        with ExitStack() as stack:
            server = access.server
            if isinstance(server, ModelServer):
                log.parent.mkdir(parents=True, exist_ok=True)
                server = stack.enter_context(serving(server, self.location, self.name, log))
            is_raw = access.is_raw(self.folder)
            model = get_model(
                f"openai-api{'-completions' if is_raw else ''}/ramerge/{server.model if server else self.served_name}",
                base_url=server.url if server else access.endpoint,
                api_key=(None if server else os.environ.get(access.key_variable)) or _NO_KEY,
                memoize=False,
                max_retries=0,  # of the client's own, in addition to Inspect's
            )
            _keep_texts(model.api)
            samples = server is not None and server.settings.kind == "transformers" and self.folder is not None
            stack.callback(lambda: asyncio.run(model.api.aclose()))
            yield ServedModel(
                model.api,
                model.model_args,
                name=self.name,
                server=server,
                is_raw=is_raw,
                defaults=generation_defaults(self.folder) if samples and self.folder else None,
            )

    @contextmanager
    def loaded(self, access: ModelAccess) -> Iterator[Model]:
        """Load the model into this process, instead of `transformers serve`, which returns no likelihoods.

        Raises:
            EvaluationError: a library is missing.
        """
        from inspect_ai.model import get_model

        modules = {"eval-serve": ("accelerate", "torch", "transformers")}
        if problems := missing(modules, who="ramerge/agreement with --serve transformers needs"):
            raise EvaluationError(problems)
        words = " ".join(access.settings.arguments if access.settings else ()).replace("=", " ").split()
        arguments: dict[str, Any] = {word[2:]: value for word, value in pairwise(words) if word in _LOADING}
        if self.folder:
            arguments |= {"model_path": self.location, "tokenizer_path": self.location}
        model = get_model(f"hf/{self.name if self.folder else self.location}", memoize=False, **arguments)
        try:
            yield model
        finally:
            asyncio.run(model.api.aclose())


def _keep_texts(api: object) -> None:
    """Make a provider keep texts with `<think>`, which it would cut: rewards and protocols read them."""
    from inspect_ai.model._providers.openai_compatible import OpenAICompatibleAPI

    from ramerge_eval.tasks.common import ORIGINAL_TEXT

    if not isinstance(api, OpenAICompatibleAPI):
        return
    choices_of = api.chat_choices_from_completion

    def keeping(completion: ChatCompletion, tools: list[ToolInfo]) -> list[ChatCompletionChoice]:
        choices = choices_of(completion, tools)
        for choice, original in zip(choices, completion.choices, strict=True):
            if "<think" in (original.message.content or ""):
                choice.message.metadata = {**(choice.message.metadata or {}), ORIGINAL_TEXT: original.message.content}
        return choices

    vars(api)["chat_choices_from_completion"] = keeping


def read_targets(models: Sequence[str], served_names: Sequence[str], *, serve: bool) -> list[EvaluationTarget]:
    """Read the models under test from `--model NAME=MODEL` and `--served-name`.

    Args:
        models: values of `--model`; with an endpoint, folders add the tokenizer and the merge record.
        served_names: `SERVED`, whose last part names the logs, or `NAME=SERVED`.
        serve: whether the run starts servers itself.

    Raises:
        EvaluationError: the arguments contradict each other, or a folder is missing.
    """
    problems = [f"--model {text}: must be NAME=FOLDER or NAME=HUB_ID" for text in models if not text.partition("=")[2]]
    pairs = [text.partition("=")[::2] for text in models]
    model_names = {}
    for text in served_names:
        # the name of an endpoint is often a path or a hub id: its last part names the logs
        last = _NO_NAME.sub("-", text.rstrip("/").rpartition("/")[2]).lstrip("-._+")
        name, model_text = text.partition("=")[::2] if "=" in text else (last, text)
        model_names[name] = model_text
    if serve and model_names:
        problems.append("--served-name: needs --endpoint; with --serve, models are served under their own names")
    if serve and not models:
        problems.append("--serve: say which models, with --model NAME=FOLDER")
    if not serve and not models and not model_names:
        problems.append("--endpoint: say which model, with --served-name NAME")
    if not serve and len(pairs) == 1 and len(served_names) == 1 and "=" not in served_names[0]:
        model_names = {pairs[0][0]: served_names[0]}  # the one model has the one name
    elif not serve and pairs and (strangers := [name for name in model_names if name not in dict(pairs)]):
        problems.append(
            f"--served-name {', '.join(strangers)}: is none of the models; give NAME=SERVED, with a NAME of --model"
        )
    targets = [EvaluationTarget(name, model_names.pop(name, name), model) for name, model in pairs]
    targets += [EvaluationTarget(name, model_text) for name, model_text in model_names.items()]
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


def _record(folder: Path | None) -> object:
    """Return the base and the agents of a merge by name, from its record, for the logs; None without a record."""
    path = folder / RECORD_FILE if folder else None
    if path is None or not path.is_file() or path.stat().st_size > _RECORD.size:
        return None
    try:
        record = parse(path.read_bytes(), _RECORD, halves="replace")
        agents = {name: str(agent["model"]) for name, agent in record["agents"].items()}
        return {"base": str(record["base"]) if record.get("base") else None, "agents": agents}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
