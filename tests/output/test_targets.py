"""Outputs that cannot be: remote, or without a name."""

from pathlib import Path

import pytest

import ramerge
from ramerge.core.engine.journal import Journal
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.output.targets import path_of
from tests.messages import Messages


@pytest.mark.parametrize("out", ["s3://bucket/o", "https://host/o", Path("s3://bucket/o")])
def test_an_output_elsewhere_is_refused(out: str | Path, messages: Messages) -> None:
    with messages.raises(RecipeError):
        path_of(out)


@pytest.mark.parametrize("out", [".", "/"])
def test_cleaning_needs_a_named_folder(out: str, messages: Messages) -> None:
    with messages.raises(RecipeError):
        ramerge.clean(out)


def test_an_output_has_a_name(messages: Messages) -> None:
    with messages.raises(RecipeError):
        ramerge.clean("")


def test_unreadable_journal_is_reported(tmp_path: Path) -> None:
    journal = Journal({}, {}, 1)
    assert (journal.fits(tmp_path, None), journal.reason) == (False, "")
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal/fingerprint.json").write_text("{")
    assert (journal.fits(tmp_path, None), journal.reason) == (False, "what an earlier run left cannot be read")
