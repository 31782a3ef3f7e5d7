"""Analyses that `--json` wrote, read again, shown, and made into tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any
from unittest import mock

import ramerge
from ramerge.analysis.report import page
from ramerge.analysis.report.write import render
from ramerge.analysis.results import read_analysis
from ramerge.analysis.tables import csv_files
from ramerge.analysis.text import summary
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.files import write_files
from tests.checkpoints import recipe, write_simple
from tests.fuzz.common import BATCH, check_refusal, check_shown, folder
from tests.fuzz.mutate import json_text


@cache
def _good() -> dict[str, Any]:
    place = folder("analyses")
    analysis = ramerge.analyze(
        recipe(place, write_simple(place, {"code": 0.1, "tool": 0.2})), options=ramerge.Options(cache=False)
    )
    (place / "good.json").write_text(analysis.to_json())
    assert read_analysis(place / "good.json").to_json() == analysis.to_json()
    return json.loads(analysis.to_json())


def cases(seed: int) -> Iterator[bytes]:
    """The text of the file."""
    rng = Random(seed)
    document = _good()
    # most of the text is histograms: cases without tensors and parts meet the rest
    small = document | {"tensors": document["tensors"][:1], "layers": [], "roles": []}
    for _ in range(BATCH):
        yield json_text(rng, rng.choice((small, small, small, document)))


def check(case: bytes) -> bool:
    """An analysis that can be shown and written in every form, or an error."""
    path = folder("analyses") / "analysis.json"
    path.write_bytes(case)
    try:
        analysis = read_analysis(path)
    except RecipeError as error:
        check_refusal(error)
        return False
    check_shown(summary(analysis))
    write_files(csv_files(analysis.tables(), folder("analyses") / "csv"))
    with (
        mock.patch.object(page, "page_figures", return_value=[]),
        mock.patch("ramerge.report.page.chart_libraries", dict),
    ):
        assert render(analysis.to_dict()).count("<script") == 3
    return True
