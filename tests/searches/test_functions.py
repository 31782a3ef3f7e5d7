"""What decides the scores of a function, so that scores of another version of it are not mixed with its own."""

from pathlib import Path

import pytest

from ramerge.searches.functions import FunctionScorer


@pytest.mark.parametrize("changed", ["scores.py", "helper.py", "package/inner.py"])
def test_modules_next_to_a_score_are_watched(changed: str, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/inner.py").write_text("ONE = 1\n")
    (tmp_path / "helper.py").write_text("from package.inner import ONE\n")
    (tmp_path / "other.py").write_text("")
    (tmp_path / "scores.py").write_text("from helper import ONE\ndef score(model): return {'one': ONE}\n")

    def about() -> dict:
        scorer = FunctionScorer(f"{tmp_path / 'scores.py'}:score", tmp_path / "log", 60)
        scorer.close()
        return dict(scorer.about())

    first = about()
    (tmp_path / "other.py").write_text("what no score imports")
    assert about() == first
    with (tmp_path / changed).open("a") as file:
        file.write("# another version\n")
    assert about() != first
