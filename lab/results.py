"""Results of a run in lab/results: written and read.

For each setting: the rows, and for each of them which held-out prompts of the merged tasks were answered exactly (bits,
compressed) by the merge with default parameters and by the one that was chosen on the validation prompts. Of the other
tasks only the counts are kept.
"""

from __future__ import annotations

import base64
import json
import platform
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from lab import statistics
from lab.settings import Setting, Sizes
from lab.statistics import Estimate, Floats
from lab.store import unpack
from lab.tasks import NAMES
from ramerge.core.foundation.files import write_file

RESULTS = Path(__file__).with_name("results")
Right = NDArray[np.bool_]
BASE = "base"
FIRST_BASE, SECOND_BASE = "kinds", "second-base"
MODELS = {FIRST_BASE: "SmolLM2-135M", SECOND_BASE: "Gemma 3 270M"}
"""Bases of real agents, by where results of `lab/real/kinds.py` are kept."""

# --- keeping ---


def keep(work: Path, sizes: Sizes, out: Path = RESULTS) -> None:
    """Write what the finished seeds of a work folder found."""
    complete_seeds = set(range(sizes.seeds))
    for setting in sizes.choice():
        seeds = [
            seed
            for seed in range(sizes.seeds)
            if all(_row_file(work, seed, setting, row.name).exists() for row in setting.rows)
        ]
        complete_seeds &= set(seeds)
        if seeds:
            _write(out / f"{setting.name}.json", _content(work, sizes, setting, seeds))
    for kind in sizes.kinds:
        files = {seed: work / f"seed-{seed:02d}" / "models" / f"{kind}.json" for seed in range(sizes.seeds)}
        by_seed = {seed: json.loads(path.read_text()) for seed, path in files.items() if path.exists()}
        if by_seed:
            tasks = list(sizes.tasks_of(kind))
            models = {
                name: _bits([[one["scores"][name][task] for task in NAMES] for one in by_seed.values()], sizes.test)
                for name in (BASE, *tasks)
            }
            geometry = [_short(one["geometry"]) for one in by_seed.values()]
            _write(out / f"models-{kind}.json", {"seeds": list(by_seed), "models": models, "geometry": geometry})
    plain = asdict(sizes)
    for key in ("settings", "rows"):
        plain.pop(key)
    _write(out / "run.json", {"sizes": plain, "processor": _processor(), "seconds": _seconds(work, complete_seeds)})


def _content(work: Path, sizes: Sizes, setting: Setting, seeds: Sequence[int]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    others = [task for task in NAMES if task not in setting.tasks]
    for row in setting.rows:
        runs = [json.loads(_row_file(work, seed, setting, row.name).read_text()) for seed in seeds]
        errors = [one["error"] for one in runs if "error" in one]
        if errors:
            rows[row.name] = {"error": errors[0]}
            continue
        rows[row.name] = {
            "method": row.method,
            "fixed": dict(row.fixed),
            "grid": {name: list(values) for name, values in row.grid.items()},
            "points": runs[0]["points"],
            "chosen": [one["chosen"] for one in runs],
            "validation": [[_six_digits(value) for value in one["validation"]] for one in runs],
            "seconds": [one["seconds"] for one in runs],
        }
        for name in ("default", "best"):
            tests = [one[name] or one["default"] for one in runs]
            if name == "best" and not any(one["best"] for one in runs):
                continue
            rows[row.name][name] = _bits([[one[task] for task in setting.tasks] for one in tests], sizes.test)
            if row.beyond:
                rows[row.name][f"{name} others"] = [
                    [int(unpack(one[task], sizes.test).sum()) for task in others] for one in tests
                ]
    return {
        "kind": setting.kind,
        "agents": dict(setting.agents),
        "dtype": setting.dtype,
        "seeds": list(seeds),
        "tasks": list(setting.tasks),
        "others": others,
        "prompts": sizes.test,
        "rows": rows,
    }


def _row_file(work: Path, seed: int, setting: Setting, row: str) -> Path:
    return work / f"seed-{seed:02d}" / "scores" / setting.name / f"{quote(row, safe='')}.json"


def _bits(texts: Sequence[Sequence[str]], prompts: int) -> str:
    """Answers of shape (seeds, tasks, prompts) as text."""
    bits = np.array([[unpack(text, prompts) for text in row] for row in texts])
    return base64.b64encode(zlib.compress(np.packbits(bits).tobytes(), 9)).decode()


def _read_bits(text: str, shape: tuple[int, int, int]) -> Right:
    data = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)
    return np.unpackbits(data, count=int(np.prod(shape))).reshape(shape).astype(bool)


def _short(geometry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: {
            name: [_six_digits(one) for one in value] if isinstance(value, list) else _six_digits(value)
            for name, value in part.items()
        }
        for key, part in geometry.items()
    }


def _six_digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _seconds(work: Path, seeds: Iterable[int]) -> dict[str, float]:
    """Processor seconds of each finished seed: training, and merging with scoring."""
    by_seed: dict[str, float] = {}
    for seed in sorted(seeds):
        folder = work / f"seed-{seed:02d}"
        training = sum(json.loads(path.read_text()) for path in folder.rglob("seconds.json"))
        scoring = sum(json.loads(path.read_text()).get("took", 0.0) for path in folder.glob("scores/*/*.json"))
        by_seed[str(seed)] = round(training + scoring, 1)
    return by_seed


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _write(path: Path, content: Mapping[str, Any]) -> None:
    lines = ",\n".join(f"{json.dumps(key)}: {_value(value)}" for key, value in content.items())
    write_file(path, f"{{\n{lines}\n}}\n")


def _value(value: Any) -> str:
    """JSON, a line for each entry of a mapping, so that a change shows as few lines."""
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value)
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(one)}" for key, one in value.items()) + "\n}"


# --- reading ---


@dataclass(frozen=True)
class Model:
    """A base, an agent or a merge, measured for some seeds.

    Attributes:
        right: which prompts are answered exactly, of shape (seeds, tasks, prompts).
        others: per cent of right answers, of shape (seeds, tasks that no agent was trained on); empty if not asked.
    """

    right: Right
    others: Floats

    @property
    def by_task(self) -> Floats:
        """Per cent of right answers, of shape (seeds, tasks)."""
        shares: Floats = 100 * self.right.mean(2)
        return shares

    @property
    def mean(self) -> float:
        """Per cent of right answers, mean over tasks and seeds."""
        return float(self.by_task.mean())


@dataclass(frozen=True)
class Outcome:
    """Results of one setting.

    Attributes:
        default: merges with default parameters.
        best: merges with parameters that were chosen on the validation prompts; the default where none are.
        models: the base, and the agents by their tasks.
    """

    name: str
    dtype: str
    seeds: tuple[int, ...]
    tasks: tuple[str, ...]
    others: tuple[str, ...]
    agents: tuple[str, ...]
    rows: Mapping[str, Any]
    default: Mapping[str, Model]
    best: Mapping[str, Model]
    models: Mapping[str, Model]

    @cached_property
    def failures(self) -> dict[str, str]:
        """Rows that have an error instead of scores."""
        return {name: row["error"] for name, row in self.rows.items() if "error" in row}

    @property
    def has_regions(self) -> bool:
        """Whether unique regions were measured."""
        return any(name.startswith("unique of ") for name in self.default)

    @property
    def has_ablations(self) -> bool:
        """Whether parameters of RAM+ were varied one by one."""
        return any(name.startswith("ram+ r=") for name in self.default)

    def mean(self, model: Model) -> Estimate:
        """The mean over seeds and tasks, with its interval."""
        return statistics.estimate(model.mean, self._draws(model))

    def difference(self, first: Model, second: Model, task: int | None = None) -> Estimate:
        """The first's mean less the second's, paired; of all tasks or of one."""
        value = first.mean - second.mean
        if task is not None:
            value = float((first.by_task - second.by_task)[:, task].mean())
        return statistics.estimate(value, self._draws(first, task) - self._draws(second, task))

    def against(self, models: Mapping[str, Model], reference: Model) -> dict[str, Estimate]:
        """Each model's mean less the reference's, paired; every draw is shared by all."""
        return {name: self.difference(model, reference) for name, model in models.items()}

    def _draws(self, model: Model, task: int | None = None) -> Floats:
        """Replicates of a model's mean over all tasks or of one; those of all models are drawn at once, and kept."""
        if task not in self._replicates:
            models = {id(one): one for group in (self.models, self.default, self.best) for one in group.values()}
            right = np.stack([one.right if task is None else one.right[:, [task]] for one in models.values()], axis=3)
            self._replicates[task] = dict(
                zip(models, statistics.replicates(list(np.moveaxis(right, 1, 0))).T, strict=True)
            )
        return self._replicates[task][id(model)]

    @cached_property
    def _replicates(self) -> dict[int | None, dict[int, Floats]]:
        return {}

    def only(self, keep: Callable[[int], bool]) -> Outcome:
        """The same of some seeds."""
        places = [place for place, seed in enumerate(self.seeds) if keep(seed)]

        def cut(models: Mapping[str, Model]) -> dict[str, Model]:
            return {
                name: Model(one.right[places], one.others[places] if len(one.others) else one.others)
                for name, one in models.items()
            }

        return Outcome(
            self.name,
            self.dtype,
            tuple(self.seeds[place] for place in places),
            self.tasks,
            self.others,
            self.agents,
            self.rows,
            cut(self.default),
            cut(self.best),
            cut(self.models),
        )


class Results:
    """Reader of lab/results."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self._folder = folder
        self._settings: dict[str, Outcome | None] = {}
        self.run: dict[str, Any] = self.content("run")

    def setting(self, name: str) -> Outcome | None:
        """Results of a setting; None without any."""
        if name not in self._settings:
            self._settings[name] = self._read(name)
        return self._settings[name]

    def _read(self, name: str) -> Outcome | None:
        content = self.content(name)
        models = self.models(content["kind"]) if content else {}
        if not content or not models:
            return None
        seeds, tasks, prompts = content["seeds"], content["tasks"], content["prompts"]
        shape = (len(seeds), len(tasks), prompts)
        default, best = {}, {}
        for row, values in content["rows"].items():
            if "error" in values:
                continue
            pair = {
                key: Model(_read_bits(values[key], shape), 100 * np.array(values.get(f"{key} others", [])) / prompts)
                for key in ("default", "best")
                if key in values
            }
            default[row], best[row] = pair["default"], pair.get("best", pair["default"])
        places = [models["seeds"].index(seed) for seed in seeds]
        columns = [NAMES.index(task) for task in tasks]
        others = [NAMES.index(task) for task in content["others"]]
        whole = (len(models["seeds"]), len(NAMES), prompts)
        all_models = {}
        for model, text in models["models"].items():
            right = _read_bits(text, whole)[places]
            all_models[model] = Model(right[:, columns], 100 * right[:, others].mean(2))
        return Outcome(
            name,
            content["dtype"],
            tuple(seeds),
            tuple(tasks),
            tuple(content["others"]),
            tuple(content["agents"]),
            content["rows"],
            default,
            best,
            all_models,
        )

    def models(self, kind: str) -> dict[str, Any]:
        """Seeds, models and geometry of agents of a kind; empty where there are none."""
        return self.content(f"models-{kind}")

    def content(self, name: str) -> dict[str, Any]:
        """The content of a file of results; empty where there is none."""
        path = self._folder / f"{name}.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def kept_all(self, pattern: str) -> list[dict[str, Any]]:
        """The contents of all files of results with such names, in order."""
        return [dict(json.loads(path.read_text())) for path in sorted(self._folder.glob(f"{pattern}.json"))]
