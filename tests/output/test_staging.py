"""The output folder: what is at OUT and next to it after every way in which writing it can end."""

import ctypes
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from ramerge.core.foundation import files
from ramerge.core.foundation.errors import ContinueNote, OutputError, OutputWarning, PlanError, StoppedError
from ramerge.core.output import staging as module
from ramerge.core.output.lifecycle import build_output, clean_up_interrupted, tidy
from ramerge.core.output.staging import StagingDir
from ramerge.core.output.write import MOST_OPEN, Writer, lay_out
from tests.messages import Messages

MOVES = ("rename", "fsync", "rmdir", "unlink")


def fill(folder: Path, content: str = "new") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "file").write_text(content)
    (folder / "config.json").write_text(content)


def write(stage: StagingDir, content: str = "new") -> None:
    stage.write("file", content)
    stage.write("config.json", content)


def content(folder: Path) -> str | None:
    """What `fill` or `write` has put there, whole; None if there is nothing."""
    if not folder.exists():
        return None
    texts = {path.read_text() for path in folder.iterdir()}
    assert len(texts) == 1 and len(list(folder.iterdir())) == 2, "torn"
    return texts.pop()


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(params=[True, False], ids=["exchange", "no exchange"])
def exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the file system can exchange two folders."""
    if not request.param:
        monkeypatch.setattr(module.OutputDir, "_exchange", lambda _: False)
    return bool(request.param)


# --- an undisturbed run -----------------------------------------------------------------------------------------------


def test_appears_when_the_block_ends_well(tmp_path: Path) -> None:
    with build_output(tmp_path / "a" / "out", overwrite=False) as stage:
        write(stage)
        assert not (tmp_path / "a" / "out").exists()
    assert content(tmp_path / "a" / "out") == "new"
    assert left(tmp_path / "a") == ["out"]
    assert (tmp_path / "a" / "out").stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_when_it_does_not(error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error), build_output(tmp_path / "a" / "out", overwrite=False) as stage:
        write(stage)
        raise error
    assert left(tmp_path) == []


def test_the_old_one_stays_until_the_end(exchange: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fill(out, "old")
    with pytest.raises(ValueError), build_output(out, overwrite=True) as stage:
        write(stage)
        raise ValueError
    assert content(out) == "old"
    with build_output(out, overwrite=True) as stage:
        write(stage)
        assert content(out) == "old"
    assert content(out) == "new"
    assert left(tmp_path) == ["out"]


class Exchanging:
    """A C library: whether it has the call that exchanges two folders, whether that does so, and what it reports."""

    def __init__(self, does: bool, reports: int) -> None:
        real = ctypes.CDLL(None, use_errno=True).renameat2

        def exchange(*arguments: object) -> int:
            if does:
                assert real(*arguments) == 0
            return reports

        self.renameat2 = exchange


@pytest.mark.parametrize(
    ("library", "moved"),
    [
        (lambda: Exchanging(does=True, reports=0), False),
        (lambda: Exchanging(does=False, reports=-1), True),
        (lambda: Exchanging(does=True, reports=-1), False),
        (lambda: Exchanging(does=False, reports=0), True),
        (object, True),
    ],
    ids=["exchanges", "cannot", "does what it reports as failed", "does not what it reports", "no such call"],
)
def test_unexchangeable_folders_are_moved_in_turn(
    library: Callable[[], object], moved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "out", "old")
    loaded, names = library(), []
    monkeypatch.setattr(module.ctypes, "CDLL", lambda *_, **__: loaded)
    with (
        hooked(lambda name, _: names.append(name), monkeypatch),
        build_output(tmp_path / "out", overwrite=True) as stage,
    ):
        write(stage)
    assert (names.count("rename") > 1) is moved  # the first one asks whether the old one can be moved
    assert content(tmp_path / "out") == "new"
    assert left(tmp_path) == ["out"]


def test_one_that_appeared_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    words = "out: exists.*nothing was kept; .*out is as it was"
    with pytest.raises(PlanError, match=words), build_output(tmp_path / "out", overwrite=False) as stage:
        write(stage)
        fill(tmp_path / "out", "theirs")
    assert content(tmp_path / "out") == "theirs"
    assert left(tmp_path) == ["out"]


def test_loser_of_a_race_fails_at_once(tmp_path: Path, messages: Messages) -> None:
    out = tmp_path / "out"
    with build_output(out, overwrite=False) as stage:
        write(stage)
        for overwrite in (False, True):
            with (
                messages.raises(OutputError),
                build_output(out, overwrite=overwrite),
            ):
                pass
    assert content(out) == "new"
    assert left(tmp_path) == ["out"]


def test_folder_with_new_subfolders_is_not_replaced(tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "out").mkdir()
    with (
        messages.raises(PlanError),
        build_output(tmp_path / "out", overwrite=True) as stage,
    ):
        write(stage)
        (tmp_path / "out" / "thesis").mkdir()
    assert (tmp_path / "out" / "thesis").is_dir()
    assert left(tmp_path) == ["out"]


@pytest.mark.parametrize("name", ["x" * 255, "ä" * 127 + "x", "*", "[a]", " "])
def test_any_name_that_a_folder_can_have(name: str, tmp_path: Path) -> None:
    for _ in range(2):
        with build_output(tmp_path / name, overwrite=True) as stage:
            write(stage)
            (work,) = (path for path in tmp_path.iterdir() if path.name.startswith("."))
            assert work.name.startswith(f".{name[:20]}") and work.name.endswith(".ramerge-partial")
        assert left(tmp_path) == [name]


def test_long_names_have_separate_places(tmp_path: Path) -> None:
    with build_output(tmp_path / ("x" * 254 + "1"), overwrite=False) as one:
        write(one)
        with build_output(tmp_path / ("x" * 254 + "2"), overwrite=False) as two:
            write(two)
    assert len(left(tmp_path)) == 2


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    """With what was free when it was full, and not after what was written is removed."""
    monkeypatch.setattr(
        module, "free_bytes", lambda out: 7 if (out.parent / ".out.ramerge-partial").exists() else 10**9
    )
    full = messages.raises(OutputError)
    with full, build_output(tmp_path / "out", overwrite=False):
        raise OSError(errno.ENOSPC, "No space left on device")
    with messages.raises(OutputError), build_output(tmp_path / "out", overwrite=False):
        raise OSError(errno.EIO, "Input/output error")
    assert left(tmp_path) == []


@contextmanager
def hooked(before: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls `before` with the name of what is called, and which of those calls it is, counted from 0."""
    count = iter(range(10**6))

    def wrap(name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def call(*arguments: object, **named: object) -> object:
            before(name, next(count))
            return real(*arguments, **named)

        return call

    exchanged = module.OutputDir._exchange

    def exchange(place: module.OutputDir) -> bool:
        before("exchange", next(count))
        return exchanged(place)

    with monkeypatch.context() as patch:
        for name in MOVES:
            patch.setattr(os, name, wrap(name))
        patch.setattr(module.OutputDir, "_exchange", exchange)
        yield


def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is called in a run that replaces an old output."""
    names: list[str] = []
    (tmp_path / "count").mkdir()
    fill(tmp_path / "count" / "out", "old")
    with (
        hooked(lambda name, _: names.append(name), monkeypatch),
        build_output(tmp_path / "count/out", overwrite=True) as one,
    ):
        write(one)
    shutil.rmtree(tmp_path / "count")
    return names


@pytest.mark.filterwarnings("ignore::ramerge.core.foundation.errors.OutputWarning")
@pytest.mark.parametrize("for_good", [False, True], ids=["one call", "all calls from there"])
def test_every_failing_call_is_told_as_it_is(
    for_good: bool, exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    for place in range(len(calls(tmp_path, monkeypatch))):
        fill(out, "old")

        def fail(_name: str, number: int, place: int = place) -> None:
            if number == place or (for_good and number > place):
                raise OSError(errno.EIO, "Input/output error")

        words = ""
        with hooked(fail, monkeypatch):
            try:
                with build_output(out, overwrite=True) as stage:
                    write(stage)
            except OutputError as error:
                words = str(error)
        aside = tmp_path / ".out.ramerge-partial" / "old"
        if "is as it was" in words:
            assert content(out) == "old" and "nothing was kept" in words
        elif f"what was at {out} is in {aside}, and the next run to {out} puts it back" in words:
            assert content(aside) == "old" and not out.exists()
        else:
            assert content(out) == "new"
            assert not words or "is the new one and complete" in words
        _next_run_is_clean(out)


def _next_run_is_clean(out: Path) -> None:
    """A run that fails itself removes what is left, and loses nothing."""
    before = content(out)
    with pytest.raises(ValueError), build_output(out, overwrite=True):
        raise ValueError
    assert content(out) == (before or "old")
    assert left(out.parent) == [out.name]


# --- kills ------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::ramerge.core.foundation.errors.OutputWarning")
def test_next_run_repairs_every_kill(exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    ends = set()
    for place in range(len(calls(tmp_path, monkeypatch))):
        fill(out, "old")

        def kill(_name: str, number: int, place: int = place) -> None:
            if number == place:
                os.kill(os.getpid(), signal.SIGKILL)

        child = os.fork()
        if not child:
            try:
                with hooked(kill, monkeypatch), build_output(out, overwrite=True) as stage:
                    write(stage)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        ends.add(content(out))
        _next_run_is_clean(out)
        shutil.rmtree(out)
    assert ends == ({"old", "new"} if exchange else {"old", "new", None})


@pytest.mark.parametrize("old", [False, True], ids=["new", "replacing"])
def test_run_killed_after_publication_is_cleared(
    old: bool, exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    out = tmp_path / "out"
    if old:
        fill(out, "old")
    child = os.fork()
    if not child:
        try:
            monkeypatch.setattr(module.OutputDir, "close", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            with build_output(out, overwrite=True) as stage:
                write(stage)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert content(out) == "new" and left(tmp_path) == [".out.ramerge-partial", "out"]
    with messages.warns(OutputWarning):
        tidy(out)
    assert content(out) == "new" and left(tmp_path) == ["out"]


def test_only_files_of_finished_outputs_are_cleared(tmp_path: Path) -> None:
    """Not that of a stopped run next to another output, nor that of a living one."""
    out = tmp_path / "out"
    fill(out, "theirs")
    work = tmp_path / ".out.ramerge-partial"
    work.mkdir()
    for other in (None, Path("/"), Path(), tmp_path / "nothing"):
        tidy(other)
    for said in (b"", b"x", f"{out.stat().st_ino + 1}".encode()):
        (work / "lock").write_bytes(said)
        tidy(out)
    (work / "lock").write_bytes(f"{out.stat().st_ino}".encode())
    with (work / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tidy(out)
    assert left(work) == ["lock"]


def test_what_was_put_back_is_said(tmp_path: Path, messages: Messages) -> None:
    out, work = tmp_path / "out", tmp_path / ".out.ramerge-partial"
    for overwrite in (False, True):
        shutil.rmtree(out, ignore_errors=True)
        work.mkdir()
        fill(work / "old", "old")
        fill(work / "new", "torn")
        with messages.warns(OutputWarning):
            if overwrite:
                with build_output(out, overwrite=True) as stage:
                    assert content(out) == "old"
                    write(stage)
            else:
                with pytest.raises(PlanError, match="exists"), build_output(out, overwrite=False):
                    pass
        assert content(out) == ("new" if overwrite else "old")
        assert left(tmp_path) == ["out"]


def test_old_output_is_kept_if_displaced(tmp_path: Path, messages: Messages) -> None:
    out, work = tmp_path / "out", tmp_path / ".out.ramerge-partial"
    work.mkdir()
    fill(work / "old", "old")
    fill(work / "new")
    fill(out, "theirs")
    with (
        messages.warns(OutputWarning),
        messages.raises(OutputError),
        build_output(out, overwrite=True),
    ):
        pass
    assert content(work / "old") == "old" and content(out) == "theirs"


def test_what_a_living_process_builds_is_left_alone(tmp_path: Path, messages: Messages) -> None:
    work = tmp_path / ".out.ramerge-partial"
    work.mkdir()
    fill(work / "new", "theirs")
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with messages.raises(OutputError), build_output(tmp_path / "out", overwrite=True):
            pass
        assert content(work / "new") == "theirs"


# --- folders of others ------------------------------------------------------------------------------------------------


class Kept:
    """A keeper that continues whatever it finds."""

    files: ClassVar = {"file": 3, "config.json": 3}
    share = "90 %"
    reason = ""

    def fits(self, work: Path, built: int | None, gone: object = ()) -> bool:
        return built is not None

    def begin(self, work: Path, built: int | None) -> None:
        raise AssertionError

    def keeps(self, failure: BaseException | None) -> bool:
        return False


OTHER = 12345


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A hidden folder that could be continued."""
    work = tmp_path / ".out.ramerge-partial"
    work.mkdir(mode=0o700)
    (work / "new").mkdir()
    fill(work / "new", "bad")
    return work


def refuse(tmp_path: Path, words: str) -> None:
    before = left(tmp_path)
    for use in (
        lambda: build_output(tmp_path / "out", overwrite=False, policy=Kept()).__enter__(),
        lambda: clean_up_interrupted(tmp_path / "out"),
    ):
        with pytest.raises(OutputError, match=words):
            use()
    assert left(tmp_path) == before and not (tmp_path / "out").exists()


def test_hidden_folder_of_another_user_is_refused(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = r"ramerge-partial: belongs to another user \(uid \d+\).*have it removed, or choose another place"
    if os.geteuid():
        shown = os.stat_result((0o600, 0, 0, 0, OTHER, *[0] * 5))
        monkeypatch.setattr(files, "_new_file_status", lambda _: shown)
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
        refuse(tmp_path, words)
        return
    for path in (prepared, *prepared.rglob("*")):
        os.chown(path, OTHER, OTHER)
    refuse(tmp_path, words)
    assert content(prepared / "new") == "bad"


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_hidden_folder_writable_by_others_is_refused(mode: int, prepared: Path, tmp_path: Path) -> None:
    prepared.chmod(mode)
    refuse(tmp_path, "ramerge-partial: other users can write to it, so what is in it is not trusted; .*`chmod go-w`")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", ["new", "journal", "spool"])
def test_what_another_user_owns_inside_is_made_anew(name: str, prepared: Path, tmp_path: Path) -> None:
    (prepared / name).mkdir(exist_ok=True)
    os.chown(prepared / name, OTHER, OTHER)
    keeper = Kept()
    keeper.begin = lambda *_: None  # type: ignore[method-assign]
    with build_output(tmp_path / "out", overwrite=False, policy=keeper) as stage:
        assert left(stage.folder) == []
        write(stage)
    assert content(tmp_path / "out") == "new"


def test_file_systems_with_fixed_owner_and_permissions(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the user makes there looks the same, so a stopped run can be continued."""
    prepared.chmod(0o777)
    shown = os.stat_result((0o100777, 0, 0, 0, os.geteuid(), *[0] * 5))
    monkeypatch.setattr(files, "_new_file_status", lambda _: shown)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    with pytest.warns(ContinueNote), build_output(tmp_path / "out", overwrite=False, policy=Kept()) as stage:
        write(stage)
    assert content(tmp_path / "out") == "new"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_file_of_another_user_is_not_written(tmp_path: Path) -> None:
    hidden = tmp_path / ".report.html.partial"
    hidden.write_text("")
    os.chown(hidden, OTHER, OTHER)
    files.write_file(tmp_path / "report.html", "mine")
    assert (tmp_path / "report.html").stat().st_uid == os.geteuid()
    assert left(tmp_path) == ["report.html"]


# --- folders that cannot be moved -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EBUSY])
def test_immovable_old_output_is_refused_first(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "out", "old")
    real = os.rename

    def rename(source: Path, target: Path) -> None:
        if Path(source) == tmp_path / "out":
            raise OSError(number, os.strerror(number))
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    words = f"out: cannot be moved to make room for the new one: {os.strerror(number)}; remove it yourself, or choose"
    with pytest.raises(PlanError, match=words), build_output(tmp_path / "out", overwrite=True):
        raise AssertionError
    assert content(tmp_path / "out") == "old"
    assert left(tmp_path) == ["out"]


OVERLAY = """
mount -t tmpfs none {0} && mkdir -p {0}/low/out {0}/up {0}/tmp {0}/all && touch {0}/low/out/config.json &&
mount -t overlay overlay -o lowerdir={0}/low,upperdir={0}/up,workdir={0}/tmp,userxattr {0}/all && exec {1} -c '
import sys
from pathlib import Path
from ramerge.core.output.lifecycle import build_output
for _ in range(3):
    try:
        with build_output(Path("{0}/all/out"), overwrite=True) as stage:
            sys.stdout.write("begun ")
            stage.write("config.json", "new")
    except Exception as error:
        print(error)
        (Path("{0}/all/out") / "config.json").unlink()
        Path("{0}/all/out").rmdir()
print((Path("{0}/all/out") / "config.json").read_text())
'
"""


def test_folder_in_a_lower_overlay_layer(tmp_path: Path) -> None:
    """When the old one has been removed, the new one can be replaced as everywhere."""
    script = OVERLAY.format(tmp_path, sys.executable)
    try:
        done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no unshare")
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip(done.stderr)
    refused, rest = done.stdout.split("\n", 1)
    assert "all/out: cannot be moved to make room for the new one: Invalid cross-device link; remove it" in refused
    assert rest == "begun begun new\n", done.stderr


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stopping() -> Iterator[None]:
    """Signals raise as under the command line."""

    def stop(number: int, _frame: object) -> None:
        raise StoppedError(number)

    before = signal.signal(signal.SIGTERM, stop)
    finished = dict(StoppedError.finished)
    StoppedError.finished.clear()
    yield
    signal.signal(signal.SIGTERM, before)
    StoppedError.finished.update(finished)


@pytest.mark.usefixtures("stopping")
@pytest.mark.parametrize("fails", [False, True], ids=["merge ends well", "merge fails"])
def test_signal_at_any_call_leaves_nothing(
    fails: bool, exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    kept = set()
    for place in range(len(calls(tmp_path, monkeypatch)) - 2 * fails):
        fill(out, "old")

        def stop(_name: str, number: int, place: int = place) -> None:
            if number == place:
                signal.raise_signal(signal.SIGTERM)

        with hooked(stop, monkeypatch):
            try:
                with build_output(out, overwrite=True) as stage:
                    write(stage)
                    if fails:
                        raise ValueError
            except StoppedError as error:
                kept.add(error.kept)
                end = {
                    f"nothing was kept; {out} is as it was": "old",
                    f"{out} is the new one and complete": "new",
                }[error.kept]
            except ValueError:
                end = "old"
        assert content(out) == end
        assert left(tmp_path) == ["out"]
    assert len(kept) == 2 - fails


@pytest.mark.usefixtures("stopping")
def test_signal_after_publication_is_reported(tmp_path: Path) -> None:
    assert StoppedError(15).kept == "nothing was kept"
    with build_output(tmp_path / "out", overwrite=False) as stage:
        write(stage)
    assert StoppedError(15).kept == f"these outputs are complete: {tmp_path / 'out'}"


@pytest.mark.usefixtures("stopping")
def test_handlers_are_given_back(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    with build_output(tmp_path / "out", overwrite=False) as stage:
        write(stage)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


# --- what others do to the folder that is built -----------------------------------------------------------------------


def test_incomplete_output_does_not_appear(tmp_path: Path, messages: Messages) -> None:
    out, work = tmp_path / "out", tmp_path / ".out.ramerge-partial"

    def replace(path: Path) -> None:
        other = path.with_name("another")
        other.write_text(path.read_text())
        other.replace(path)

    changes: list[Callable[[], object]] = [
        lambda: shutil.rmtree(work),
        lambda: shutil.rmtree(work / "new"),
        lambda: (work / "new/file").unlink(),
        lambda: (work / "new/file").write_text("n"),
        lambda: replace(work / "new/file"),
        lambda: (work / "new/more").write_text("x"),
    ]
    for change in changes:
        with (
            messages.raises(OutputError),
            build_output(out, overwrite=False) as stage,
        ):
            write(stage)
            change()
        assert left(tmp_path) == []


def test_replaced_shard_is_no_output(tmp_path: Path, messages: Messages) -> None:
    shard = lay_out("x.safetensors", [("a", "U8", (3,), 3)])
    for change in (lambda path: path.unlink(), lambda path: os.truncate(path, 4)):
        with (
            messages.raises(OutputError),
            build_output(tmp_path / "out", overwrite=False) as stage,
        ):
            writer = Writer(stage, [shard])
            writer.write(shard.name, shard.offsets["a"], np.array([1, 2, 3], np.uint8))
            change(stage.folder / shard.name)
            writer.finish()
            writer.close()
        assert left(tmp_path) == []


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    shards = [lay_out(f"{place}/x", [("a", "U8", (3,), 3)]) for place in range(3 * MOST_OPEN)]
    before = len(list(Path("/proc/self/fd").iterdir()))
    with build_output(tmp_path / "out", overwrite=False) as stage:
        writer = Writer(stage, shards)
        for step in range(3):
            for place, shard in enumerate(shards):
                writer.write(shard.name, shard.offsets["a"] + step, np.array([(place + step) % 256], np.uint8))
        assert len(list(Path("/proc/self/fd").iterdir())) < before + MOST_OPEN + 10
        writer.finish()
        writer.close()
    for place, shard in enumerate(shards):
        data = (tmp_path / "out" / shard.name).read_bytes()
        assert data == shard.header + bytes((place + step) % 256 for step in range(3))
