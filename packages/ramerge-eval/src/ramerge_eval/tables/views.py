"""The tables of the tab Compare of `ramerge ui`, as parts of a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ramerge_eval.logs import read
from ramerge_eval.tables.build import build
from ramerge_eval.tables.merging import retention
from ramerge_eval.tables.render import table_html
from ramerge_eval.tables.roles import GivenRoles


def score_tables(logs: Path, specialists: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return titles and HTML of two tables, with intervals: retention of merges, and scores of all models.

    Args:
        logs: the folder that `ramerge eval` has written.
        specialists: the name of the agent trained for each task, by task.

    Raises:
        EvaluationError: the logs cannot be read, hold no merge, or no task has a specialist.
    """
    models, roles = read(logs), GivenRoles(specialists=specialists)
    tables = retention(models, roles), build(models, explicit_roles=roles)
    return [(each.title, table_html(each, intervals=True)) for each in tables]
