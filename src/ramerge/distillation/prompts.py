"""The dataset of a distillation: prompts of each agent's task, as conversations; the choice of the hardest prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Any

from ramerge import InputError, RecipeError
from ramerge.calibration.agreement import replies_of
from ramerge.calibration.prompts import Prompt, read_prompts
from ramerge.distillation.trainer import TaskPrompt
from ramerge.sdk.text import JsonLimits, quantity, read_object
from ramerge.searches.folder import Folder
from ramerge.searches.mass import nll_by_prompt
from ramerge.searches.prompted import CALIBRATION
from ramerge.searches.results import read_search

_AS_IS = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_TRUTH = "ground_truth"
_TOKENIZER = JsonLimits(size=1 << 28, signs=1 << 26)


def read_files(files: Mapping[str, Path]) -> dict[str, list[Prompt]]:
    """Read the prompts of each agent, without duplicates.

    Raises:
        InputError: a file cannot be read, or prompts have lost their special tokens; all agents are listed.
    """
    prompts: dict[str, list[Prompt]] = {}
    problems: list[str] = []
    for name, path in files.items():
        try:
            file_prompts = read_prompts(path)
        except InputError as error:
            problems += [f"prompts of {name}: {problem}" for problem in error.messages]
            continue
        if decoded_prompts := [prompt for prompt in file_prompts if prompt.state == "decoded"]:
            problems.append(
                f"prompts of {name}: {decoded_prompts[0].place}: is a rollout whose prompt was decoded without its "
                "special tokens, so a trainer would ask something else; give the training set with messages: "
                f"--prompts {name}=FILE"
            )
        prompts[name] = file_prompts
    if problems:
        raise InputError(problems)
    return prompts


def tasks_of(prompts: Mapping[str, Sequence[Prompt]], student: Path) -> tuple[list[TaskPrompt], str | None]:
    """Return the prompts as conversations, and the chat template that they need; None for the tokenizer's own.

    Text is written as it is, after the special tokens that the student's tokenizer puts in front of plain text.

    Raises:
        InputError: some prompts are text and others messages, or only some have their special tokens:
            one template cannot write both.
    """
    forms = {_prompt_form(prompt): (name, prompt) for name, each in prompts.items() for prompt in each}
    if len(forms) > 1:
        examples = "; ".join(f"{prompt.place} ({name}): {form}" for form, (name, prompt) in forms.items())
        raise InputError(
            f"prompts have several forms, and a trainer writes all of them with one chat template: {examples}; give "
            "all of them as messages"
        )
    tasks = [
        TaskPrompt(
            name,
            prompt.messages if prompt.text is None else [{"role": "user", "content": prompt.text}],
            prompt.reward_fields.get(_TRUTH),
        )
        for name, each in prompts.items()
        for prompt in each
    ]
    form = next(iter(forms))
    if form == "messages":
        if not _has_chat_template(student):
            raise InputError(
                f"prompts are messages, but {student} has no chat template that could write them; give prompts as text "
                "(prompt), or add the template of the base to the merge"
            )
        return tasks, None
    return tasks, (_leading_special_tokens(student) if form == "text" else "") + _AS_IS


def _has_chat_template(student: Path) -> bool:
    if (student / "chat_template.jinja").is_file() or (student / "chat_template.json").is_file():
        return True
    try:
        return bool(read_object(student / "tokenizer_config.json", _TOKENIZER).get("chat_template"))
    except (OSError, ValueError):
        return False


def _prompt_form(prompt: Prompt) -> str:
    if prompt.text is None:
        return "messages"
    return "text" if prompt.state == "plain" else "text with special tokens"


def _leading_special_tokens(student: Path) -> str:
    """Return the special tokens that a tokenizer puts in front of plain text."""
    try:
        processor: Any = read_object(student / "tokenizer.json", _TOKENIZER).get("post_processor") or {}
        steps = processor.get("processors", [processor])
        pieces: list[Any] = next((step["single"] for step in steps if step["type"] == "TemplateProcessing"), [])
        return "".join(
            piece["SpecialToken"]["id"] for piece in takewhile(lambda piece: "SpecialToken" in piece, pieces)
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""


def hold_out(
    prompts: Mapping[str, Sequence[Prompt]], count: int
) -> tuple[dict[str, list[Prompt]], dict[str, list[Prompt]]]:
    """Divide the prompts of each agent into prompts to train on, and `count` prompts to score the student with.

    Which prompts are held out depends on the prompts, and not on their order.

    Raises:
        InputError: an agent has no prompt left to train on.
    """
    held_out = {name: sorted(each, key=_prompt_digest)[:count] for name, each in prompts.items()}
    keys = {prompt.key for each in held_out.values() for prompt in each}  # of any agent: some may share prompts
    training = {name: [prompt for prompt in each if prompt.key not in keys] for name, each in prompts.items()}
    if few := {name: prompts[name] for name, each in training.items() if not each}:
        raise InputError(
            f"--hold-out {count}: {name} has {quantity(len(each), 'prompt')}, so none is left to train on; hold out "
            "fewer, or give more"
            for name, each in few.items()
        )
    return training, held_out


def _prompt_digest(prompt: Prompt) -> bytes:
    return sha256(prompt.key.encode()).digest()


def hardest(
    prompts: Mapping[str, Sequence[Prompt]], likelihoods: Mapping[str, Mapping[str, float]], count: int
) -> dict[str, list[Prompt]]:
    """Choose the prompts of each agent to which the merge is least likely to give the agent's reply.

    Args:
        prompts: prompts by agent.
        likelihoods: by agent and key of a prompt, a value that increases with the likelihood of the agent's reply under
            the merge; prompts without a value are left out.
        count: the number of prompts to keep for each agent; all with a value if there are fewer.

    Raises:
        InputError: no prompt of an agent has a value.
    """
    hardest_by_agent = {
        name: sorted(
            (prompt for prompt in each if prompt.key in likelihoods.get(name, {})),
            key=lambda prompt, name=name: likelihoods[name][prompt.key],  # type: ignore[misc]  # a default binds it
        )[:count]
        for name, each in prompts.items()
    }
    if empty := [name for name, each in hardest_by_agent.items() if not each]:
        raise InputError(
            f"--hardest: the search has scored none of the prompts of {name}; leave --hardest out, or give the "
            "prompts that were searched with"
            for name in empty
        )
    return hardest_by_agent


def likelihoods_of(search: Path | None) -> dict[str, dict[str, float]]:
    """Return how likely the agents' replies are under the best merge of a search, by agent and key of the prompt.

    Values can only be compared with one another: higher is likelier, whatever the search's score.

    Raises:
        RecipeError: there is no search, or it used no prompts.
    """
    if search is None or not (search / CALIBRATION).is_dir():
        raise RecipeError(
            "--hardest: needs scores of prompts, which a search has; give the folder of `ramerge search` with --prompts"
        )
    best, folder = read_search(search / "search.json").best, Folder(search)
    trial = next((trial for trial in folder.trials.read() if trial.number == best), None)
    scores = trial.scores if trial is not None else {}
    try:
        likelihoods = nll_by_prompt(scores, replies_of(search / CALIBRATION, list(scores), folder.right_at))
    except ValueError as error:
        raise RecipeError(
            f"{search}: has no score of each prompt of {error}; --hardest takes searches with --prompts and without "
            "--score"
        ) from error
    return {name: {key: -nll for key, nll in each.items()} for name, each in likelihoods.items()}
