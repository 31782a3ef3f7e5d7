"""The models under test: where they are, under which name they are asked, and how they are told apart later."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramerge.evaluation import bounds
from ramerge.evaluation.results import check_name
from ramerge.evaluation.samples import is_merge_record
from ramerge.foundation.errors import EvaluationError
from ramerge.foundation.version import __version__

RECORD_FILE = "ramerge.json"
TOKENIZER_FILE = "tokenizer.json"
_MOST_BYTES = 32_000_000
_NO_NAME = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True)
class EvaluationTarget:
    """A model under test.

    Attributes:
        name: the model's name in results and tables: a letter or digit, then at most 99 letters, digits and `._+-`.
        served_name: the name by which the endpoint knows it.
        model: its folder, or its id on the hub; None where only the endpoint knows it.
    """

    name: str
    served_name: str
    model: str | None = None

    @property
    def location(self) -> str:
        """What a server is given to load."""
        assert self.model is not None, self.name
        return self.model

    @property
    def folder(self) -> Path | None:
        """Its folder, where it is on this machine."""
        return Path(self.model) if self.model and Path(self.model).is_dir() else None

    def tokenizer(self) -> Path | None:
        """The file of its tokenizer: in its folder, or from the hub."""
        if self.folder:
            file = self.folder / TOKENIZER_FILE
            return file if file.is_file() else None
        if self.model is None:
            return None
        from huggingface_hub import hf_hub_download

        try:
            return Path(hf_hub_download(self.model, TOKENIZER_FILE))
        except (OSError, ValueError):  # offline, or there is none; a suite that needs it says so
            return None

    def about(self) -> dict[str, Any]:
        """What is kept of it with its results; `identity` is the same only while its weights are."""
        return {
            "name": self.name,
            "model": str(self.folder.resolve()) if self.folder else self.model,
            "served_name": self.served_name,
            "identity": _identity(self.folder) if self.folder else (self.model or self.served_name),
            "record": _record(self.folder),
            "ramerge": __version__,
        }


def read_targets(models: Sequence[str], served_names: Sequence[str], *, serve: bool) -> list[EvaluationTarget]:
    """Targets of `--model NAME=MODEL` and `--served-name`.

    Args:
        models: with an endpoint, folders add the tokenizer and the merge record.
        served_names: `SERVED`, whose last part names the results, or `NAME=SERVED`.
        serve: whether the run starts servers itself.

    Raises:
        EvaluationError: they make no sense together, or a folder is not there.
    """
    problems = []
    pairs = [text.partition("=")[::2] for text in models]
    problems += [f"--model {text}: must be NAME=FOLDER or NAME=HUB_ID" for text in models if not text.partition("=")[2]]
    served = dict(text.partition("=")[::2] if "=" in text else (_short(text), text) for text in served_names)
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
    problems += [problem for target in targets for problem in _problems(target)]
    if problems:
        raise EvaluationError(problems)
    return targets


def _short(served_name: str) -> str:
    """A name for results from that of an endpoint, which is often a path or a hub id: its last part."""
    return _NO_NAME.sub("-", served_name.rstrip("/").rpartition("/")[2]).lstrip("-._+")


def _problems(target: EvaluationTarget) -> list[str]:
    try:
        check_name(target.name)
    except EvaluationError as error:
        return list(error.problems)
    model = target.model
    if model is None or target.folder:
        return []
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        return [f"--model {target.name}={model}: there is no such folder"]
    return []


def _identity(folder: Path) -> str:
    """A digest of names, sizes and times of a checkpoint's files, which change with a new merge in the same place."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".json"))
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()


def _record(folder: Path | None) -> Any:
    """The merge record that `ramerge merge` left with the model, or None."""
    path = folder / RECORD_FILE if folder else None
    if path is None or not path.is_file() or path.stat().st_size > _MOST_BYTES:
        return None
    try:
        record = bounds.read_json(path.read_bytes(), bounds.RESULT)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and is_merge_record(record) else None
