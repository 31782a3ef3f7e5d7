"""The base in memory, as a context that puts the weights of agents and merges into it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import ramerge
from ramerge import CheckpointError, Options, PlanError, Recipe, RecipeError
from ramerge.calibration.estimate import budget_of, importance_bytes, model_bytes
from ramerge.calibration.record import CalibrationSettings
from ramerge.sdk.machine import choose_device, missing, read_limits
from ramerge.sdk.plans import MergePlan
from ramerge.sdk.storage import here

if TYPE_CHECKING:
    import torch

    from ramerge.calibration.live import LiveModel

_LIBRARIES = ("torch", "transformers")
_TINY = 5_000_000  # parameters


def base_of(models: Recipe) -> str:
    """The base of a recipe, which a calibration needs.

    Raises:
        RecipeError: there is none.
    """
    if models.base is None:
        raise RecipeError("prompts need a base, whose model gets the weights of agents and merges; give --base")
    return models.base


def require_extras(others: Mapping[str, Iterable[str]] | None = None) -> None:
    """Refuse to run without torch and transformers, and without modules of other extras.

    Raises:
        RecipeError: one is missing.
    """
    if lacking := missing({"torch": _LIBRARIES, **(others or {})}, who="prompts need"):
        raise RecipeError(lacking)


class LiveBase:
    """A context in which the base is loaded, and can get the weights of agents and merges.

    Attributes:
        base: as in recipes.
        device: where it computes, with the name of a GPU.
        live: the model.
    """

    live: LiveModel

    def __init__(self, base: str | Path, settings: CalibrationSettings, options: Options) -> None:
        self.base: str = str(base)
        self.options = options
        self._settings = settings
        self._stack = ExitStack()

    def __enter__(self) -> LiveBase:
        module: Any = import_module("ramerge.calibration.live")  # torch takes seconds
        self.choose()
        limits = read_limits(self.options.threads, self.options.max_memory)
        plan = self.plan_of(self.base)
        importances = importance_bytes(plan, self._settings)
        budget = budget_of(model_bytes(plan, self.dtype), importances, self._settings, self.device)
        with ExitStack() as stack:
            stack.enter_context(module.quiet())
            # a second thread costs more than it gives in a tiny model, and far more on a busy machine
            tiny = plan.parameters_count < _TINY
            stack.enter_context(module.threads(limits.threads or (1 if tiny else None)))
            self.place: Path = Path(stack.enter_context(TemporaryDirectory(prefix="ramerge-", suffix=".model")))
            folder = self._folder(plan)
            advice = "use a device with more memory, dtype=bfloat16, or device=cpu"
            with module.naming_memory(str(folder), self.device, advice):
                self.live = module.LiveModel(folder, self.device, self.dtype, budget)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def choose(self) -> None:
        """Choose the device and the dtype in which the model runs."""
        wanted = self._settings.dtype
        self.device: torch.device = choose_device(self._settings.device, wanted)
        self.dtype: str = wanted if wanted != "auto" else "float32" if self.device.type == "cpu" else "bfloat16"

    def _folder(self, plan: MergePlan) -> Path:
        """A folder with the base that transformers loads: its own, or one that is written for that."""
        base = plan.inputs.base.directory
        found = here(base) if base is not None else None
        # transformers loads a folder as it is that has weights in files of its own format, which are not quantized
        stored = all(tensor.base.encoding == "" for tensor in plan.tensors)
        if (
            found
            and stored
            and plan.inputs.formats
            and (found / "config.json").exists()
            and any(found.glob("*.safetensors"))
            and not (found / "adapter_config.json").exists()
        ):
            return found
        folder = self.place / "base"
        ramerge.convert(self.base, folder, options=replace(self.options, overwrite=True))
        return folder

    def plan_of(self, model: object, name: str = "model") -> MergePlan:
        """The plan that reads one model as a merge does, under the base's names; messages call it `name`.

        Raises:
            PlanError: it does not fit the base; all problems are listed.
        """
        return self._planned(self._recipe_of(model, name)).details

    def _planned(self, recipe: Mapping[str, object]) -> ramerge.Plan:
        made = ramerge.plan(recipe, options=self.options)
        if made.problems:
            raise PlanError(made.problems)
        return made

    def _recipe_of(self, model: object, name: str = "model") -> dict[str, object]:
        base = {"base": self.base} if model != self.base else {}
        return {"method": "passthrough", "agents": {name: model}, **base}

    def put(self, recipe: Any) -> None:
        """Merge a recipe into the model in memory.

        Raises:
            RamergeError: as for `Plan.tensors`, and `CheckpointError` where transformers has no place for a tensor.
        """
        with self._in_numbers(ramerge.plan(recipe, options=self.options)).tensors() as tensors:
            self.live.put(tensors)

    def _in_numbers(self, plan: ramerge.Plan) -> ramerge.Plan:
        """A plan, or if its output is quantized, another one that reads this output and gives no codes.

        The output is written for that, because only readers of files dequantize.
        """
        if plan.problems or not plan.details.is_quantized:
            return plan
        folder, recipe = self.place / "merged", plan.recipe
        ramerge.merge(recipe, folder, options=replace(self.options, overwrite=True))
        reading = {"method": "passthrough", "base": recipe.base, "agents": {"model": str(folder)}, "dtype": self.dtype}
        allow = recipe.allow.model_dump(exclude_defaults=True)
        # warnings are a matter of the merge
        return ramerge.plan({**reading, "allow": allow}, options=replace(self.options, strict=False))

    def put_model(self, model: object, name: str = "model") -> MergePlan:
        """Put the weights of one model, base or agent, into the model in memory; return the plan that reads it.

        They are not rounded to the base's dtype: an agent in float32, or an adapter, may be more exact than its base.
        """
        plan = self._planned({**self._recipe_of(model, name), "dtype": self.dtype})
        with plan.tensors() as tensors:
            self.live.put(tensors)
        return plan.details

    def tokenizer_of(self, model: Any) -> Any:
        """The tokenizer of a model: its own, or the base's if it has none.

        Raises:
            CheckpointError: transformers cannot load it.
        """
        module: Any = import_module("ramerge.calibration.live")
        plan = ramerge.plan({**self._recipe_of(model), "companions": "model"}, options=self.options).details
        if plan.findings.problems or not any(name.startswith("tokenizer") for name in plan.companions):
            plan = self.plan_of(self.base)
        with TemporaryDirectory(prefix="tokenizer-", dir=self.place) as folder:
            for name, source in plan.companions.items():
                target = Path(folder, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                with source.open("rb") as file, target.open("wb") as copy:
                    shutil.copyfileobj(file, copy)
            try:
                return module.load_tokenizer(Path(folder))
            except CheckpointError as error:
                said = model if isinstance(model, str) else "an agent"
                text = f"{said}: neither it nor the base {self.base} has a tokenizer that transformers can load"
                raise CheckpointError(f"{text}; put the files of a tokenizer there") from error
