"""Calibrations of recipes in the user's cache: `gather`, for merges with prompts, and what `rank` needs, too."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from ramerge import Options, Recipe, RecipeError
from ramerge.calibration.agent_folder import is_whole, read_record
from ramerge.calibration.calibrate import gather_agents, prompts_of
from ramerge.calibration.live_base import LiveBase, require_extras
from ramerge.calibration.prompts import Prompt
from ramerge.calibration.record import CalibrationSettings
from ramerge.sdk.files import store
from ramerge.sdk.options import check_options, check_settings
from ramerge.sdk.progress import Listener, silence
from ramerge.sdk.recipes import AnyRecipe, Document, models_only, open_recipe
from ramerge.sdk.tensors import state_of
from ramerge.sdk.text import dumped

_SETTINGS, _OPTIONS = CalibrationSettings(), Options()


def gather(
    recipe: AnyRecipe,
    what: Literal["inputs", "importance"] = "inputs",
    *,
    settings: CalibrationSettings = _SETTINGS,
    options: Options = _OPTIONS,
    on_progress: Listener | None = None,
) -> dict[str, Path]:
    """Gather the side inputs that a method needs of a recipe's agents, unless the user's cache has them.

    `merge`, `plan` and `sweep` do this by themselves if a recipe has prompts. Half of the prompts are held out, so that
    `rank` can score merges on them. Folders that were not used for 90 days are removed.

    Args:
        recipe: a recipe with a base, agents and prompts, as for `plan`.
        what: `inputs` of linear layers, for `regmean`, or `importance`, for `fisher`.
        settings: as for `calibrate`.
        options: as for `calibrate`; `overwrite` is ignored.
        on_progress: called with the number of prompts done, as by `calibrate`.

    Returns:
        A folder for each agent, as its key `inputs` or `importance` takes it. Agents that already name such a folder
        are left out.

    Raises:
        RecipeError: the recipe has no base, an agent has no prompts, or there is no cache.
        RamergeError: as for `calibrate`.

    Example:
        >>> recipe = {"base": "base", "agents": {"code": "coder"}, "prompts": {"code": "code.jsonl"}}
        >>> ramerge.gather(recipe)["code"].name  # doctest: +SKIP
        'code'
    """
    check_options(options)
    check_settings("settings", settings, CalibrationSettings)
    document = open_recipe(recipe, options)
    models = models_only(document)
    names = [name for name in models.agents if not _has_side_inputs(document, name, what)]
    if not names:
        return {}
    request = CachedCalibration.from_recipe(models, names, replace(settings, gather=what), options)
    if not request.is_gathered:
        with request.gather(options, on_progress or silence):
            pass
    return {name: request.folder / name for name in names}


def _has_side_inputs(document: Document, name: str, what: str) -> bool:
    """Whether an agent names its own side inputs, so that none need to be gathered."""
    agent = document.agents[name]
    folder = agent.get(what) if isinstance(agent, Mapping) else None
    return isinstance(folder, str) and (document.folder / Path(folder).expanduser()).is_dir()


@dataclass(frozen=True)
class CachedCalibration:
    """A calibration of some agents of a recipe, and its own folder in the cache.

    The folder's name is a digest of the settings and of the state of all input files, so that no other models or
    prompts share it.

    Attributes:
        folder: holds a folder for each agent.
    """

    models: Recipe
    prompts: Mapping[str, Sequence[Prompt]]
    settings: CalibrationSettings
    folder: Path

    @classmethod
    def from_recipe(
        cls, models: Recipe, names: Sequence[str], settings: CalibrationSettings, options: Options
    ) -> CachedCalibration:
        """Return the calibration of agents of a recipe, after reading its prompts and the headers of its models."""
        settings = replace(settings, hold_out=True)
        paths = {name: path for name, path in models.prompts.items() if name in names}
        prompts = prompts_of(names, paths, settings)
        reader = LiveBase(models, settings, options)
        reader.check()
        states = [state_of(reader.plan_of(name).inputs.files) for name in names]
        about = [models.to_yaml(), paths, states, repr(prompts), asdict(settings)]
        return cls(models, prompts, settings, _cached_folder(hashlib.sha256(dumped(about).encode()).hexdigest()))

    @property
    def is_gathered(self) -> bool:
        """Whether the whole calibration is in the cache, undamaged."""
        records = {name: read_record(self.folder / name) for name in self.prompts}
        return all(one is not None and is_whole(self.folder / name, one) for name, one in records.items())

    @contextmanager
    def gather(self, options: Options, listen: Listener) -> Iterator[tuple[LiveBase, list[str]]]:
        """Gather what the cache lacks; yield the loaded base, and notes for the user."""
        require_extras()
        with LiveBase(self.models, self.settings, options) as live:
            whole = replace(options, overwrite=True)
            records = gather_agents(live, self.prompts, self.folder, self.settings, whole, listen, wait=True)
            yield live, [note for record in records.values() for note in record.notes]


def _cached_folder(name: str) -> Path:
    """Return the folder of a calibration in the user's cache, after marking it as just used."""
    home = store.folder("calibrations")
    if home is None:
        raise RecipeError("prompts: there is no cache folder; set RAMERGE_CACHE, or run `ramerge calibrate` first")
    folder = home.absolute() / name
    with store.entry(folder):
        folder.mkdir(exist_ok=True)
    return folder


def with_inputs(recipe: Document, names: Iterable[str], calibration: Path) -> Document:
    """Replace the prompts of a recipe's agents by recorded inputs. `calibration` holds a folder for each agent."""
    result = recipe.without("prompts")
    for name in names:
        result.set(("agents", name, "inputs"), str((calibration / name).absolute()), f"--prompts {name}")
    return result
