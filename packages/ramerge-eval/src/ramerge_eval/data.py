"""Reads or downloads data files of benchmarks, and reports all their problems."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ramerge import EvaluationError
from ramerge.scoring.records import parquet_rows
from ramerge.sdk.text import JsonLimits, first_of, is_unicode, parse, reason, shown

_LIMITS = JsonLimits(size=sys.maxsize, signs=sys.maxsize, depth=100, name=sys.maxsize, digits=4300)


def read_records(path: Path, fields: Mapping[str, type | tuple[type, ...]]) -> list[dict[str, Any]]:
    """Read the records of a benchmark: a JSON-lines file, a JSON file with a list of them, or a Parquet file.

    Args:
        fields: the fields that every record must have, with their allowed types.

    Raises:
        EvaluationError: the file cannot be read, is not UTF-8, has another form, or a record lacks a field;
            the first ten problems are listed.
    """
    records = list(parquet_rows(path) if path.suffix == ".parquet" else _parsed(path))
    if not records:
        raise EvaluationError(f"{path}: holds no record")
    refuse(f"{path}, {where}: {problem}" for where, record in records for problem in _problems(record, fields))
    return [record for _, record in records]


def refuse(problems: Iterable[str]) -> None:
    """Raise `EvaluationError` with the first ten problems of a data file, and the number of other problems, if any."""
    texts = list(problems)
    if texts:
        raise EvaluationError(first_of(texts))


def refuse_duplicates(path: Path, keys: Sequence[str]) -> None:
    """Raise `EvaluationError` if two records of a data file have the same key."""
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        examples = ", ".join(repr(key) for key in twice[:10])
        raise EvaluationError(f"{path}: {len(twice):,} ids occur more than once: {examples}")


def from_hub(repository: str, pattern: str, *, task: str, instead: str) -> Path:
    """Download the one file of a data set on the Hub whose path matches; the hub's cache keeps it.

    Args:
        task: the task that needs it, such as `coding/mbpp`; begins the error.
        instead: what the user can give instead; ends the error.

    Raises:
        EvaluationError: the file cannot be loaded, or more than one file matches.
    """
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repository, repo_type="dataset", allow_patterns=pattern))
    except Exception as error:  # whatever a network, a proxy or the hub can answer
        reason = shown(str(error).strip().partition("\n")[0])
        raise EvaluationError(f"{task}: {repository} cannot be loaded from the hub ({reason}); {instead}") from error
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        raise EvaluationError(f"{task}: {repository} has {len(files)} files {pattern}, not one; {instead}")
    return files[0]


def read_text(path: Path) -> str:
    """Read a whole text file in UTF-8; problems are `EvaluationError`.

    Raises:
        EvaluationError: the file cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise EvaluationError(f"{path}: is not UTF-8 (byte {error.start:,})") from error
    except OSError as error:
        raise EvaluationError(f"{path}: {reason(error)}") from error


def _parsed(path: Path) -> Iterator[tuple[str, Any]]:
    text = read_text(path)
    if text.lstrip().startswith("["):
        whole = parsed(path, "the file", text, "keep")
        yield from ((f"record {number}", record) for number, record in enumerate(whole, 1))
        return
    # not splitlines: that also breaks at separators which JSON strings may hold as they are
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield (
                f"line {number}",
                parsed(path, f"line {number}", line, "keep"),
            )  # the record that has one is named below


def parsed(path: Path, where: str, text: str, halves: Literal["refuse", "keep"] = "refuse") -> Any:
    """Parse a JSON value. Raises `EvaluationError` with the file and the position."""
    try:
        return parse(text.encode(), _LIMITS, halves=halves)
    except ValueError as error:
        form = "a data set has one JSON object a line, or is a list of objects"
        raise EvaluationError(f"{path}, {where}: {error}; {form}") from error


def _problems(record: Any, fields: Mapping[str, type | tuple[type, ...]]) -> Iterator[str]:
    if not is_unicode(json.dumps(record, ensure_ascii=False, default=str)):
        yield "holds half of a surrogate pair, which is no character"
    if not isinstance(record, dict):
        yield "must be an object" + (f" with {', '.join(fields)}" if fields else "")
        return
    if absent := [name for name in fields if name not in record]:
        yield f"lacks {', '.join(absent)}; has {shown(', '.join(record)) or 'nothing'}"
    for name, types in fields.items():
        if name in record and not isinstance(record[name], types):
            kinds = types if isinstance(types, tuple) else (types,)
            yield f"{name}: must be {' or '.join(each.__name__ for each in kinds)}, not {type(record[name]).__name__}"
