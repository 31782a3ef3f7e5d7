"""Gathers replies of one agent to its prompts, and the inputs of its layers; called by `calibrate`. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

import torch

from ramerge import InputError, PlanError, WeightsError
from ramerge.calibration.exchanges import Exchange
from ramerge.calibration.inputs import InputRecorder, RecordedInputs, chosen_positions
from ramerge.calibration.live import ADVICE, explain_memory_errors
from ramerge.calibration.prompts import Prompt
from ramerge.calibration.rewards import RewardFunction
from ramerge.calibration.speaker import Speaker
from ramerge.sdk.text import quantity


def exchanges_of(
    speaker: Speaker,
    prompts: Sequence[Prompt],
    earlier_replies: Mapping[str, Exchange],
    batch: int,
    reward: RewardFunction | None,
    on_batch: Callable[[Sequence[Exchange]], None],
) -> list[Exchange]:
    """Gather a reply to each prompt: an earlier run's, the best that came with the prompt, or one that the agent
    generates.

    Args:
        earlier_replies: replies of an earlier run, by the prompt's key.
        batch: the number of prompts at once, grouped by similar length; it shrinks when the device runs out
            of memory.
        reward: a function that scores replies without a reward, if any.
    """
    exchanges_by_key = dict(earlier_replies)
    problems: dict[str, list[str]] = {}
    questions = []
    for prompt in prompts:
        if prompt.key in exchanges_by_key:
            continue
        if prompt.replies:
            exchange = speaker.first_reply(prompt)
            if isinstance(exchange, str):
                problems.setdefault(exchange, []).append(prompt.place)
            else:
                exchanges_by_key[prompt.key] = replace(_add_reward(exchange, prompt, reward), key=prompt.key)
        elif isinstance(ids := speaker.question(prompt), str):
            problems.setdefault(ids, []).append(prompt.place)
        else:
            questions.append((prompt, *ids))
    if problems:
        raise InputError(
            f"{places[0]}: {reason}"
            + (f" (and {quantity(len(places) - 1, 'more prompt')} likewise)" if len(places) > 1 else "")
            for reason, places in problems.items()
        )
    if first_replies := [exchanges_by_key[prompt.key] for prompt in prompts if prompt.key in exchanges_by_key]:
        on_batch([each for each in first_replies if each not in earlier_replies.values()])
    questions.sort(key=lambda each: len(each[1]))
    while questions:
        part = questions[:batch]
        batch_replies = _replies_or_none(speaker, part)
        if batch_replies is None:
            batch = len(part) // 2
            continue
        replies = [
            replace(_add_reward(reply, prompt, reward), key=prompt.key)
            for reply, (prompt, _, _) in zip(batch_replies, part, strict=True)
        ]
        questions = questions[batch:]
        exchanges_by_key |= {reply.key: reply for reply in replies}
        on_batch(replies)
    return [replace(exchanges_by_key[prompt.key], key=prompt.key) for prompt in prompts]


def _replies_or_none(speaker: Speaker, part: Sequence[tuple[Prompt, list[int], bool]]) -> list[Exchange] | None:
    """Return the replies to prompts; None if the memory does not suffice for so many."""
    try:
        with explain_memory_errors(
            f"{part[0][0].place}: a prompt of {len(part[0][1]):,} tokens", speaker.live.device, ADVICE
        ):
            return speaker.replies(part)
    except PlanError:
        if len(part) == 1:
            raise
        torch.cuda.empty_cache()  # of a smaller batch, which has blocks of other sizes; does nothing without a GPU
        return None


def _add_reward(exchange: Exchange, prompt: Prompt, reward: RewardFunction | None) -> Exchange:
    if reward is None or exchange.reward is not None:
        return exchange
    return replace(exchange, reward=reward(prompt, exchange.text))


def record_inputs(
    speaker: Speaker,
    exchanges: Sequence[Exchange],
    names: Container[str],
    rows: int,
    seed: int,
    on_sequence: Callable[[], None],
) -> RecordedInputs:
    """Record the inputs of linear layers while the model reads prompts and replies."""
    # the last token predicts nothing, so a model that generates never reads it
    sequences = [each.ids[:-1] if len(each.ids) > each.start else each.ids for each in exchanges]
    positions, weights = chosen_positions(sequences, [each.start for each in exchanges], rows, seed)
    recorder = InputRecorder(speaker.live, names, rows, seed)
    for ids, places in zip(sequences, positions, strict=True):
        recorder.begin(places, len(ids), speaker.live.device)
        if places:
            with recorder:
                speaker.live.run_layers(ids)
        on_sequence()
    try:
        return recorder.result(weights, sum(map(len, sequences)))
    except WeightsError as error:
        raise WeightsError(
            f"{speaker.name}: {error} while it reads its prompts in {speaker.live.dtype}; the weights are damaged, or "
            "overflow in this dtype: use float32"
        ) from error
