"""Carries out `ramerge calibrate`: for each agent, gathers replies to prompts, inputs of layers and importances.

The folder of an agent appears complete or not at all; an existing folder that fits is kept. Replies of an interrupted
run stay in OUT until the folder is complete, so that no prompt is answered twice.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramerge import InputError, Options, PlanError, Progress, Recipe, RecipeError, __version__
from ramerge.calibration.agent_folder import is_whole, read_record, write_folder, write_importances
from ramerge.calibration.estimate import CalibrationEstimate, estimate
from ramerge.calibration.exchanges import MOST_BYTES, REPLIES, Exchange, read_exchanges, to_lines
from ramerge.calibration.live_base import LiveBase, base_of, require_extras
from ramerge.calibration.prompts import Prompt, halves, problems_of_names, read_prompts
from ramerge.calibration.record import CalibrationRecord, CalibrationSettings
from ramerge.calibration.rewards import check_rewards, reward_of
from ramerge.core.engine.gathered_from import digests_of
from ramerge.core.formats.recorded import CALIBRATION, IMPORTANCES, PLACES
from ramerge.core.foundation.devices import device_name
from ramerge.core.foundation.files import near_file, read_regular
from ramerge.core.recipe.checks import check_unchosen
from ramerge.scoring.functions import function_state
from ramerge.sdk.files import check_state, lock
from ramerge.sdk.options import check_options, check_settings
from ramerge.sdk.outputs import claim_folder, path_of
from ramerge.sdk.plans import MergePlan
from ramerge.sdk.progress import Listener, StoppedError, silence
from ramerge.sdk.recipes import AnyRecipe, models_only, open_recipe, reads_of
from ramerge.sdk.tensors import Files, Reader
from ramerge.sdk.text import dumped, quantity, quoted

if TYPE_CHECKING:
    from ramerge.calibration.inputs import RecordedInputs
    from ramerge.calibration.speaker import Speaker

_SETTINGS, _OPTIONS = CalibrationSettings(), Options()
UNUSED = (
    *("method", "parameters", "preset", "dtype", "rounding", "rounding_seed", "rules", "companions", "shard_size"),
    *("importance", "inputs", "allow.swapped_base", "allow.other_base"),
)
"""Keys of a recipe that a calibration ignores."""
_FOLDER = re.compile(r"[\w-][\w.+ -]{0,99}")
# in a path, which has lost one of the slashes
_REMOTE = re.compile(r"(^|/)[a-z][a-z0-9]+:/")


class OtherCalibrationError(PlanError):
    """A folder holds a calibration with another model, other prompts or other settings."""

    def __init__(self, problems: str, agent: str = "") -> None:
        super().__init__(problems)
        self.agent: str = agent


def calibrate(
    recipe: AnyRecipe,
    out: str | Path,
    *,
    settings: CalibrationSettings = _SETTINGS,
    options: Options = _OPTIONS,
    on_progress: Listener | None = None,
) -> dict[str, CalibrationRecord]:
    """Gather the replies of agents to prompts, and the inputs of their layers on prompts and replies.

    Each agent is read as a merge reads it: as a checkpoint in any format, an adapter, or a delta. The model is loaded
    once, from the base, and gets the weights of one agent after another.

    Args:
        recipe: a recipe with a base, agents, and prompts for each, as for `plan`. Its `allow` and `rename` apply; other
            keys are only checked.
        out: the folder that gets one folder per agent. Existing folders that fit are kept.
        settings: the number of prompts, of rows, and so on.
        options: `overwrite`, `threads` (of torch), `max_memory` and `allow_outside_links` apply.
        on_progress: called with the number of prompts done.

    Returns:
        The record of each agent, which is stored in its folder, too.

    Raises:
        RecipeError: the recipe or an argument is wrong, torch or transformers is missing, or the device does not exist.
        InputError: prompts cannot be read or encoded; all are listed.
        CheckpointError: a model cannot be read, or transformers cannot load it.
        PlanError: models do not fit each other, a folder of another calibration is in the way, or memory is too small.
        WeightsError: an input of a layer is not finite.
        OutputError: a folder cannot be written.

    Example:
        >>> recipe = {"base": "base", "agents": {"code": "coder"}, "prompts": {"code": "code.jsonl"}}
        >>> ramerge.calibrate(recipe, "calibration")["code"].prompts  # doctest: +SKIP
        32
    """
    check_options(options)
    check_settings("settings", settings, CalibrationSettings)
    folder = path_of(out, "the folder of a calibration")
    models, prompts = _models_and_prompts(recipe, settings, options)
    for name in prompts:
        claim_folder(folder / name, reads_of(models.document), "the calibration")
    with LiveBase(models, settings, options) as live:
        return gather_agents(live, prompts, folder, settings, options, on_progress or silence)


def estimate_calibration(
    recipe: AnyRecipe, *, settings: CalibrationSettings = _SETTINGS, options: Options = _OPTIONS
) -> CalibrationEstimate:
    """Estimate the most that `calibrate` with these arguments takes; no weight is read."""
    models, prompts = _models_and_prompts(recipe, settings, options)
    base = LiveBase(models, settings, options)
    base.choose()
    base.check()
    return estimate(base.plan_of_base(), prompts, settings, base.device, base.dtype)


def _models_and_prompts(
    recipe: AnyRecipe, settings: CalibrationSettings, options: Options
) -> tuple[Recipe, dict[str, list[Prompt]]]:
    """Return the models of a checked recipe, and the prompts of each agent."""
    require_extras()
    document = open_recipe(recipe, options)
    models = models_only(document)
    base_of(models)
    prompts = prompts_of(models.agents, models.prompts, settings)
    check_unchosen(document)  # keys besides models and prompts have no effect here, but may be a typo
    return models, prompts


def prompts_of(
    agents: Iterable[str], prompts: Mapping[str, str | Path], settings: CalibrationSettings
) -> dict[str, list[Prompt]]:
    """Read the prompts of each agent, after all checks that need no model."""
    if problems := settings.problems():
        raise RecipeError(problems)
    reward_of(settings.reward)
    names = list(agents)
    if unfit := [name for name in names if not _FOLDER.fullmatch(name)]:
        raise RecipeError(
            f"agent {quoted(name)}: cannot name a folder; give a name of letters, digits, '.', '_' and '-' that "
            "does not begin with '.'"
            for name in unfit
        )
    if wrong := problems_of_names(names, prompts):
        raise RecipeError(wrong)
    paths = {name: Path(prompts[name]).expanduser() for name in names}
    if absent := {name: path for name, path in paths.items() if not path.exists()}:
        raise InputError(
            f"prompts of {name}: {path}: prompts are read from this machine only; download the file first"
            if _REMOTE.search(str(path))
            else f"prompts of {name}: {path}: no such file{near_file(path)}"
            for name, path in absent.items()
        )
    prompts_by_agent = {name: read_prompts(path, settings.count, settings.prompt_seed) for name, path in paths.items()}
    check_rewards(settings.reward, prompts_by_agent, prompts)
    least = 2 if settings.hold_out else 1
    if few := [name for name, each in prompts_by_agent.items() if len(each) < least]:
        raise InputError(
            f"{prompts[name]}: gives one prompt; two are needed, one for statistics and one to score on" for name in few
        )
    return prompts_by_agent


def gather_agents(
    live: LiveBase,
    prompts: Mapping[str, Sequence[Prompt]],
    out: Path,
    settings: CalibrationSettings,
    options: Options,
    listen: Listener,
    wait: bool = False,
) -> dict[str, CalibrationRecord]:
    """Calibrate agents on prompts with a loaded model.

    `wait` for another run that uses the folder; otherwise, refuse to run.
    """
    gathering = _AgentCalibration(live, out, settings, options)
    total, count_so_far = gathering.passes * sum(map(len, prompts.values())), 0

    def advance(count: int) -> None:
        nonlocal count_so_far
        count_so_far += count
        passes = gathering.passes
        listen(Progress("calibrate", min(count_so_far, total) // passes, total // passes, "prompts"))

    if any(out.glob("*.safetensors")):
        raise PlanError(f"{out}: is the folder of a model; name another folder for the calibration")
    check_state(out / ".lock", *(each for name in prompts for each in (out / name, gathering.journal(name))))
    # before a file is written in a folder that is none of ours
    if strange := [out / name for name in prompts if (out / name).exists() and not _is_calibration_folder(out / name)]:
        raise PlanError(
            f"{folder}: exists and is no calibration; remove it, or choose another folder" for folder in strange
        )
    out.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = lock(guard := out / ".lock", wait=wait)
    except BlockingIOError as error:
        raise PlanError(f"{out}: another calibration runs there") from error
    try:
        advance(0)
        return {name: gathering.one(name, each, advance) for name, each in prompts.items()}
    except StoppedError as stop:
        stop.kept = f"replies so far are kept in {out}, and the same command resumes from there"
        raise
    finally:
        # nothing to come back to: another run that waits for the lock sees that its file is gone
        if not any(_is_calibration_folder(out / name) or gathering.journal(name).exists() for name in prompts):
            guard.unlink(missing_ok=True)
        os.close(descriptor)


@dataclass(frozen=True)
class _AgentCalibration:
    """The calibration of several agents with one model."""

    base: LiveBase
    out: Path
    settings: CalibrationSettings
    options: Options

    @property
    def passes(self) -> int:
        """The number of passes over a prompt: for its reply, and for each statistic."""
        return 1 + self.settings.gathers("inputs") + self.settings.gathers("importance")

    def one(self, name: str, prompts: Sequence[Prompt], advance: Callable[[int], None]) -> CalibrationRecord:
        """Calibrate one agent, unless it has a complete folder."""
        weights = _tensor_digests(self.base.plan_of(name))
        of_base = _tensor_digests(self.base.plan_of_base()) if self.settings.source == "base" else {}
        fingerprint = self._calibration_fingerprint([weights, of_base], prompts)
        folder = self.out / name
        if (
            (earlier_record := read_record(folder)) is not None
            and earlier_record.fingerprint == fingerprint
            and is_whole(folder, earlier_record)
        ):
            advance(self.passes * len(prompts))
            return earlier_record
        if folder.exists() and not self.options.overwrite:
            raise OtherCalibrationError(
                f"{folder}: was calibrated with another model, other prompts or other settings; choose another folder, "
                "or pass --overwrite",
                name,
            )
        start = time.monotonic()
        plan = self.base.put_agent(name)
        module: Any = import_module("ramerge.calibration.speaker")
        reply_settings = self.settings.max_new, self.settings.temperature, self.settings.reply_seed
        speaker = module.Speaker(name, self.base.live, self.base.tokenizer_of(name), *reply_settings)
        replies = self._gather_replies(speaker, prompts, fingerprint, advance)
        exchanges = [each for each in replies if not each.held_out]
        importances = (
            self._measure_importances(speaker, plan, exchanges, advance) if self.settings.gathers("importance") else {}
        )
        if self.settings.source == "base":  # whose inputs are recorded; replies and importances are the agent's
            self.base.put_base()
        inputs = self._record_inputs(speaker, plan, exchanges, advance) if self.settings.gathers("inputs") else None
        advance((len(replies) - len(exchanges)) * (self.passes - 1))
        record = self._make_record(speaker, fingerprint, prompts, replies, inputs, importances, start)
        record = write_folder(folder, of_base or weights, record, replies, inputs, overwrite=self.options.overwrite)
        if importances:
            write_importances(folder / IMPORTANCES, weights, [tensor.base for tensor in plan.tensors], importances)
        self.journal(name).unlink(missing_ok=True)
        return record

    def _gather_replies(
        self, speaker: Speaker, prompts: Sequence[Prompt], fingerprint: str, advance: Callable[[int], None]
    ) -> list[Exchange]:
        module: Any = import_module("ramerge.calibration.gather")
        journal = self.journal(speaker.name)
        earlier_replies = _kept_replies(journal, fingerprint)
        advance(len(earlier_replies))
        # written again: a run that was killed may have left half a line
        with journal.open("w", encoding="utf-8") as file:
            file.write(dumped({"fingerprint": fingerprint}, indent=None) + "\n" + to_lines(earlier_replies.values()))
            file.flush()

            def keep(replies: Sequence[Exchange]) -> None:
                file.write(to_lines(replies))
                file.flush()
                advance(len(replies))

            reward = reward_of(self.settings.reward)
            replies = module.exchanges_of(speaker, prompts, earlier_replies, self.settings.batch, reward, keep)
        if not self.settings.hold_out:
            return list(replies)
        first, _ = halves(prompts, self.settings.prompt_seed)
        keys = {prompt.key for prompt in first}
        return [replace(each, held_out=each.key not in keys) for each in replies]

    def _record_inputs(
        self, speaker: Speaker, plan: MergePlan, exchanges: Sequence[Exchange], advance: Callable[[int], None]
    ) -> RecordedInputs:
        module: Any = import_module("ramerge.calibration.gather")
        if self.settings.record == "prompt":
            exchanges = [replace(each, ids=each.ids[: each.start]) for each in exchanges]
        inputs: RecordedInputs = module.record_inputs(
            speaker,
            exchanges,
            {tensor.name for tensor in plan.tensors},
            self.settings.rows,
            self.settings.prompt_seed,
            lambda: advance(1),
        )
        return inputs

    def _measure_importances(
        self, speaker: Speaker, plan: MergePlan, exchanges: Sequence[Exchange], advance: Callable[[int], None]
    ) -> dict[str, Any]:
        module: Any = import_module("ramerge.calibration.importances")
        names = [tensor.name for tensor in plan.tensors if tensor.base.is_float]
        live: Any = import_module("ramerge.calibration.live")
        with live.explain_memory_errors(speaker.name, self.base.device, live.ADVICE):
            importances: dict[str, Any] = module.importances_of(
                self.base.live, speaker.name, exchanges, names, lambda: advance(1)
            )
        return importances

    def journal(self, name: str) -> Path:
        """Return the file that keeps an agent's replies until its folder is complete."""
        return self.out / f".{name}.{REPLIES}"

    def _calibration_fingerprint(self, weights: Sequence[Mapping[str, str]], prompts: Sequence[Prompt]) -> str:
        settings = {**self.settings.result_settings(), "right_at": None}
        settings["reward"] = function_state(self.settings.reward) if self.settings.reward else ""
        return hashlib.sha256(
            repr((7, weights, [prompt.content for prompt in prompts], sorted(settings.items()))).encode()
        ).hexdigest()

    def _make_record(
        self,
        speaker: Speaker,
        fingerprint: str,
        prompts: Sequence[Prompt],
        replies: Sequence[Exchange],
        inputs: RecordedInputs | None,
        importances: Mapping[str, object],
        start: float,
    ) -> CalibrationRecord:
        endless = sum(not each.ended for each in replies if each.generated)
        empty = sum(not each.text.strip() for each in replies)
        cut = sum(each.truncated for each in replies)
        plain = sum(map(speaker.takes_as_plain, prompts))
        notes = [
            f"{speaker.name}: {count:,} of {len(replies):,} {text}"
            for count, text in (
                (endless, f"replies did not end within {self.settings.max_new:,} tokens; raise --max-new"),
                (empty, "replies are empty"),
                (cut, "prompts or replies were cut: the model has no more positions"),
                (plain, "prompts are taken as plain text: the tokenizer's chat template writes no such conversation"),
            )
            if count
        ]
        if len(prompts) < self.settings.count != _SETTINGS.count:
            count = quantity(len(prompts), "prompt")
            why = f"fewer than --prompt-count {self.settings.count:,}"
            notes.append(f"{speaker.name}: its files hold {count}, {why}: all are used")
        return CalibrationRecord(
            ramerge_version=__version__,
            agent=speaker.name,
            fingerprint=fingerprint,
            prompts=len(replies),
            held_out=sum(each.held_out for each in replies),
            generated=sum(each.generated for each in replies),
            rewarded=sum(each.reward is not None for each in replies),
            tokens=sum(len(each.ids) for each in replies),
            rows=len(inputs.weights["weights"]) if inputs is not None else 0,
            layers=len(inputs.places) if inputs is not None else 0,
            importances=len(importances),
            device=device_name(self.base.device),
            dtype=self.base.dtype,
            notes=tuple(notes),
            seconds=round(time.monotonic() - start, 3),
        )


def _tensor_digests(plan: MergePlan) -> dict[str, str]:
    """Return digests of the tensors that a plan for one model reads."""
    own = {tensor.parts[0].name: (tensor.originals or tensor.sources)[0].tensor for tensor in plan.tensors}
    with Files(plan.inputs.files) as files:
        return digests_of(own, Reader(files))


def _is_calibration_folder(folder: Path) -> bool:
    """Whether a folder holds an agent's calibration."""
    return any((folder / file).exists() for file in (PLACES, REPLIES, CALIBRATION))


def _kept_replies(journal: Path, fingerprint: str) -> dict[str, Exchange]:
    """Read the replies of an interrupted run, by prompt key; ignore those with another fingerprint."""
    try:
        first, _, rest = read_regular(journal, MOST_BYTES).partition(b"\n")
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InputError(f"{journal}: {error}; remove it, and its agent is asked again") from error
    if fingerprint.encode() not in first:
        return {}
    return {each.key: each for each in read_exchanges(journal, rest, partial=True) if each.key}
