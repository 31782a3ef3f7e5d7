"""The folder of an agent: its record is read again, and changed files are noticed."""

from dataclasses import replace
from pathlib import Path

from ramerge.calibration.agent_folder import is_whole, read_record, write_folder
from ramerge.calibration.record import CalibrationRecord

RECORD = CalibrationRecord(
    ramerge_version="0.1.0",
    agent="code",
    fingerprint="f",
    prompts=0,
    held_out=0,
    generated=0,
    rewarded=0,
    tokens=0,
    rows=0,
    layers=0,
    importances=0,
    device="cpu",
    dtype="float32",
    seconds=1.0,
    notes=("a note",),
)


def test_folder_holds_record_and_digests(tmp_path: Path) -> None:
    record = write_folder(tmp_path / "code", {}, RECORD, [], None, overwrite=False)
    assert record.digests and replace(record, digests={}) == RECORD
    assert read_record(tmp_path / "code") == record and is_whole(tmp_path / "code", record)
    (tmp_path / "code" / "replies.jsonl").write_text("{}\n")
    assert not is_whole(tmp_path / "code", record)


def test_what_is_no_record_is_none(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    (tmp_path / "calibration.json").write_text('{"agent": "code", "notes": []}')
    assert read_record(tmp_path) is None
    assert not is_whole(tmp_path, RECORD)
