import errno
import os
from pathlib import Path

import numpy as np
import pytest

from ramerge.checkpoint.header import read_header
from ramerge.checkpoint.write import Writer, lay_out, output_error, staged
from ramerge.errors import OutputError


def fill(stage: Path, content: str = "new") -> None:
    (stage / "file").write_text(content)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_appears_when_the_block_ends_well(tmp_path: Path) -> None:
    with staged(tmp_path / "a" / "out", overwrite=False) as stage:
        fill(stage)
        assert not (tmp_path / "a" / "out").exists()
    assert (tmp_path / "a" / "out" / "file").read_text() == "new"
    assert left(tmp_path / "a") == ["out"]
    assert (tmp_path / "a" / "out").stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_when_it_does_not(error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error), staged(tmp_path / "out", overwrite=False) as stage:
        fill(stage)
        raise error
    assert left(tmp_path) == []


def test_the_old_one_stays_until_the_end(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    fill(tmp_path / "out", "old")
    with pytest.raises(ValueError), staged(tmp_path / "out", overwrite=True) as stage:
        fill(stage)
        raise ValueError
    assert (tmp_path / "out" / "file").read_text() == "old"
    with staged(tmp_path / "out", overwrite=True) as stage:
        fill(stage)
        assert (tmp_path / "out" / "file").read_text() == "old"
    assert (tmp_path / "out" / "file").read_text() == "new"
    assert left(tmp_path) == ["out"]


def test_one_that_appeared_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="exists"), staged(tmp_path / "out", overwrite=False) as stage:
        fill(stage)
        (tmp_path / "out").mkdir()
    assert left(tmp_path) == ["out"]


def test_what_a_killed_process_left_is_removed_but_not_what_a_living_one_builds(tmp_path: Path) -> None:
    abandoned = tmp_path / ".out.ramerge-abc_1234.partial"
    others = [tmp_path / ".out.ramerge-notes", tmp_path / ".other.ramerge-abc_1234.partial"]
    for folder in (abandoned, *others):
        folder.mkdir()
        fill(folder)
    with staged(tmp_path / "out", overwrite=False) as stage:
        fill(stage)
        assert not abandoned.exists()
        assert all((folder / "file").exists() for folder in others)
        with staged(tmp_path / "out", overwrite=True) as other:
            fill(other)
        assert stage.exists()
        (tmp_path / "out" / "file").unlink()
        (tmp_path / "out").rmdir()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="disk is full"), staged(tmp_path / "out", overwrite=False):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OutputError, match="Input/output error"), staged(tmp_path / "out", overwrite=False):
        raise OSError(errno.EIO, "Input/output error")
    assert "disk is full" in str(output_error(tmp_path / "absent", OSError(errno.ENOSPC, "")))
    assert left(tmp_path) == []


def test_files_have_their_size_before_data_and_take_it_in_any_order(tmp_path: Path) -> None:
    shard = lay_out("sub/x.safetensors", [("a", "U8", (3,), 3), ("none", "F32", (0,), 0), ("b", "U8", (2,), 2)])
    writer = Writer(tmp_path, [shard])
    path = tmp_path / "sub" / "x.safetensors"
    assert path.stat().st_size == shard.file_bytes == len(shard.header) + 5
    writer.write(shard.name, shard.offsets["b"], np.array([4, 5], np.uint8))
    writer.write(shard.name, shard.offsets["a"], np.array([1, 2, 3], np.uint8))
    writer.finish()
    writer.close()
    assert path.read_bytes()[-5:] == bytes([1, 2, 3, 4, 5])
    assert [entry.name for entry in read_header(path).entries] == ["a", "none", "b"]


def test_a_name_is_no_pattern(tmp_path: Path) -> None:
    other = tmp_path / ".z.ramerge-abc_1234.partial"
    other.mkdir()
    with staged(tmp_path / "*", overwrite=False) as stage:
        fill(stage)
    assert other.exists()


def test_a_folder_that_got_subfolders_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputError, match="has changed meanwhile"), staged(tmp_path / "out", overwrite=True) as stage:
        fill(stage)
        (tmp_path / "out" / "thesis").mkdir()
    assert (tmp_path / "out" / "thesis").is_dir()
    assert left(tmp_path) == ["out"]
