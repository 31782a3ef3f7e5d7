"""Vocabularies of different sizes: which rows of the embeddings which models have, and whether their tokens agree.

Row i of an embedding belongs to token i. Models pad their vocabulary, and training may add tokens at its end. With
`allow.vocabulary: common` the rows that all models have are merged, and rows that only some have come from these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ramerge.checkpoint.embeddings import EMBEDDINGS, HEADS
from ramerge.checkpoint.model import Checkpoint
from ramerge.checkpoint.storage.place import Place
from ramerge.checkpoint.tensor import Tensor
from ramerge.foundation.errors import CheckpointError
from ramerge.foundation.jsontext import Limits, read
from ramerge.foundation.text import quoted
from ramerge.planning.findings import Findings, listed
from ramerge.recipe.model import Recipe

BASE = "base"
# A vocabulary of half a million tokens with its merges.
_LIMITS = Limits(size=128_000_000, signs=8_000_000)


@dataclass(frozen=True)
class Rows:
    """Rows of a tensor that the same models have.

    Attributes:
        start: the first row.
        stop: the row after the last.
        owners: names of the agents that have them, and "base".
    """

    start: int
    stop: int
    owners: tuple[str, ...]


def is_vocabulary(base: Tensor, agent: Tensor) -> bool:
    """Whether two tensors are embeddings that differ only in their number of rows."""
    named = base.name.endswith(HEADS + EMBEDDINGS)
    return named and base.shape[1:] == agent.shape[1:] and base.shape != agent.shape and bool(base.shape)


def rows_of_models(base: Checkpoint, agents: Mapping[str, Mapping[str, Tensor]]) -> dict[str, tuple[Rows, ...]]:
    """The rows of every embedding that not all models have alike, by the tensor's name.

    Args:
        base: the base.
        agents: each agent's counterparts of the base's tensors.
    """
    found = {}
    for name, tensor in base.tensors.items():
        heights = {agent: tensors[name].shape[0] for agent, tensors in agents.items() if tensor.shape}
        if any(is_vocabulary(tensor, tensors[name]) for tensors in agents.values()):
            heights = {BASE: tensor.shape[0], **heights}
            ends = sorted({0, *heights.values()})
            found[name] = tuple(
                Rows(start, stop, tuple(model for model, height in heights.items() if height >= stop))
                for start, stop in pairwise(ends)
            )
    return found


def check_tokens(
    recipe: Recipe,
    base: Checkpoint,
    agents: Mapping[str, Checkpoint],
    rows: Mapping[str, Sequence[Rows]],
    findings: Findings,
) -> str | None:
    """Refuse models that have different tokens in the same row, and say which rows come from where.

    Returns:
        The agent whose tokenizer the output needs, because it knows tokens that the base does not; None for the base's.
    """
    if recipe.allow.vocabulary is None:
        return None
    for name, segments in rows.items():
        findings.notes += [f"{name}: {_said(segment)}" for segment in segments]
    known: dict[int, tuple[str, str]] = {}
    furthest, chosen = -1, None
    for model, checkpoint in {BASE: base, **agents}.items():
        tokens = _tokens(model, checkpoint, findings)
        clashes = [
            f"{number} is {quoted(token)}, but {quoted(known[number][1])} in {known[number][0]}"
            for number, token in sorted(tokens.items())
            if known.get(number, (model, token))[1] != token
        ]
        if clashes:
            text = f"{checkpoint.directory}: has other tokens in rows that are merged: {listed(clashes)}"
            findings.problem(f"{text}; models with different tokens cannot be merged", None if model == BASE else model)
        known = {**{number: (model, token) for number, token in tokens.items()}, **known}
        last = max(tokens, default=-1)
        if last > furthest:
            furthest, chosen = last, model
    if chosen in (None, BASE) or recipe.companions is not None:
        return None
    findings.notes.append(f"the output gets the tokenizer of {chosen}, which has tokens that the base does not have")
    return chosen


def _said(rows: Rows) -> str:
    which = f"rows {rows.start:,} to {rows.stop - 1:,} are in {', '.join(rows.owners)}"
    if BASE not in rows.owners and len(rows.owners) > 1:
        return f"{which}; those of the first are taken"
    return which if len(rows.owners) > 1 else f"{which} only"


def _tokens(model: str, checkpoint: Checkpoint, findings: Findings) -> dict[int, str]:
    """Number to token of a model's tokenizer; empty if its files are of a kind that is not read."""
    for folder in (*checkpoint.tokenizers, checkpoint.beside):
        try:
            found = _from_files(folder)
        except CheckpointError as error:
            findings.error(error, "" if model == BASE else model)
            return {}
        if found:
            return found
    findings.notes.append(f"{model}: has no tokenizer.json or vocab.json, so its tokens are not compared with others")
    return {}


def _from_files(folder: Place) -> dict[int, str]:
    names: dict[int, str] = {}
    if (folder / "tokenizer.json").is_file():
        values = _json(folder / "tokenizer.json")
        model = values.get("model")
        names |= _numbered(model.get("vocab") if isinstance(model, Mapping) else None)
        names |= _added(values.get("added_tokens"))
    elif (folder / "vocab.json").is_file():
        names |= _numbered(_json(folder / "vocab.json"))
        if (folder / "added_tokens.json").is_file():
            names |= _numbered(_json(folder / "added_tokens.json"))
    return names


def _json(path: Place) -> dict[str, Any]:
    try:
        return read(path, _LIMITS)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _numbered(vocabulary: Any) -> dict[int, str]:
    """Number to token, of `{token: number}` or of a list of `[token, score]`."""
    if isinstance(vocabulary, Mapping):
        return {number: str(token) for token, number in vocabulary.items() if isinstance(number, int)}
    pairs: Iterable[Any] = vocabulary if isinstance(vocabulary, Sequence) else ()
    return {number: str(pair[0]) for number, pair in enumerate(pairs) if isinstance(pair, Sequence) and pair}


def _added(tokens: Any) -> dict[int, str]:
    entries = tokens if isinstance(tokens, Sequence) else ()
    return {
        entry["id"]: str(entry.get("content"))
        for entry in entries
        if isinstance(entry, Mapping) and isinstance(entry.get("id"), int)
    }
