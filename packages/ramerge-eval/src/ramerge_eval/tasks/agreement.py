"""The task `agreement`: how likely the agents' replies are under a model. It does not measure skill.

    share of a reply = exp(-mean negative log-likelihood of its tokens)

This is the geometric mean of the probabilities that the model gives to the tokens of an agent's own reply, each after
the prompt and the tokens before it: 1 for a model that is certain of every token, and higher for models that are closer
to the agent. Replies come from the folder of `ramerge calibrate`: the held-out replies, and only
the right ones if there are rewards. Nothing is generated.

Inspect's models take messages instead of token ids, and return no likelihoods of a prompt. So the solver queries the
endpoint itself, with the client of Inspect's provider: `/v1/completions` with the ids as prompt, `echo` and
`logprobs`, as defined by OpenAI and served by vLLM and SGLang. With `--serve transformers`, it calls the model.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.model._generate_config import active_generate_config
from inspect_ai.model._providers.openai_compatible import OpenAICompatibleAPI
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, Value, metric, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver

from ramerge import EndpointError, EvaluationError, RamergeError, replies_of
from ramerge.sdk.commands import warn
from ramerge.sdk.text import shown
from ramerge_eval.tasks import common

_IDS, _START, _NLL, _TOKENS = "ids", "start", "nll", "tokens"
_MOST_CHARACTERS = 1000
_ROUNDING = 1e-4  # by which a log-probability may come out above 0
_NO_ECHO = (
    "the endpoint gives no log-probabilities of a prompt: /v1/completions must support echo with logprobs, as vLLM and "
    "SGLang do; otherwise use --serve transformers"
)


@task
@common.with_validation
def agreement(calibration: Path | None = None, right_at: float | None = None) -> Task:
    """The task `agreement`: how likely the agents' own replies are under a model: agreement with the agents, not skill.

    Args:
        calibration: the folder that `ramerge calibrate` has written.
        right_at: the least reward of a right reply; by default, the best reward of any agent.
    """
    if problems := common.lacking("agreement", {"calibration": calibration}):
        raise EvaluationError(problems)
    assert calibration is not None
    try:
        replies = replies_of(calibration, right_at=right_at)
    except RamergeError as error:
        raise EvaluationError([f"ramerge/agreement: {problem}" for problem in error.messages]) from error
    warn(f"ramerge/agreement: {note}" for note in replies.notes)
    samples = [
        Sample(
            id=f"{name}/{_digest((each.ids, each.start))}",
            input=each.place,
            target=each.text,
            metadata={common.SUBSET: name, _IDS: list(each.ids), _START: each.start},
        )
        for name, exchanges in replies.exchanges.items()
        for each in exchanges
    ]
    samples = list({sample.id: sample for sample in samples}.values())
    return Task(
        dataset=samples,
        version=_digest([sample.id for sample in samples]),  # other replies in the folder are another task
        solver=_reader(),
        scorer=_likelihood(),
        metadata={"agreement": {"rewarded": replies.rewarded, "notes": list(replies.notes)}},
    )


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


@solver(name="ramerge/agreement")
def _reader() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        api: Any = get_model().api
        ids, start = state.metadata[_IDS], state.metadata[_START]
        if isinstance(api, OpenAICompatibleAPI):
            logprobs = await _served_logprobs(api, ids, start)
        elif hasattr(api, "hf_chat"):  # Inspect's provider of transformers, whose class imports torch
            logprobs = _local_logprobs(api.model, ids, start)
        else:
            raise EvaluationError(f"ramerge/agreement: {type(api).__name__} gives no log-probabilities of a prompt")
        if not all(isinstance(each, int | float) and -math.inf < each <= _ROUNDING for each in logprobs):
            raise EndpointError("a log-probability of the reply is no finite number up to 0; are the weights damaged?")
        state.metadata[_NLL] = -math.fsum(logprobs)
        state.output = ModelOutput.from_content(str(state.model), state.target.text)
        return state

    return solve


async def _served_logprobs(api: Any, ids: Sequence[int], start: int) -> Sequence[Any]:
    """Return the log-probabilities of the tokens from `start` on, from an endpoint."""
    if (ensure_server := getattr(api, "_ensure_server_started", None)) is not None:  # of vLLM's provider
        await ensure_server()
    retries = active_generate_config().max_retries
    client = api.client if retries is None else api.client.with_options(max_retries=retries)
    try:
        answer = await client.completions.create(
            model=api.service_model_name(), prompt=list(ids), max_tokens=1, temperature=0.0, echo=True, logprobs=1
        )
    except Exception as error:  # whatever the client raises after its retries
        raise EndpointError(f"{type(error).__name__}: {shown(str(error))}"[:_MOST_CHARACTERS]) from error
    try:
        values = answer.choices[0].logprobs.token_logprobs
    except (AttributeError, LookupError, TypeError) as error:
        raise EndpointError(_NO_ECHO) from error
    # of the prompt, whose first token has none, and of the one that an endpoint must add
    if not isinstance(values, list) or not len(ids) <= len(values) <= len(ids) + 1:
        raise EndpointError(_NO_ECHO)
    return values[start : len(ids)]


def _local_logprobs(model: Any, ids: Sequence[int], start: int) -> Sequence[float]:
    """Return the log-probabilities of the tokens from `start` on, from a model of transformers."""
    import torch

    labels = torch.tensor(ids[start:], device=model.device)
    has_limit = "logits_to_keep" in inspect.signature(model.forward).parameters
    more = {"logits_to_keep": len(labels)} if has_limit else {}  # those of the prompt would take far more memory
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids[:-1]], device=model.device), **more).logits[0, -len(labels) :]
        losses = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")
    return [-each for each in losses.double().tolist()]


@metric(name="nll")
def _nll() -> Metric:
    """Compute the mean negative log-likelihood per token, in nats, by agent."""

    def compute(scores: list[SampleScore]) -> Value:
        sums: dict[str, tuple[float, int]] = {}
        for each in scores:
            about = each.score.metadata or {}
            if _NLL in about:
                nll, tokens = sums.get(about[common.SUBSET], (0.0, 0))
                sums[about[common.SUBSET]] = nll + about[_NLL], tokens + about[_TOKENS]
        return {f"{agent}/nll": nll / tokens for agent, (nll, tokens) in sums.items()}

    return compute


@scorer(name="ramerge/agreement", metrics=[common.shares(), _nll()])
def _likelihood() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        if common.is_failed(state):
            return common.score_of(state, {"agreement": (0.0, 1.0)}, problem=common.FAILURE)
        nll, tokens = state.metadata[_NLL], len(state.metadata[_IDS]) - state.metadata[_START]
        return common.score_of(state, {"agreement": (math.exp(-nll / tokens), 1.0)}, nll=nll, tokens=tokens)

    return score
