"""Vocabularies: which models have which rows of the embeddings, and whether their tokens agree.

Row i of an embedding belongs to token i. Models pad their vocabulary, and training may add tokens at the end, so teams
that train the same base may use the same row for different tokens. With `allow.vocabulary: common`, rows that all
models have are merged, and other rows come from the models that have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.foundation.text import brief_list, quoted
from ramerge.core.planning.findings import PlanFinding, note, problem, problems_of, warning
from ramerge.core.planning.owners import BASE, label_of
from ramerge.core.planning.tokens import TokenReader
from ramerge.core.recipe.model import Recipe
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.embeddings import EMBEDDINGS, HEADS
from ramerge.core.tensors.tensor import Tensor

_SOME = 5


@dataclass(frozen=True)
class Rows:
    """Rows `start:stop` of a tensor, which the same models have.

    Attributes:
        owners: the models that have these rows: names of agents, and `BASE` for the base.
        name: the name of the planned tensor.
        shape: the shape of the planned tensor, if it is not the shape of these rows.
    """

    start: int
    stop: int
    owners: tuple[str, ...]
    name: str
    shape: tuple[int, ...] | None = None


def is_vocabulary(base: Tensor, agent: Tensor) -> bool:
    """Whether two tensors are embeddings that differ only in their number of rows."""
    has_name = base.name.endswith(HEADS + EMBEDDINGS)
    return has_name and base.shape[1:] == agent.shape[1:] and base.shape != agent.shape and bool(base.shape)


def rows_of_models(base: Checkpoint, agents: Mapping[str, Mapping[str, Tensor]]) -> dict[str, tuple[Rows, ...]]:
    """For each embedding with different numbers of rows in different models: segments of rows, by tensor name."""
    rows = {}
    for name, tensor in base.tensors.items():
        heights = {agent: tensors[name].shape[0] for agent, tensors in agents.items() if tensor.shape}
        if any(is_vocabulary(tensor, tensors[name]) for tensors in agents.values()):
            heights = {BASE: tensor.shape[0], **heights}
            ends = sorted({0, *heights.values()})
            rows[name] = tuple(
                Rows(
                    start,
                    stop,
                    tuple(model for model, height in heights.items() if height >= stop),
                    f"{name}[{start}:{stop}]" if start else name,
                )
                for start, stop in pairwise(ends)
            )
    return rows


def check_tokens(
    recipe: Recipe,
    base: Checkpoint,
    agents: Mapping[str, Checkpoint],
    rows: Mapping[str, Sequence[Rows]],
    reader: TokenReader,
) -> tuple[str | None, list[PlanFinding]]:
    """Refuse models that have different tokens in the same row, and report tokens that the output's tokenizer lacks.

    Returns:
        The agent whose tokenizer and template the output gets (None for the base's), and the findings.
    """
    findings = []
    for name, segments in rows.items():
        for each in segments:
            # without a base, the first agent is used as the base, but is also an owner by its own name
            owners = [label_of(owner) for owner in each.owners if owner != BASE or recipe.base is not None]
            which = f"rows {each.start:,} to {each.stop - 1:,} are in {', '.join(owners)}"
            several = "; those of the first are taken" if BASE not in each.owners else ""
            findings.append(note(f"{name}: {which}{several if len(owners) > 1 else ' only'}"))
    models = dict(agents) if recipe.base is None else {BASE: base, **agents}
    tokens, unread = _tokens_by_model(models, reader)
    findings += [*unread, *_token_clash_findings(tokens, models, recipe)]
    tokenizer_owner = recipe.companions or next(iter(models))
    if tokenizer_owner == "base" and BASE in models:
        tokenizer_owner = BASE
    if recipe.allow.vocabulary is not None and recipe.companions is None:
        furthest = max(tokens, key=lambda model: max(tokens[model], default=-1), default=tokenizer_owner)
        if furthest != tokenizer_owner:
            text = (
                f"the output gets the tokenizer of {furthest}, which has tokens that {_owner_phrase(tokenizer_owner)} "
                "does not have"
            )
            findings.append(note(text))
            tokenizer_owner = furthest
    findings += _warn_of_lost_tokens(tokens, tokenizer_owner, recipe)
    return tokenizer_owner if tokenizer_owner in agents and tokenizer_owner != next(iter(models)) else None, findings


def check_same_tokens(
    base: Checkpoint, agents: Mapping[str, Checkpoint], recipe: Recipe, reader: TokenReader
) -> list[PlanFinding]:
    """Refuse models with different tokens if a recipe in mergekit's form requests a tokenizer for equal tokens."""
    key = recipe.document.same_tokenizers
    if key is None:
        return []
    others, unknown = [], []
    try:
        digest = reader.digest_of(base)
        for name, agent in agents.items():
            own = reader.digest_of(agent)
            if own is None:
                unknown.append(name)
            elif digest is not None and digest != own and reader.tokens_of(base) != reader.tokens_of(agent):
                others.append(name)
    except CheckpointError as error:
        return problems_of(error, BASE)
    if digest is None:
        what = "the base's tokens are not known"
    elif others:
        what = f"{brief_list(others)} and the base have different tokens"
    elif unknown:
        what = f"the tokens of {brief_list(unknown)} are not known"
    else:
        return []
    text = f"{what}, so mergekit would rearrange embeddings, which is not supported; delete this key"
    return [problem(f"{text} and set allow.vocabulary=common, which merges the common rows and keeps the others", key)]


def _tokens_by_model(
    models: Mapping[str, Checkpoint], reader: TokenReader
) -> tuple[dict[str, Mapping[int, bytes]], list[PlanFinding]]:
    digests: dict[str, bytes] = {}
    tokens_by_digest: dict[bytes, Mapping[int, bytes]] = {}
    findings: list[PlanFinding] = []
    for name, model in models.items():
        try:
            digest = reader.digest_of(model)
        except CheckpointError as error:
            findings += problems_of(error, name)
            continue
        if digest is not None:
            digests[name] = digest
        elif not reader.damages(model, "tokens") and (file := reader.unread(model)) is not None:
            findings.append(note(f"{label_of(name)}: tokens in {file} are not compared with those of other models"))
    if len(set(digests.values())) < 2:
        return {}, findings
    for name, digest in digests.items():
        if digest not in tokens_by_digest:
            tokens_by_digest[digest] = reader.tokens_of(models[name])
    return {name: tokens_by_digest[digest] for name, digest in digests.items()}, findings


def _token_clash_findings(
    tokens: Mapping[str, Mapping[int, bytes]], models: Mapping[str, Checkpoint], recipe: Recipe
) -> Iterator[PlanFinding]:
    first: dict[int, str] = {}
    for name, own in tokens.items():
        clashes = [row for row, token in own.items() if row in first and tokens[first[row]][row] != token]
        for row in own:
            first.setdefault(row, name)
        if not clashes:
            continue
        some = [
            f"row {row} is {_token_text(own[row])}, but {_token_text(tokens[first[row]][row])} in "
            f"{label_of(first[row])}"
            for row in sorted(clashes)[:_SOME]
        ]
        more = f", and {len(clashes) - _SOME:,} more" if len(clashes) > _SOME else ""
        text = f"embedding rows stand for different tokens: {', '.join(some)}{more}"
        if recipe.allow.different_tokens:
            yield note(f"{label_of(name)}: {text} (allow.different_tokens)")
        else:
            advice = (
                "if its tokenizer files are not those of its training, replace them; if they are, "
                "--set allow.different_tokens=true merges these rows anyway, which mixes tokens"
            )
            yield problem(f"{models[name].directory}: {text}; {advice}", name)


def _warn_of_lost_tokens(
    tokens: Mapping[str, Mapping[int, bytes]], owner: str, recipe: Recipe
) -> Iterator[PlanFinding]:
    """Warn of tokens that the output's tokenizer lacks; only a note if the recipe chooses the tokenizer."""
    for name, own in tokens.items():
        lost_tokens = sorted(own.keys() - tokens.get(owner, own).keys())
        if not lost_tokens:
            continue
        some = [f"{_token_text(own[row])} in row {row:,}" for row in lost_tokens[:_SOME]]
        more = f", and {len(lost_tokens) - _SOME:,} more" if len(lost_tokens) > _SOME else ""
        text = (
            f"has {len(lost_tokens):,} token{'s' if len(lost_tokens) > 1 else ''} that the output's tokenizer lacks: "
        )
        text += f"{', '.join(some)}{more}. The output gets the tokenizer of {'the base' if owner == BASE else owner}"
        if recipe.companions is not None:
            yield note(f"{label_of(name)}: {text}")
        else:
            prefix = "" if name == BASE else f"`companions: {name}` takes that of {name}; "
            yield warning(f"{text} ({prefix}`companions: {label_of(owner)}` accepts the loss)", name)


def _owner_phrase(model: str) -> str:
    return "that of the base" if model == BASE else f"that of {model}"


def _token_text(token: bytes) -> str:
    return quoted(token.decode("utf-8", "replace"))
