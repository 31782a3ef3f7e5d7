"""What headers of models say before anything is planned."""

from __future__ import annotations

from pathlib import Path

import ramerge
from ramerge.core.planning.headers import read_headers
from ramerge.core.recipe.document import Document
from ramerge.demo.run import AGENTS
from tests.checkpoints import write_simple
from tests.messages import Messages


def test_each_model_is_described(tmp_path: Path) -> None:
    write_simple(tmp_path, {"code": 0.1})
    values = {"base": str(AGENTS / "base"), "agents": {"coder": str(AGENTS / "coder"), "code": {"model": "code"}}}
    base, add, code = read_headers(Document(values, folder=tmp_path))
    assert (base.name, base.form, base.tensors, base.parameters) == ("base", "safetensors files", "38", "372,576")
    assert (base.size, base.dtypes, base.problems) == ("745.2 kB", "bfloat16", ())
    assert add.where == str(AGENTS / "coder")
    assert (code.name, code.where, code.problems) == ("code", str(tmp_path / "code"), ())


def test_unreadable_header_hides_no_other_problem(tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "empty").mkdir()
    values = {
        "base": "empty",
        "agents": {"a": "nowhere/there/is", "b": str(AGENTS / "coder")},
    }
    base, a, b = read_headers(Document(values, folder=tmp_path))
    assert base.form == ""
    messages.check(base.problems[0])
    messages.check(*a.problems)
    assert b.problems == ()
    assert read_headers(Document({"agents": "x"})) == read_headers(Document({})) == []
    with messages.raises(ramerge.RecipeError):
        read_headers(Document({"base": "empty", "agents": {"c": 5}}))


def test_codes_count_as_they_are_stored(tmp_path: Path) -> None:
    from benchmarks.huge import Shape, _write

    shape = Shape(
        layers=4, experts=2, expert=256, shards=2, float8=True, hidden_size=256, intermediate=256, vocabulary=512
    )
    (tmp_path / "model").mkdir()
    _write(tmp_path / "model", shape)
    stored = sum(path.stat().st_size for path in (tmp_path / "model").glob("*.safetensors"))
    [found] = read_headers(Document({"base": str(tmp_path / "model")}))
    assert "float8" in found.form and found.dtypes.startswith("float8_e4m3")
    size, unit = found.size.split()
    assert unit == "MB" and abs(float(size) * 1e6 / stored - 1) < 0.05
