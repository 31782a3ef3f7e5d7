"""Files that appear whole, whatever happens while they are written."""

import errno
import os
import signal
from pathlib import Path

import pytest

from ramerge.core.foundation import files
from ramerge.core.foundation.errors import OutputError, RecipeError, StoppedError
from ramerge.core.foundation.files import check_can_create, check_file, write_file, write_files
from tests.messages import Messages


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["a.json", "x" * 255, "ä" * 127, ".hidden"])
def test_text_and_bytes_of_any_name(name: str, tmp_path: Path) -> None:
    write_file(tmp_path / "made" / name, "ä\r\n")
    assert (tmp_path / "made" / name).read_bytes() == "ä\r\n".encode()
    write_file(tmp_path / "made" / name, b"\x00")
    assert (tmp_path / "made" / name).read_bytes() == b"\x00"
    assert left(tmp_path / "made") == [name]


@pytest.mark.parametrize("call", ["ftruncate", "write_at", "fsync"])
@pytest.mark.parametrize("deadly", [False, True])
def test_replaced_file_is_old_or_new(call: str, deadly: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        if deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(5, "Input/output error")

    child = os.fork()
    if not child:
        monkeypatch.setattr(files if call == "write_at" else os, call, fail)
        try:
            write_file(path, "a longer one that is new")
        except OutputError as error:
            os._exit(7 if "a.json: cannot be written: Input/output error" in str(error) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (-signal.SIGKILL if deadly else 7)
    assert path.read_text() == "old"
    assert len(left(tmp_path)) == 1 + deadly
    write_file(path, "new")
    assert (path.read_text(), left(tmp_path)) == ("new", ["a.json"])


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_several_files_are_all_there_or_none(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.csv").write_text("old")
    wanted = [(tmp_path / "old.csv", "new"), (tmp_path / "made" / "of" / "a.csv", "a"), (tmp_path / "b.csv", b"b")]
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(*((os, "fsync", full) if call == "fsync" else (Path, "replace", read_only)))
        with pytest.raises(OutputError, match=r"\.csv: cannot be written: (No space left|Read-only)[^;]*; [^;]*$"):
            write_files(wanted)
    assert (left(tmp_path), (tmp_path / "old.csv").read_text()) == (["old.csv"], "old")
    write_files(wanted)
    assert left(tmp_path) == ["b.csv", "made", "old.csv"] and left(tmp_path / "made" / "of") == ["a.csv"]


def check_folder(path: Path) -> None:
    check_can_create(path / "file", path)


def test_disk_check_leaves_nothing(tmp_path: Path, messages: Messages) -> None:
    (tmp_path / ".a.json.partial").touch()
    check_file(tmp_path / "a.json")
    check_file(tmp_path / "pages" / "a.html")
    check_folder(tmp_path / "tables" / "of" / "today")
    assert left(tmp_path) == []
    with messages.raises(RecipeError):
        check_folder(tmp_path / "tables" / ("of" * 200) / "today")
    assert left(tmp_path) == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENOSPC])
def test_disk_check_tells_paths_from_failing_disks(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **_named: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "lock", refuse)
    kind = OutputError if number in (errno.EIO, errno.ENOSPC) else RecipeError
    for check in (check_file, check_folder):
        with pytest.raises(kind, match="cannot be written"):
            check(tmp_path / "x")


def test_a_signal_waits_until_the_file_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(number: int, _frame: object) -> None:
        raise StoppedError(number)

    real = files.write_all

    def interrupted(descriptor: int, view: memoryview, offset: int) -> None:
        signal.raise_signal(signal.SIGTERM)
        real(descriptor, view, offset)

    monkeypatch.setattr(files, "write_all", interrupted)
    monkeypatch.setattr(StoppedError, "finished", {})
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(StoppedError) as stopped:
            write_file(tmp_path / "a.json", "new")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped.value.kept == f"these outputs are complete: {tmp_path / 'a.json'}"
    assert ((tmp_path / "a.json").read_text(), left(tmp_path)) == ("new", ["a.json"])


def test_a_failing_clean_up_says_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    def fail(*_: object, **_named: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        patch.setattr(os, "unlink", fail)
        with messages.raises(OutputError):
            write_file(tmp_path / "a.json", "new")
    write_file(tmp_path / "a.json", "new")
    assert left(tmp_path) == ["a.json"]
