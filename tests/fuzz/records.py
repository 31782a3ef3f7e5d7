"""Records of merges and of sweeps, as `ramerge report` reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any
from unittest import mock

import ramerge
from ramerge import api
from ramerge.analysis.finished import add_difference_notes, open_merge
from ramerge.analysis.report import page
from ramerge.analysis.report.write import render
from ramerge.analysis.results import Analysis
from ramerge.core.foundation.errors import RecipeError
from tests.checkpoints import recipe, write_simple
from tests.fuzz.common import BATCH, check_refusal, check_shown, folder
from tests.fuzz.mutate import json_text

Case = tuple[str, bytes]


@cache
def _merged() -> tuple[dict[str, Any], dict[str, Any], Analysis]:
    place = folder("records")
    source = recipe(place, write_simple(place, {"code": 0.1, "tool": 0.2}))
    rules = [{"match": "*.0.*", "keep": "base"}]
    api.merge(
        source | {"rules": rules, "parameters": {"scope": "tensor"}},
        place / "out",
        options=ramerge.Options(cache=False),
    )
    api.sweep(source, place / "sweep", vary={"parameters.r": [0, 0.1]}, options=ramerge.Options(cache=False))
    shutil.copy(place / "out/ramerge.yaml", place / "sweep")
    found = [json.loads((place / name).read_bytes()) for name in ("out/ramerge.json", "sweep/sweep.json")]
    return found[0], found[1], ramerge.analyze(source, options=ramerge.Options(cache=False))


def cases(seed: int) -> Iterator[Case]:
    """The file, and its text."""
    rng = Random(seed)
    record, points, _ = _merged()
    for _ in range(BATCH):
        if rng.random() < 0.2:
            yield "sweep/sweep.json", json_text(rng, points)
        else:
            yield "out/ramerge.json", json_text(rng, record)


def check(case: Case) -> bool:
    """The record, which the page can show, or an error."""
    name, text = case
    path = folder("records") / name
    path.write_bytes(text)
    try:
        _, record = open_merge(path.parent)
    except RecipeError as error:
        check_refusal(error)
        return "is a sweep; name" in str(error)
    analysis = add_difference_notes(_merged()[2], record)
    check_shown(analysis.notes)
    _check_page(record.to_dict())
    json.loads(record.to_json())
    return True


@cache
def _values() -> dict[str, Any]:
    return _merged()[2].to_dict()


def _check_page(record: dict[str, Any]) -> None:
    """The page of the merge, without figures and libraries, which are the same in all cases."""
    with (
        mock.patch.object(page, "page_figures", return_value=[]),
        mock.patch("ramerge.report.page.chart_libraries", dict),
    ):
        text = render(_values(), record, "method: ram+")
    assert text.count("<script") == 3
