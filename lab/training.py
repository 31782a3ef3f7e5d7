"""The base, agents by policy gradient, and controls by supervised fine-tuning; all of it from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from lab.model import Weights, fresh, logits, sample, targets, token_ids
from lab.tasks import EOS, IDS, PAD, TASKS, teacher_answer
from ramerge.demo.tasks import DemoTask, Example, prompts

_NO_LABEL = -100


@dataclass(frozen=True)
class Schooling:
    """How the base learns the answers of a teacher who slips: Muon for matrices of layers, AdamW for the rest."""

    steps: int = 600
    batch: int = 32
    rate: float = 2e-2
    rest: float = 1e-2


@dataclass(frozen=True)
class Practice:
    """How an agent is trained by policy gradient.

    Attributes:
        rates: the first learning rate for each task; they differ, so that the densities of the task vectors do.
        optimizer: `sgd` with momentum, or `adam`.
        rounded: whether weights are rounded to bfloat16 after each step, as where a trainer holds them so.
        supervised: the right answers are learnt instead (fine-tuning, SFT), everything else being equal.
    """

    steps: int
    rates: tuple[float, ...]
    optimizer: str = "sgd"
    rounded: bool = True
    supervised: bool = False
    prompts: int = 16
    group: int = 8


def school(seed: int, how: Schooling, say: Callable[[str], None] = lambda _: None) -> Weights:
    """A base that has the skills of all tasks in part, on the grid of bfloat16."""
    weights = _trainable(fresh(seed))
    matrices = [weight for name, weight in weights.items() if "proj" in name]
    others = [weight for name, weight in weights.items() if "proj" not in name]
    optimizers = [
        (torch.optim.Muon(matrices, weight_decay=0.01), how.rate),
        (torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.01, fused=True), how.rest),
    ]
    for step in range(how.steps):
        part = min(1.0, (step + 1) / 50, (how.steps - step) / (0.4 * how.steps))
        for optimizer, rate in optimizers:
            optimizer.param_groups[0]["lr"] = rate * part
        rng = random.Random(f"{seed}/{step}")
        questions, answers = [], []
        for task in TASKS:
            examples = prompts(task, "train", how.batch, _seed_of("base", seed, step))
            questions += [example.prompt for example in examples]
            answers += [teacher_answer(task, example, rng) for example in examples]
        loss = _imitation(weights, questions, answers)
        _descend(weights, loss, *(optimizer for optimizer, _ in optimizers))
        if (step + 1) % 100 == 0:
            say(f"base {step + 1}: loss {loss.item():.3f}")
    return _bfloat16_values(weights)


def train(
    base: Weights,
    task: DemoTask,
    seed: int,
    how: Practice,
    say: Callable[[str], None] = lambda _: None,
) -> Weights:
    """An agent for one task of `TASKS`, whose first rate is at the same place in `how.rates`."""
    weights = _trainable(base)
    rate = how.rates[TASKS.index(task)]
    parameters = list(weights.values())
    generator = torch.Generator().manual_seed(_seed_of("coins", seed, 0))
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(parameters, lr=rate, fused=True)
        if how.optimizer == "adam"
        else torch.optim.SGD(parameters, lr=rate, momentum=0.9)
    )
    for step in range(how.steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / how.steps)
        examples = prompts(task, "train", how.prompts, _seed_of("agent", seed, step))
        if how.supervised:
            questions, answers = [example.prompt for example in examples], [example.answer for example in examples]
            loss: torch.Tensor | None = _imitation(weights, questions, answers)
        else:
            loss = _policy(weights, examples, how.group, generator)
        if loss is not None:
            _descend(weights, loss, optimizer)
            if how.rounded:
                with torch.no_grad():
                    for parameter in parameters:
                        parameter.copy_(parameter.bfloat16())
        if (step + 1) % 20 == 0:
            say(f"{task.name} {step + 1}")
    return {name: weight.detach() for name, weight in weights.items()}


Factors = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""Of each matrix that an adapter changes, A of shape (rank, in) and B of shape (out, rank): W + SCALING B A."""
SCALING = 2.0


def adapt(base: Weights, task: DemoTask, seed: int, how: Practice, rank: int, start: int) -> Factors:
    """A LoRA adapter for one task, by policy gradient with Adam.

    Args:
        base: the frozen weights.
        task: what it learns.
        seed: of prompts and samples.
        how: steps, prompts, and first rates in the order of `TASKS`.
        rank: of all products.
        start: seed of A, which trainers set to the same number for all agents unless told otherwise; B starts as 0.
    """
    generator = torch.Generator().manual_seed(start)
    factors = {name: _factors(weight, rank, generator) for name, weight in base.items() if "proj" in name}
    parameters = {f"{name} {place}": one for name, pair in factors.items() for place, one in enumerate(pair)}
    rate, draws = how.rates[TASKS.index(task)], torch.Generator().manual_seed(_seed_of("coins", seed, 0))
    optimizer = torch.optim.Adam(parameters.values(), lr=rate)
    for step in range(how.steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / how.steps)
        examples = prompts(task, "train", how.prompts, _seed_of("agent", seed, step))
        loss = _policy(adapter_weights(base, factors), examples, how.group, draws)
        if loss is not None:
            _descend(parameters, loss, optimizer)
    return {name: (a.detach(), b.detach()) for name, (a, b) in factors.items()}


def _factors(weight: torch.Tensor, rank: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """As PEFT begins: A uniform, B zero."""
    rows, columns = weight.shape
    a = torch.empty(rank, columns).uniform_(-1, 1, generator=generator) / columns**0.5
    return a.requires_grad_(), torch.zeros(rows, rank, requires_grad=True)


def adapter_weights(base: Weights, factors: Factors) -> Weights:
    """The weights that an adapter makes of its base."""
    return base | {name: base[name] + SCALING * (b @ a) for name, (a, b) in factors.items()}


def importances(weights: Weights, task: DemoTask, seed: int, examples: int) -> Weights:
    """The diagonal of the empirical Fisher information: mean squared gradients of the right answers' likelihoods."""
    batch = prompts(task, "train", examples, _seed_of("fisher", seed, 0))
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for example in batch:
        one = _trainable(weights)
        (_imitation(one, [example.prompt], [example.answer]) * (len(example.answer) + 1)).backward()
        for name, weight in one.items():
            sums[name] += (weight.grad**2) / examples
    return sums


def _imitation(weights: Weights, questions: Sequence[str], answers: Sequence[str]) -> torch.Tensor:
    """Mean cross-entropy of the tokens of answers, over prompts of any lengths."""
    rows = [
        [IDS[character] for character in prompt + answer] for prompt, answer in zip(questions, answers, strict=True)
    ]
    width = max(map(len, rows))
    ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
    labels = torch.tensor(
        [
            [_NO_LABEL] * (len(prompt) - 1) + row[len(prompt) :] + [EOS] + [_NO_LABEL] * (width - len(row))
            for prompt, row in zip(questions, rows, strict=True)
        ]
    )
    mask = labels != _NO_LABEL
    return functional.cross_entropy(logits(weights, ids)[mask], labels[mask])


def _policy(weights: Weights, examples: list[Example], group: int, generator: torch.Generator) -> torch.Tensor | None:
    """REINFORCE: minus the mean over tokens of advantage times log-probability; None where nothing can be learnt.

    The reward is 1 for exactly the right answer, the advantage standardized within the completions of a prompt.
    """
    ids = token_ids([example.prompt for example in examples]).repeat_interleave(group, 0)
    answers = targets([example.answer for example in examples]).repeat_interleave(group, 0)
    completions = sample(weights, ids, answers.shape[1], generator)
    rewards = (completions == answers).all(1).float().view(-1, group)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    informative = advantages != 0
    if not informative.any():
        return None
    ids, completions, advantages = ids[informative], completions[informative], advantages[informative]
    log_probabilities = logits(weights, torch.cat([ids, completions], 1)[:, :-1])[:, ids.shape[1] - 1 :].log_softmax(-1)
    likelihoods = log_probabilities.gather(-1, completions.unsqueeze(-1)).squeeze(-1)
    mask = completions != PAD
    return -(advantages.unsqueeze(1) * likelihoods * mask).sum() / mask.sum()


def _trainable(weights: Weights) -> Weights:
    return {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}


def _bfloat16_values(weights: Weights) -> Weights:
    return {name: weight.detach().bfloat16().float() for name, weight in weights.items()}


def _descend(weights: Weights, loss: torch.Tensor, *optimizers: torch.optim.Optimizer) -> None:
    """One step along the gradient, clipped to length 1."""
    for weight in weights.values():
        weight.grad = None
    loss.backward()
    torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
    for optimizer in optimizers:
        optimizer.step()


def _seed_of(phase: str, seed: int, step: int) -> int:
    """A seed that no other step or phase uses."""
    return random.Random(f"{phase}/{seed}/{step}").getrandbits(63)
