"""Is the factor of the sum that `analyze --cores` forecasts the one that validation prompts choose?

    python -m lab.forecasts --seeds 0 1 2

trains agents of the lab again, without scoring them, and writes lab/results/forecasts.json: for each setting and seed
the forecast, and the factor that is kept in lab/results. lab/experiments/036-forecast-of-the-sum.md has the
predictions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import ramerge
from lab.results import RESULTS
from lab.run import Seed
from lab.settings import SETTINGS, Setting
from lab.sizes import FULL
from lab.store import Store
from ramerge.core.foundation.files import write_file

KEPT = RESULTS / "forecasts.json"
_SUM = "task_arithmetic"


def main() -> None:
    """Forecast, compare, and keep."""
    parser = argparse.ArgumentParser(prog="python -m lab.forecasts", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--work", type=Path, default=Path(".lab/full"), help="folder for agents; default: .lab/full")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {str(seed): forecasts_of(arguments.work, seed) for seed in arguments.seeds}
    write_file(KEPT, json.dumps(found, indent=1) + "\n")
    for row in rows_of(found):
        print(*row)


def forecasts_of(work: Path, seed: int) -> dict[str, dict[str, float]]:
    """Of each setting the forecast factor, and the one that validation prompts chose."""
    own = Seed(Store(work, FULL.digest()), FULL, seed)
    own.train(dict.fromkeys(setting.kind for setting in SETTINGS))
    return {
        setting.name: {"forecast": _forecast(own, setting), "chosen": chosen(setting, seed)} for setting in SETTINGS
    }


def _forecast(own: Seed, setting: Setting) -> float:
    recipe = own.recipe(setting, _SUM) | {"method": "ram"}
    cores = ramerge.analyze(recipe, cores=True, options=ramerge.Options(cache=False)).cores
    assert cores is not None and cores.model.factor is not None
    return cores.model.factor


def chosen(setting: Setting, seed: int) -> float:
    """The factor of the sum that is best on the validation prompts of a seed, as it was kept."""
    kept = json.loads((RESULTS / f"{setting.name}.json").read_text(encoding="utf-8"))
    row = kept["rows"][_SUM]
    return float(row["points"][row["chosen"][kept["seeds"].index(seed)]]["scale"])


def rows_of(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Of each setting the mean forecast and chosen factor, and how far they are apart in a seed, as text."""
    rows = []
    for setting in SETTINGS:
        pairs = [(each[setting.name]["forecast"], each[setting.name]["chosen"]) for each in found.values()]
        apart = fmean(abs(forecast - factor) for forecast, factor in pairs)
        means = [fmean(values) for values in zip(*pairs, strict=True)]
        rows.append((setting.name, *(f"{value:.2f}" for value in (*means, apart))))
    return rows


def distances(found: Mapping[str, Any]) -> tuple[float, float]:
    """How far the forecast, and the factor 1, are from the chosen factors, in the mean over settings and seeds."""
    pairs = [(one["forecast"], one["chosen"]) for each in found.values() for one in each.values()]
    return fmean(abs(forecast - factor) for forecast, factor in pairs), fmean(abs(1 - factor) for _, factor in pairs)


if __name__ == "__main__":
    main()
