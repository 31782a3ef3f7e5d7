"""The replies of one agent to its prompts, and the inputs of its layers; called by `calibrate`. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

import torch

from ramerge import InputError, PlanError, WeightsError
from ramerge.calibration.exchanges import Exchange
from ramerge.calibration.inputs import InputRecorder, RecordedInputs, chosen_positions
from ramerge.calibration.live import ADVICE, naming_memory
from ramerge.calibration.prompts import Prompt
from ramerge.calibration.rewards import RewardFunction
from ramerge.calibration.speaker import Speaker


def exchanges_of(
    speaker: Speaker,
    prompts: Sequence[Prompt],
    known: Mapping[str, Exchange],
    batch: int,
    reward: RewardFunction | None,
    on_done: Callable[[Sequence[Exchange]], None],
) -> list[Exchange]:
    """Gather a reply to each prompt: a known one, the best of those with the prompt, or the agent's own greedy one.

    Args:
        speaker: replies.
        prompts: all of the agent.
        known: by the prompt's key, replies of an earlier run.
        batch: how many prompts are asked at once; those of similar length are asked together, and fewer from then on
            where the memory of the device does not suffice.
        reward: what scores replies that come without a reward; None if nothing does.
        on_done: gets the replies of each batch, as soon as they are there.

    Raises:
        InputError: prompts cannot be encoded; all are listed.
        PlanError: the memory does not suffice for a single prompt.
    """
    found = dict(known)
    problems: dict[str, list[str]] = {}
    asked = []
    for prompt in prompts:
        if prompt.key in found:
            continue
        if prompt.replies:
            made = speaker.given(prompt)
            if isinstance(made, str):
                problems.setdefault(made, []).append(prompt.place)
            else:
                found[prompt.key] = replace(_rewarded(made, prompt, reward), key=prompt.key)
        elif isinstance(ids := speaker.asked(prompt), str):
            problems.setdefault(ids, []).append(prompt.place)
        else:
            asked.append((prompt, *ids))
    if problems:
        raise InputError(
            f"{places[0]}: {reason}" + (f" (and {len(places) - 1:,} more prompts likewise)" if len(places) > 1 else "")
            for reason, places in problems.items()
        )
    if given := [found[prompt.key] for prompt in prompts if prompt.key in found]:
        on_done([each for each in given if each not in known.values()])
    asked.sort(key=lambda each: len(each[1]))
    while asked:
        part = asked[:batch]
        said = _replies_that_fit(speaker, part)
        if said is None:
            batch = len(part) // 2
            continue
        replies = [
            replace(_rewarded(reply, prompt, reward), key=prompt.key)
            for reply, (prompt, _, _) in zip(said, part, strict=True)
        ]
        asked = asked[batch:]
        found |= {reply.key: reply for reply in replies}
        on_done(replies)
    return [replace(found[prompt.key], key=prompt.key) for prompt in prompts]


def _replies_that_fit(speaker: Speaker, part: Sequence[tuple[Prompt, list[int], bool]]) -> list[Exchange] | None:
    """The replies to prompts; None if there is no memory for so many, and fewer may fit."""
    try:
        with naming_memory(f"{part[0][0].place}: a prompt of {len(part[0][1]):,} tokens", speaker.live.device, ADVICE):
            return speaker.replies(part)
    except PlanError:
        if len(part) == 1:
            raise
        torch.cuda.empty_cache()  # of a smaller batch, which has blocks of other sizes; does nothing without a GPU
        return None


def _rewarded(exchange: Exchange, prompt: Prompt, reward: RewardFunction | None) -> Exchange:
    if reward is None or exchange.reward is not None:
        return exchange
    return replace(exchange, reward=reward(prompt, exchange.text))


def record_inputs(
    speaker: Speaker,
    exchanges: Sequence[Exchange],
    names: Container[str],
    rows: int,
    seed: int,
    on_done: Callable[[], None],
) -> RecordedInputs:
    """Gather the inputs of linear layers while a model reads prompts and replies.

    Args:
        speaker: reads.
        exchanges: what it reads; at least one.
        names: of the model's tensors.
        rows: how many tokens are recorded at most.
        seed: of the choice.
        on_done: called after each sequence.

    Raises:
        WeightsError: a number is not finite.
    """
    # the last token predicts nothing, so a model that speaks never reads it
    sequences = [each.ids[:-1] if len(each.ids) > each.start else each.ids for each in exchanges]
    positions, weights = chosen_positions(sequences, [each.start for each in exchanges], rows, seed)
    recorder = InputRecorder(speaker.live, names, rows, seed)
    for ids, chosen in zip(sequences, positions, strict=True):
        recorder.begin(chosen, len(ids), speaker.live.device)
        if chosen:
            with recorder:
                speaker.live.hidden(ids)
        on_done()
    try:
        return recorder.result(weights, sum(map(len, sequences)))
    except WeightsError as error:
        raise WeightsError(
            f"{speaker.name}: {error} while it reads its prompts in {speaker.live.dtype}; the weights are damaged, or "
            "overflow in this dtype: use float32"
        ) from error
