"""The tables of an analysis: rows for data frames and CSV files, and the text of these files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ramerge.analysis.parts import EXPONENTS, ULPS, AnalyzedPart, TensorPart
from ramerge.analysis.survey import FATES
from ramerge.sdk.text import csv_cell

Row = dict[str, Any]

NAMES = ("agents", "sharing", "epsilons", "fates", "pairs", "exponents", "ulps")
"""The names of the tables. The first columns of each are `kind` (model, layer, role, tensor) and `part`."""
_FIGURES = ("active", "density", "changed", "changed_share", "unique_share", "rho", "norm", "mean_magnitude")


def rows(parts: Mapping[str, Sequence[AnalyzedPart]]) -> dict[str, list[Row]]:
    """Return all tables of an analysis as lists of rows. Single tensors have no histograms and thresholds."""
    tables: dict[str, list[Row]] = {name: [] for name in NAMES}
    for kind, part in ((kind, part) for kind, members in parts.items() for part in members):
        layer, role = (part.layer, part.role) if isinstance(part, TensorPart) else (None, None)
        common_columns = {"kind": kind, "part": part.name, "layer": layer, "role": role}
        for agent in part.agents:
            key = {**common_columns, "agent": agent.name}
            figures = {name: getattr(agent, name) for name in _FIGURES}
            lambdas = {f"lambda {label}": value for label, value in agent.lambdas.items()}
            tables["agents"].append({**key, "elements": part.elements, **figures, **lambdas})
            tables["fates"] += [
                {**key, "merge": merge, **{name: getattr(fate, name) for name in (*FATES, "retained")}}
                for merge, fate in agent.fates.items()
            ]
            if kind == "tensor":
                continue
            tables["sharing"] += [
                {**key, "others": others, "elements": count} for others, count in enumerate(agent.shared_with)
            ]
            for at in agent.by_epsilon:
                figures = {name: value for name, value in vars(at).items() if name != "lambdas"}
                lambdas = {f"lambda {label}": value for label, value in at.lambdas.items()}
                tables["epsilons"].append({**key, **figures, **lambdas})
            for name, bounds in (("exponents", EXPONENTS), ("ulps", ULPS)):
                tables[name] += [
                    {**key, "log2_from": bound, "elements": count}
                    for bound, count in zip(bounds, getattr(agent, name), strict=True)
                ]
        for pair in part.pairs:
            values = {name: value for name, value in vars(pair).items() if name != "agents"}
            first, second = pair.agents
            tables["pairs"].append({**common_columns, "first": first, "second": second, **values})
    return tables


def csv_files(tables: Mapping[str, list[Row]], folder: Path) -> list[tuple[Path, str]]:
    """Return the files of `analyze --csv`: the path and text of each table."""
    files = []
    for name, table in tables.items():
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(table[0]) if table else ["kind", "part"])
        writer.writeheader()
        writer.writerows({key: csv_cell(value) for key, value in row.items()} for row in table)
        files.append((folder / f"{name}.csv", text.getvalue()))
    return files
