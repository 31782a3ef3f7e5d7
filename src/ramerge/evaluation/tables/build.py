"""From results to a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from ramerge.evaluation.logs import Model
from ramerge.evaluation.tables import layouts, marks, notes, paper, roles, scores
from ramerge.evaluation.tables.layouts import Layout
from ramerge.evaluation.tables.marks import Entry
from ramerge.evaluation.tables.model import Cell, Row, Table, TableColumn
from ramerge.evaluation.tables.roles import Roles
from ramerge.foundation.errors import EvaluationError


def build(
    results: Sequence[Model],
    layout: str = layouts.MAIN,
    *,
    models: Sequence[str] = (),
    base: str | None = None,
    specialists: Mapping[str, str] | None = None,
    merged: Sequence[str] = (),
    ut: str = "accumulated",
    differences: bool | None = None,
    domain_averages: bool = True,
    reference: str | None = None,
    rank_reference: bool = False,
    seed: int = 0,
) -> Table:
    """A table of models and benchmarks.

    Scores are in per cent: the sum of a metric's numerators over the sum of its denominators. Averages are means over
    columns, each column with the same weight, as in the paper. Intervals are 95 % percentile bootstrap intervals.

    Args:
        results: the models. The table has base models first, then agents, then merges.
        layout: `table1` to `table9` have the columns of the paper's tables; `main` has the main metric of every task
            that was run, `all` every metric.
        models: those to show, in this order; all if empty.
        base: the base of all models, instead of what merge records say.
        specialists: an agent for each suite, instead of what names say.
        merged: merges without a merge record.
        ut: the metric of coding's columns UT: accumulated, ut or ut_accumulated.
        differences: whether scores come with the difference to their base model; as in the paper if None.
        domain_averages: whether there is an average for each domain, if there are several.
        reference: `paper` adds the rows of the paper's table.
        rank_reference: whether quoted rows are ranked too, together with all others.
        seed: of the intervals.

    Raises:
        EvaluationError: no results, an unknown table, model or reference, or none of the table's columns was run.
    """
    if not results:
        raise EvaluationError("there are no results to show")
    shown = selected(results, models)
    plan = layouts.find(layout, shown, ut)
    require_columns(plan, shown)
    who = roles.find(shown, base, specialists or {}, merged, list(dict.fromkeys(c.suite for c in plan.columns)))
    columns = scores.with_averages(plan, domain_averages)

    ordered = _ordered(plan, shown, who)
    entries = [_measured(model, columns, who, seed) for model in ordered]
    if reference is not None:
        entries += [_quoted(row, plan, columns, rank_reference) for row in paper.rows(reference, plan.name)]
    entries = marks.marked(entries, columns, who.specialists, together=rank_reference)
    wanted = plan.differences if differences is None else differences
    if wanted:
        entries = marks.with_differences(entries)

    several = len({entry.family for entry in entries if not entry.quoted}) > 1
    labels = {model.name: _label(model, plan) for model in ordered}
    rows = [_row(entry, labels, several, plan.name) for entry in entries]
    remarks = [
        *notes.measured(ordered, columns, rows, who, ut),
        *(notes.without_base(entries) if wanted else ()),
        *(notes.quoted(plan.name) if reference else ()),
    ]
    return Table(plan.title, "Model", columns, tuple(rows), tuple(remarks))


def selected(results: Sequence[Model], names: Sequence[str]) -> list[Model]:
    """Models by name, or all.

    Raises:
        EvaluationError: there are no results of a name.
    """
    known = {model.name: model for model in results}
    if unknown := [name for name in names if name not in known]:
        raise EvaluationError(f"no results of {', '.join(map(repr, unknown))}; there are {', '.join(known)}")
    return [known[name] for name in names] if names else list(results)


def require_columns(layout: Layout, results: Sequence[Model]) -> None:
    """Raises `EvaluationError` where no model was run on any of a layout's columns."""
    wanted = [((column.suite, column.task), column.metric) for column in layout.columns]
    there = {task: set[str]() for model in results for task in model.tasks}
    for model in results:
        for task, samples in model.tasks.items():
            there[task] |= set(samples.metrics)
    if not any(metric in there.get(task, ()) for task, metric in wanted):
        found = ", ".join(f"{suite}/{task}" for suite, task in sorted(there)) or "nothing"
        raise EvaluationError(f"none of the columns of {layout.name} was run; the results have {found}")


def _ordered(layout: Layout, models: Sequence[Model], who: Roles) -> list[Model]:
    if not layout.ablation:
        families = list(dict.fromkeys(who.families[model.name] for model in models))
        return sorted(models, key=lambda model: (families.index(who.families[model.name]), who.order(model.name)))
    merges = [model for model in models if model.name in who.merged]
    if not merges:
        raise EvaluationError(
            f"{layout.name} shows only merges, and no model is known to be one; name those that have no merge record "
            "with --merged"
        )
    return sorted(merges, key=lambda model: (_strength(model) is None, _strength(model) or 0.0))


def _strength(model: Model) -> float | None:
    """RAM's `r` that a merge was made with: 0 for plain RAM, None for other methods."""
    record = model.record or {}
    value = record.get("parameters", {}).get("r", 0.0 if record.get("method") == "ram" else None)
    return float(value) if isinstance(value, int | float) and abs(value) < 1e6 else None


def _label(model: Model, layout: Layout) -> str:
    strength = _strength(model) if layout.ablation else None
    return model.name if strength is None else f"{model.name} (r = {strength:.2f})"


def _measured(model: Model, columns: Sequence[TableColumn], who: Roles, seed: int) -> Entry:
    return Entry(
        model.name,
        model.name in who.merged,
        who.bases.get(model.name) == model.name,
        who.families[model.name],
        tuple(scores.cells(model, columns, seed)),
    )


def _quoted(row: paper.Quoted, layout: Layout, columns: Sequence[TableColumn], ranked: bool) -> Entry:
    values = dict(zip(layout.columns, row.values, strict=True))
    cells = [
        Cell(
            values[column]
            if column.task
            else row.average
            if not column.suite and not column.without
            else fmean(values[member] for member in scores.members(column, columns))
        )
        for column in columns
    ]
    is_base = row.role == "base"
    return Entry(row.name, row.role == "merged", is_base, row.family, tuple(cells), quoted=True, ranked=ranked)


def _row(entry: Entry, labels: Mapping[str, str], several: bool, layout: str) -> Row:
    kind = "Merged models" if entry.merged else "Base and task models"
    family = entry.family if entry.quoted or several else None
    where = f", quoted from {paper.source(layout)}" if entry.quoted else ""
    name = f"{entry.name} (paper)" if entry.quoted else labels[entry.name]
    return Row(name, f"{f'{family}: ' if family else ''}{kind}{where}", entry.cells, entry.quoted)
