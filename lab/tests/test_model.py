"""The lab's model, tasks and training: what they promise to the tables."""

import random
from pathlib import Path

import pytest
import torch

from lab import model, tasks, training
from lab.model import Questions, fresh, logits, read_model, sample, token_ids, write_model
from lab.tasks import EOS, PAD, TASKS, held_out, teacher_answer

pytestmark = pytest.mark.full  # torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def sharpened(seed: int) -> model.Weights:
    """A model that answers some prompts and others not: its answers are made the expected ones."""
    return {name: 3 * weight if "embed" in name else weight for name, weight in fresh(seed).items()}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_right_is_what_greedy_decoding_answers(task: tasks.DemoTask) -> None:
    weights = sharpened(1)
    prompts = [example.prompt for example in held_out(task, 0, 12, 1)[1]]
    tokens, cache, pieces = token_ids(prompts), [], []
    for _ in range(len(prompts[0])):
        tokens = logits(weights, tokens, cache)[:, -1:].argmax(-1)
        pieces.append(tokens)
    decoded = torch.cat(pieces, 1)
    # half of the questions ask for what the model says, the others for something else
    questions = Questions(held_out(task, 0, 12, 1)[1])
    questions.answers = torch.tensor([row[:3] for row in decoded.tolist()])
    questions.answers[questions.answers == PAD] = EOS  # no answer has padding before its end
    questions.answers[::2, 1] = 2 + questions.answers[::2, 1] % 5
    matches = (decoded[:, :3] == questions.answers).all(1)
    assert matches.any() and questions.right(weights).tolist() == matches.tolist()


def test_a_cache_changes_no_logits() -> None:
    weights, ids = sharpened(2), token_ids(["<abcdefg=", "#1234567="])
    cache: model.Cache = []
    parts = [logits(weights, ids[:, :3], cache)]
    parts += [logits(weights, ids[:, place : place + 1], cache) for place in range(3, ids.shape[1])]
    assert torch.allclose(torch.cat(parts, 1), logits(weights, ids), atol=1e-4)


def test_nothing_follows_an_end() -> None:
    samples = sample(fresh(3), token_ids(["37+58="] * 200), 6, torch.Generator().manual_seed(1))
    ends = (samples == EOS).float().cumsum(1) - (samples == EOS).float() > 0
    assert ends.any() and (samples[ends] == PAD).all()


def test_prompts_of_validation_test_and_training_are_apart() -> None:
    for task in TASKS:
        validation, test = held_out(task, 150, 500, 7)
        training_prompts = {one.prompt for one in tasks.prompts(task, "train", 300, 1)}
        assert len({one.prompt for one in (*validation, *test)}) == 650
        assert not training_prompts & {one.prompt for one in (*validation, *test)}


def test_the_teacher_slips_more_often_late_in_the_alphabet() -> None:
    for task in TASKS:
        samples = tasks.prompts(task, "train", 600, 1)
        slips = {early: [] for early in (True, False)}
        for one in samples:
            last = one.prompt[-2]
            slips[last in "01234abcdefgh"].append(teacher_answer(task, one, random.Random(one.prompt)) != one.answer)
        early, late = (sum(slips[key]) / len(slips[key]) for key in (True, False))
        assert early < late and early > 0 and late < 1, task.name


@pytest.mark.parametrize("how", ["rl", "sft"])
def test_training_repeats_itself_to_the_bit(how: str) -> None:
    practice = training.Practice(3, (0.1,) * 5, supervised=how == "sft")
    base = training.school(5, training.Schooling(steps=2, batch=2))
    first, second = (training.train(base, TASKS[0], 5, practice) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.equal(weight, weight.bfloat16().float()) for weight in first.values())


def test_importances_are_mean_squared_gradients() -> None:
    base = training.school(6, training.Schooling(steps=2, batch=2))
    importances = training.importances(base, TASKS[0], 6, 3)
    assert importances.keys() == base.keys()
    assert all((one >= 0).all() for one in importances.values()) and any(one.any() for one in importances.values())


def test_checkpoints_are_read_as_they_were_written(tmp_path: Path) -> None:
    weights = fresh(7)
    write_model(tmp_path / "exact", weights, torch.float32)
    assert all(torch.equal(weights[name], one) for name, one in read_model(tmp_path / "exact").items())
    write_model(tmp_path / "rounded", weights, torch.bfloat16)
    assert all(
        torch.equal(weights[name].bfloat16().float(), one) for name, one in read_model(tmp_path / "rounded").items()
    )
