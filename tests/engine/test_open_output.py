"""An output that is being built: where its folder and its journal lie, and what is left of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ramerge.core.engine.journal import FOLDER
from ramerge.core.engine.outputs import OutputSpec, open_output
from ramerge.core.foundation.errors import ContinueNote
from ramerge.core.output.lifecycle import output_dir
from ramerge.core.output.staging import SPOOL
from tests.messages import Messages


def spec(tmp_path: Path) -> OutputSpec:
    return OutputSpec(tmp_path / "out", overwrite=False, fingerprint={"the work": "1"}, total=10, files={"w": 3})


class Bytes:
    """Results that are bytes already; each is worth 5 bytes of work."""

    def encode(self, result: bytes) -> tuple[bytes, int]:
        return result, 5

    def decode(self, block: str, data: bytes) -> bytes:
        return data


def interrupted(what: OutputSpec) -> None:
    """Do one of two blocks, and stop."""
    with pytest.raises(KeyboardInterrupt), open_output(what, fresh=False) as output:
        output.staging.write("w", b"123")
        output.journal.open_pass([["a"], ["b"]], Bytes()).record(1, b"of b")
        raise KeyboardInterrupt


def test_folder_appears_when_the_block_ends(tmp_path: Path) -> None:
    what = spec(tmp_path)
    work = output_dir(tmp_path / "out").work
    with open_output(what, fresh=False) as output:
        assert output.staging.folder == work / "new" and output.spool_folder == work / SPOOL
        assert (work / FOLDER).is_dir() and not (tmp_path / "out").exists()
        output.staging.write("w", b"123")
    assert (tmp_path / "out" / "w").read_bytes() == b"123"
    assert not work.exists()


def test_an_interrupted_run_is_resumed(tmp_path: Path, messages: Messages) -> None:
    what = spec(tmp_path)
    interrupted(what)
    with (
        messages.warns(ContinueNote),
        open_output(what, fresh=False) as output,
    ):
        again = output.journal.open_pass([["a"], ["b"]], Bytes())
        assert list(again.earlier()) == [b"of b"]
        assert again.remaining() == [[(0, "a")]]
        assert (output.staging.folder / "w").read_bytes() == b"123"
        output.staging.finish("w", output.staging.create("w"), 3)


@pytest.mark.parametrize("change", ["fresh", "fingerprint"])
@pytest.mark.filterwarnings("ignore::ramerge.core.foundation.errors.ContinueNote")
def test_other_work_begins_with_an_empty_folder(change: str, tmp_path: Path) -> None:
    what = spec(tmp_path)
    interrupted(what)
    if change == "fingerprint":
        what = replace(what, fingerprint={"the work": "2"})
    with open_output(what, fresh=change == "fresh") as output:
        again = output.journal.open_pass([["a"], ["b"]], Bytes())
        assert list(again.earlier()) == [] and again.remaining() == [[(0, "a")], [(1, "b")]]
        assert list(output.staging.folder.iterdir()) == []
