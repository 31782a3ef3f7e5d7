"""Is the factor of the sum that `analyze --cores` forecasts the one that validation prompts choose?

    python -m lab.forecasts --seeds 0 1 2

trains agents of the lab again, without scoring them, and writes lab/results/forecasts.json: for each setting and seed
the forecast, and the factor that is kept in lab/results. docs/decisions/036-forecast-of-the-sum.md has the predictions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import ramerge
from lab.results import RESULTS
from lab.run import Seed
from lab.settings import SETTINGS, Setting
from lab.sizes import FULL
from lab.store import Store
from ramerge.foundation.files import write_file

KEPT = RESULTS / "forecasts.json"
_SUM = "task_arithmetic"


def main() -> None:
    """Forecast, compare, keep, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m lab.forecasts", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--work", type=Path, default=Path(".lab/full"), help="folder for agents; default: .lab/full")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {str(seed): forecasts_of(arguments.work, seed) for seed in arguments.seeds}
    write_file(KEPT, json.dumps(found, indent=1) + "\n")
    print("\n".join(table(found)))


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


def table(found: dict[str, Any]) -> Sequence[str]:
    """The mean forecast and chosen factor of each setting, and how far they are apart, in Markdown."""
    lines = ["| setting | forecast | chosen | distance |", "| --- | ---: | ---: | ---: |"]
    for setting in SETTINGS:
        rows = [by_setting[setting.name] for by_setting in found.values()]
        apart = [abs(row["forecast"] - row["chosen"]) for row in rows]
        means = [sum(values) / len(rows) for values in ([row[key] for row in rows] for key in ("forecast", "chosen"))]
        lines.append(f"| {setting.name} | {means[0]:.2f} | {means[1]:.2f} | {sum(apart) / len(apart):.2f} |")
    return lines


if __name__ == "__main__":
    main()
