"""Everything for all seeds: train, merge, score. What is finished is kept, so a run that was killed goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

from lab import measure
from lab.measure import QuestionsByTask
from lab.model import Questions, Weights, read_model, write_model
from lab.rows import Row
from lab.settings import Setting, Sizes
from lab.store import Store, once
from lab.tasks import BY_NAME, SEED, held_out
from lab.training import importances, school, train
from ramerge.core.foundation.files import write_file


def run(folder: Path, sizes: Sizes, jobs: int = 1) -> None:
    """Do what is not done yet, seed by seed, in `jobs` processes.

    Raises:
        OtherSettingsError: the folder belongs to other settings.
    """
    Store(folder, sizes.digest())
    if jobs == 1:
        for seed in range(sizes.seeds):
            _finish(folder, sizes, seed)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_finish, folder, sizes, seed) for seed in range(sizes.seeds)]):
            future.result()


def _finish(folder: Path, sizes: Sizes, seed: int) -> None:
    # One thread adds up in one order, so a seed gives the same bytes again; and seeds run side by side.
    torch.set_num_threads(1)
    Seed(Store(folder, sizes.digest()), sizes, seed).finish()


class Seed:
    """A base, its agents, and all merges of them."""

    def __init__(self, store: Store, sizes: Sizes, seed: int) -> None:
        self.folder = store.seed(seed)
        self.sizes, self.seed = sizes, seed

    def train(self, kinds: Iterable[str]) -> None:
        """Train the base and the agents of some kinds, as far as they are missing."""
        self._model(self.folder / "base", "bfloat16", lambda: school(self.seed, self.sizes.schooling))
        for kind in kinds:
            for task in self.sizes.tasks_of(kind):
                self._train(kind, task)

    def finish(self) -> None:
        """Do what is not done yet, in the order of what needs what."""
        for kind in self.sizes.kinds:
            self.train([kind])
            once(self.folder / "models" / f"{kind}.json", partial(self._models, kind))
        for setting in self.sizes.choice():
            for row in setting.rows:
                path = self.folder / "scores" / setting.name / f"{quote(row.name, safe='')}.json"
                once(path, partial(self._row, setting, row))
            _say(f"seed {self.seed}: {setting.name}")

    # --- models ---

    def _train(self, kind: str, task: str) -> None:
        how = self.sizes.kinds[kind]
        dtype = "bfloat16" if how.rounded else "float32"
        base = read_model(self.folder / "base")
        self._model(self._agent(kind, task), dtype, lambda: train(base, BY_NAME[task], self.seed, how))

    def _model(self, folder: Path, dtype: str, make: Any) -> None:
        if (folder / "model.safetensors").exists():
            return
        start = time.process_time()
        weights = make()
        seconds = time.process_time() - start
        write_file(folder / "seconds.json", f"{seconds:.1f}\n")
        write_model(folder, weights, getattr(torch, dtype))
        _say(f"seed {self.seed}: {folder.relative_to(self.folder)}, {seconds:.0f} s")

    def _agent(self, kind: str, task: str) -> Path:
        return self.folder / "agents" / kind / task

    def _models(self, kind: str) -> dict[str, Any]:
        """Scores of base and agents, and what their task vectors look like."""
        base = read_model(self.folder / "base")
        agents = {task: read_model(self._agent(kind, task)) for task in self.sizes.tasks_of(kind)}
        models = {"base": base, **agents}
        scores = {name: measure.test_bits(weights, self._test) for name, weights in models.items()}
        return {"scores": scores, "geometry": measure.geometry(base, agents)}

    # --- merges ---

    def _row(self, setting: Setting, row: Row) -> dict[str, Any]:
        test = self._test if row.beyond else {task: self._test[task] for task in setting.tasks}
        validation = {task: self._validation[task] for task in setting.tasks}
        return measure.row_scores(self.recipe(setting, row.method), row, validation, test)

    def recipe(self, setting: Setting, method: str) -> dict[str, Any]:
        """Base and agents of a setting, with what the method needs of them."""
        agents: dict[str, dict[str, str]] = {}
        for name, task in setting.agents.items():
            agents[name] = {"model": str(self._agent(setting.kind, task))}
            if method == "fisher":
                agents[name]["importance"] = str(self._importance(setting.kind, task))
        return {"base": str(self.folder / "base"), "agents": agents, "dtype": setting.dtype}

    def _importance(self, kind: str, task: str) -> Path:
        folder = self.folder / "importances" / kind / task

        def make() -> Weights:
            return importances(read_model(self._agent(kind, task)), BY_NAME[task], self.seed, self.sizes.fisher)

        self._model(folder, "float32", make)
        return folder

    @cached_property
    def _held_out(self) -> tuple[QuestionsByTask, QuestionsByTask]:
        # of this seed only, so that prompts are drawn within seeds
        splits = {
            name: held_out(task, self.sizes.validation, self.sizes.test, SEED + self.seed)
            for name, task in BY_NAME.items()
        }
        parts = tuple({name: Questions(pair[part]) for name, pair in splits.items()} for part in (0, 1))
        return parts[0], parts[1]

    @property
    def _validation(self) -> QuestionsByTask:
        return self._held_out[0]

    @property
    def _test(self) -> QuestionsByTask:
        return self._held_out[1]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
