"""The base in memory, as a context that can put the weights of agents and merges into it."""

from __future__ import annotations

import gc
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
from ramerge.core.foundation.devices import choose_device
from ramerge.core.storage.location import here
from ramerge.core.tensors.embeddings import EMBEDDINGS, HEADS
from ramerge.sdk.options import missing, read_limits
from ramerge.sdk.plans import MergePlan

if TYPE_CHECKING:
    import torch

    from ramerge.calibration.live import LiveModel

_LIBRARIES = ("torch", "transformers")
_TINY = 5_000_000  # parameters


def base_of(models: Recipe) -> str:
    """Return the base of a recipe, which a calibration needs."""
    if models.base is None:
        raise RecipeError("prompts need a base, whose model gets the weights of agents and merges; give --base")
    return models.base


def require_extras(others: Mapping[str, Iterable[str]] | None = None) -> None:
    """Refuse to run without torch and transformers, and without the modules of `others`, by extra."""
    if lacking := missing({"torch": _LIBRARIES, **(others or {})}, who="prompts need"):
        raise RecipeError(lacking)


class LiveBase:
    """A context with the loaded base, into which weights of agents and merges can be put.

    Attributes:
        models: base and agents, with the recipe's keys for reading them, as `models_only` returns them.
    """

    live: LiveModel

    def __init__(self, models: Recipe, settings: CalibrationSettings, options: Options) -> None:
        self.models = models
        self.options = options
        self._base = base_of(models)
        # warnings are a matter of the merge, whose recipe may set other keys, such as `companions`
        self._reading = replace(options, strict=False)
        self._settings = settings
        self._stack = ExitStack()
        self._plans: dict[str, MergePlan] = {}

    def __enter__(self) -> LiveBase:
        module: Any = import_module("ramerge.calibration.live")  # torch takes seconds
        self.choose()
        limits = read_limits(self.options.threads, self.options.max_memory)
        self.check()
        plan = self.plan_of_base()
        importances = importance_bytes(plan, self._settings)
        budget = budget_of(model_bytes(plan, self.dtype), importances, self._settings, self.device)
        with ExitStack() as stack:
            stack.enter_context(module.quiet())
            # a second thread costs more than it gives in a tiny model, and far more on a busy machine
            tiny = plan.parameters_count < _TINY
            stack.enter_context(module.threads(limits.threads or (1 if tiny else None)))
            self.place: Path = Path(stack.enter_context(TemporaryDirectory(prefix="ramerge-", suffix=".model")))
            folder = self._loadable_folder(plan)
            advice = "use a device with more memory, dtype=bfloat16, or device=cpu"
            with module.explain_memory_errors(str(folder), self.device, advice):
                self.live = module.LiveModel(folder, self.device, self.dtype, budget)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.unload()
        self._stack.close()

    def unload(self) -> None:
        """Free the memory of the model when all replies and scores are done."""
        if hasattr(self, "live"):
            torch: Any = import_module("torch")
            del self.live
            gc.collect()
            torch.cuda.empty_cache()  # does nothing without a GPU

    def choose(self) -> None:
        """Choose the device and the dtype in which the model runs."""
        setting = self._settings.dtype
        self.device: torch.device = choose_device(self._settings.device, setting)
        self.dtype: str = setting if setting != "auto" else "float32" if self.device.type == "cpu" else "bfloat16"

    def _loadable_folder(self, plan: MergePlan) -> Path:
        """Return a folder from which transformers can load the base: its own, or a converted copy."""
        base = plan.inputs.base.directory
        base_folder = here(base) if base is not None else None
        # transformers loads a folder as it is that has weights in files of its own format, which are not quantized
        is_unencoded = all(tensor.base.encoding == "" for tensor in plan.tensors)
        if (
            base_folder
            and is_unencoded
            and plan.inputs.formats
            and (base_folder / "config.json").exists()
            and any(base_folder.glob("*.safetensors"))
            and not (base_folder / "adapter_config.json").exists()
        ):
            return base_folder
        folder = self.place / "base"
        ramerge.merge(self._recipe_of_base(), folder, options=replace(self.options, overwrite=True))
        return folder

    def check(self) -> None:
        """Check the headers, and refuse models that cannot be merged or gathered."""
        plans = [self.plan_of(name) for name in self.models.agents]
        if self._settings.gathers("importance") and any(tensor.originals for tensor in plans[0].tensors):
            raise PlanError("vocabularies of different sizes cannot be merged with importances; use another method")

    def plan_of_base(self) -> MergePlan:
        """Return the plan that reads only the base."""
        return self._plan_without_problems(self._recipe_of_base()).details

    def plan_of(self, agent: str) -> MergePlan:
        """Return the plan that reads one agent as a merge of all agents does, under the base's names, with its own
        tokenizer.
        """
        if agent not in self._plans:
            self._plans[agent] = self._plan_without_problems(self._recipe_of_agent(agent)).details
        return self._plans[agent]

    def _recipe_of_base(self) -> dict[str, object]:
        allow = self.models.allow.model_dump(exclude_defaults=True)
        return {"method": "passthrough", "agents": {"model": self._base}, "allow": allow}

    def _recipe_without_prompts(self, **values: Any) -> Recipe:
        return self.models.with_(prompts=None, **values)

    def _recipe_of_agent(self, agent: str) -> Recipe:
        # all agents are named, because rules of `rename` may be for others, and a chain of deltas needs those below
        return self._recipe_without_prompts(rules=[{"take": agent}], companions=agent)

    def _plan_without_problems(self, recipe: Recipe | Mapping[str, object]) -> ramerge.Plan:
        base_plan = ramerge.plan(recipe, options=self._reading)
        if base_plan.problems:
            raise PlanError(base_plan.details.findings.problems)
        return base_plan

    def put(self, plan: ramerge.Plan) -> None:
        """Merge a plan into the model in memory."""
        self._load_merged_weights(self._unquantized_plan(plan))

    def _unquantized_plan(self, plan: ramerge.Plan) -> ramerge.Plan:
        """Return the plan, or if its output is quantized, a plan that reads this output as plain numbers.

        The output is written for this, because only readers of files dequantize.
        """
        if plan.problems or not plan.details.is_quantized:
            return plan
        folder, recipe = self.place / "merged", plan.recipe
        ramerge.merge(recipe, folder, options=replace(self.options, overwrite=True))
        reading = {"method": "passthrough", "base": recipe.base, "agents": {"model": str(folder)}, "dtype": self.dtype}
        allow = recipe.allow.model_dump(exclude_defaults=True)
        # warnings are a matter of the merge
        return ramerge.plan({**reading, "allow": allow}, options=replace(self.options, strict=False))

    def put_agent(self, agent: str) -> MergePlan:
        """Put the weights of one agent into the model in memory, with its own vocabulary; return the plan.

        The weights are not rounded to the base's dtype: an agent in float32, or an adapter, may be more exact than its
        base.
        """
        plan = self._plan_without_problems(self._recipe_of_agent(agent).with_(dtype=self.dtype))
        rows = {
            tensor.parts[0].name: tensor.originals[0].tensor.shape[0]
            for tensor in plan.details.tensors
            if tensor.originals
        }
        self._load_merged_weights(plan, rows)
        return plan.details

    def put_base(self) -> None:
        """Put the weights of the base into the model in memory; rows of tokens that agents have added stay."""
        self._load_merged_weights(
            self._plan_without_problems(self._recipe_without_prompts(rules=[{"keep": "base"}], dtype=self.dtype))
        )

    def _load_merged_weights(self, plan: ramerge.Plan, fewer: Mapping[str, int] | None = None) -> None:
        """Load a plan's merged weights into the model. `fewer`: row counts of tensors that get fewer rows."""
        parts = [tensor.parts[0] for tensor in plan.details.tensors]
        rows = {part.name: part.shape[0] for part in parts if part.name.endswith((*EMBEDDINGS, *HEADS))}
        self.live.fit({**rows, **(fewer or {})}, untied=plan.details.config.untied)
        with plan.tensors() as tensors:
            self.live.put(tensors)

    def tokenizer_of(self, agent: str | None = None) -> Any:
        """Load an agent's tokenizer: its own, or the base's if it has none; without an agent, the base's."""
        module: Any = import_module("ramerge.calibration.live")
        plan = self.plan_of(agent) if agent is not None else self.plan_of_base()
        if agent == "base":  # the word by which `companions` names the base
            own = self.models.agents[agent].model_copy(update={"over": None}).plain
            alone = {**self._recipe_of_base(), "base": self._base, "agents": {"agent": own}, "companions": "agent"}
            plan = ramerge.plan(alone, options=self._reading).details
        if not any(name.startswith("tokenizer") for name in plan.companions):
            plan = self.plan_of_base()
        with TemporaryDirectory(prefix="tokenizer-", dir=self.place) as folder:
            for name, source in plan.companions.items():
                target = Path(folder, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                with source.open("rb") as file, target.open("wb") as copy:
                    shutil.copyfileobj(file, copy)
            try:
                return module.load_tokenizer(Path(folder))
            except CheckpointError as error:
                model = self._base if agent is None else self.models.agents[agent].model or agent
                text = f"{model}: neither it nor the base ({self._base}) has a tokenizer that transformers can load"
                raise CheckpointError(f"{text}; put the files of a tokenizer there") from error
