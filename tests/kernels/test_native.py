"""Compiled kernels on disk: what is loaded, what is not, and what is compiled again."""

import errno
import os
import re
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.errors import NumbaError

import ramerge
from ramerge.core.foundation import store
from ramerge.core.foundation.progress import Progress
from ramerge.core.kernels import native
from ramerge.core.kernels import ram as kernel
from tests.checkpoints import recipe, write_simple
from tests.messages import Messages

SOURCE = """
def total(values, factor):
    result = np.float64(0)
    for i in range(np.uint64(values.size)):
        result += np.float64(values[i]) * factor
    return result
"""
ARGUMENTS = ("u32[]", "f64")

FACTOR = 3


def tripled(x: Any) -> Any:
    return FACTOR * x


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a process that has loaded nothing."""
    monkeypatch.setenv("RAMERGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "_kernels", {})
    return tmp_path / "cache" / "ramerge" / "kernels"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that were compiled."""
    made: list[str] = []
    compile_really = native._compile

    def compile_and_note(key: bytes, source: native.KernelSource) -> int:
        made.append(source.name)
        return compile_really(key, source)

    monkeypatch.setattr(native, "_compile", compile_and_note)
    return made


def total(source: str = SOURCE) -> float:
    return native.load("total", source, ARGUMENTS, "f64")(np.arange(5, dtype=np.uint32), 0.5)


def forget() -> None:
    native._kernels.clear()


def test_a_kernel_is_compiled_once(cache: Path, compilations: list[str]) -> None:
    for _ in range(3):
        assert total() == 5.0
        forget()
    assert compilations == ["total"]
    (file,) = cache.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_a_second_process_does_without_numba(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import sys
        import numpy as np
        from ramerge.core.kernels import convert, ram
        from ramerge.core.kernels.element_formats import uniform
        words = [np.zeros(4, np.uint32) for _ in range(4)]
        ram.merge(uniform("BF16", 3), words[:3], (1e-5,), None, words[3], np.zeros((2, 2), np.int64))
        convert.convert("BF16", words[0], "F32", np.zeros(8, np.uint32), 8)
        print("numba" in sys.modules)
    """)
    environment = {**os.environ, "RAMERGE_CACHE": str(tmp_path)}
    said = [
        subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [run.stdout.strip() for run in said] == ["True", "False"]


@pytest.mark.parametrize("damage", ["empty", "truncated", "header only", "flipped", "appended", "another kernel's"])
def test_a_damaged_file_is_compiled_again(cache: Path, compilations: list[str], damage: str) -> None:
    total()
    (file,) = cache.iterdir()
    content = file.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    file.write_bytes(
        {
            "empty": b"",
            "truncated": content[:-1],
            "header only": content[:64],
            "flipped": bytes(flipped),
            "appended": content + b"\0",
            "another kernel's": bytes(32) + content[32:],
        }[damage]
    )
    forget()
    assert total() == 5.0
    assert compilations == ["total", "total"]
    assert file.read_bytes()[:32] == content[:32]


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_file_writable_by_others_is_not_loaded(cache: Path, compilations: list[str], mode: int) -> None:
    total()
    (file,) = cache.iterdir()
    file.chmod(mode)
    forget()
    assert total() == 5.0
    assert compilations == ["total", "total"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_of_another_user_is_not_loaded(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    total()
    forget()
    monkeypatch.setattr(os, "geteuid", lambda: 12345678)
    assert total() == 5.0
    assert compilations == ["total", "total"]


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_regular_files_are_loaded(cache: Path, tmp_path: Path, compilations: list[str], kind: str) -> None:
    total()
    (file,) = cache.iterdir()
    remote = file.rename(tmp_path / "elsewhere")
    if kind == "link":
        file.symlink_to(remote)
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    forget()
    assert total() == 5.0
    assert compilations == ["total", "total"]


@pytest.mark.parametrize("place", ["/dev/null/cache", "/proc/cache"])
def test_unwritable_cache_is_not_used(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("RAMERGE_CACHE", place)
    assert total() == 5.0
    assert total() == 5.0
    assert compilations == ["total"]


def test_a_failed_write_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert total() == 5.0
    assert list(cache.iterdir()) == []


def source_key(*parts: Any) -> bytes:
    return native.KernelSource(*parts).key


def test_cache_key_covers_everything_relevant() -> None:
    keys = [
        source_key("f", "source", ("u32[]",), "u32", {}),
        source_key("g", "source", ("u32[]",), "u32", {}),
        source_key("f", "source ", ("u32[]",), "u32", {}),
        source_key("f", "source", ("u64[]",), "u32", {}),
        source_key("f", "source", ("u32[]", "u32"), "u32", {}),
        source_key("f", "source", ("u32[]",), "u64", {}),
        source_key("f", "source", ("u32[]",), "u32", {"tripled": tripled}),
        source_key("f", "source", ("u32[]",), "u32", {"element": tripled}),
        source_key("f", "source", ("u32[]",), "u32", {"element": lambda x: FACTOR + x}),
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("what", "changed"),
    [
        ("sys.version", "another"),
        ("np.__version__", "another"),
        ("llvmlite.__version__", "another"),
        ("llvm.get_host_cpu_name", lambda: "another"),
        ("version", lambda _: "another"),
    ],
)
def test_machinery_is_in_the_key(what: str, changed: object, monkeypatch: pytest.MonkeyPatch) -> None:
    before = native._compiler_description()
    monkeypatch.setattr(f"{native.__name__}.{what}", changed)
    native._compiler_description.cache_clear()
    try:
        assert native._compiler_description() != before
    finally:
        native._compiler_description.cache_clear()


def test_functions_are_compiled_in_with_their_constants(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "def apply(x):\n    return element(x)\n"

    def apply(element: Any) -> Any:
        return native.load("apply", source, ("i64",), "i64", {"element": element})(5)

    assert apply(tripled) == 15
    assert apply(lambda x: x + 1) == 6
    monkeypatch.setitem(globals(), "FACTOR", 4)
    assert apply(tripled) == 20
    monkeypatch.setitem(globals(), "FACTOR", 3)
    forget()
    assert apply(tripled) == 15
    assert compilations == ["apply"] * 3


def test_functions_may_call_others_of_their_module(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "def apply(x):\n    return element(x)\n"

    def apply() -> Any:
        return native.load("apply", source, ("i64",), "i64", {"element": lambda x: tripled(x) + 1})(5)

    assert apply() == 16
    monkeypatch.setitem(globals(), "FACTOR", 4)
    assert apply() == 21
    assert compilations == ["apply"] * 2


def test_functions_that_cannot_be_told_apart_are_refused() -> None:
    def closure(factor: int) -> Any:
        return lambda x: factor * x

    for element in (closure(2), np.add, len):
        with pytest.raises(TypeError, match="plain function"):
            source_key("f", "", (), "u32", {"element": element})
    with pytest.raises(TypeError, match="ARGUMENTS"):
        source_key("f", "", (), "u32", {"element": lambda x: ARGUMENTS[x]})


@pytest.mark.parametrize("line", ["print(x)", "if x > 1: raise ValueError('large')"])
def test_kernels_needing_python_are_not_kept(cache: Path, line: str, messages: Messages) -> None:
    source = f"def said(x):\n    {line}\n    return x\n"
    with messages.warns(RuntimeWarning):
        said = native.load("said", source, ("i64",), "i64")
    assert not cache.exists()
    assert said(1) == 1


def test_a_kernel_that_allocates_is_refused(cache: Path) -> None:
    with pytest.raises(NumbaError, match="zeros"):
        native.load("sized", "def sized(x):\n    return np.zeros(x).size\n", ("i64",), "i64")


def test_numba_that_is_switched_off_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    monkeypatch.setattr("numba.core.config.DISABLE_JIT", 1)
    with messages.raises(ramerge.RamergeError):
        total()


def test_unreadable_code_is_compiled_each_time(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setattr("numba.core.ccallback.CFunc.inspect_llvm", lambda _: "no code of this LLVM")
    for _ in range(2):
        with messages.warns(RuntimeWarning):
            assert total() == 5.0
        forget()
    assert compilations == ["total"] * 2
    assert not cache.exists()


def test_numba_file_errors_are_no_output_errors(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(_: str) -> str:
        raise OSError(errno.EMFILE, "Too many open files", "/numba/METADATA")

    names = write_simple(tmp_path)
    kernel._ram_kernel.cache_clear()
    native._compiler_description.cache_clear()
    monkeypatch.setattr(native, "version", version)
    with pytest.raises(ramerge.RamergeError) as failed:
        ramerge.merge(recipe(tmp_path, names, "ram"), tmp_path / "merged")
    assert re.fullmatch(
        r"kernel \w+ cannot be compiled or loaded: Too many open files; "
        r"raise the limit of open files \(ulimit -n\): /numba/METADATA",
        str(failed.value),
    )


def test_kernels_that_are_compiled_are_a_stage(cache: Path, tmp_path: Path) -> None:
    kernel._ram_kernel.cache_clear()
    names = write_simple(tmp_path)
    source = recipe(tmp_path, names[:1], "ram")
    events: list[Progress] = []
    ramerge.merge(source, tmp_path / "out", on_progress=events.append)
    compiling = [event for event in events if event.stage == "compiling kernels"]
    assert compiling[0] == Progress("compiling kernels", 0, 1, "kernels", "ram, 1 agent")
    assert compiling[-1].done == compiling[-1].total
    assert {event.stage for event in events} == {"compiling kernels", "merging"}
    events.clear()
    ramerge.merge(source, tmp_path / "again", on_progress=events.append)
    assert {event.stage for event in events} == {"merging"}


def test_loops_calling_the_c_library_run(cache: Path, compilations: list[str]) -> None:
    source = """
def fill(x, zeros, copy):
    for i in range(np.uint64(x.size)):
        zeros[i] = np.uint64(0)
    for i in range(np.uint64(x.size)):
        copy[i] = x[i]
    return 0
"""
    x, zeros, copy = np.arange(3 * 1000, dtype=np.uint64).reshape(3, 1000)
    for _ in range(2):
        native.load("fill", source, ("u64[]",) * 3, "i64")(x, zeros, copy)
        assert not zeros.any()
        assert np.array_equal(x, copy)
        copy[:] = 1
        forget()
    assert compilations == ["fill"]


def test_arrays_of_another_type_or_layout_are_refused(cache: Path) -> None:
    kernel = native.load("total", SOURCE, ARGUMENTS, "f64")
    good = np.arange(6, dtype=np.uint32)
    assert kernel(good, 1) == 15.0
    assert kernel(good.reshape(2, 3), np.float32(1)) == 15.0
    assert kernel(good[:0], 1.0) == 0.0
    good.flags.writeable = False
    assert kernel(good, 1.0) == 15.0
    odd = np.zeros(25, np.uint8)[1:].view(np.uint32)
    for bad in (good.astype(np.int32), good.astype(">u4"), good[::2], good.reshape(2, 3).T, odd):
        with pytest.raises(TypeError, match=r"total|contiguous"):
            kernel(bad, 1.0)
    with pytest.raises(ValueError, match="argument"):
        kernel(good)


def test_threads_that_want_the_same_kernel_share_it(cache: Path, compilations: list[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        kernels = list(pool.map(lambda _: native.load("total", SOURCE, ARGUMENTS, "f64"), range(16)))
    assert len(set(kernels)) == 1
    assert compilations == ["total"]


def test_what_was_not_used_for_long_is_removed(cache: Path) -> None:
    total()
    now = time.time()
    (used,) = cache.iterdir()
    stale, recent = cache / ("5" * 64), cache / ("e" * 64)
    for path, days in ((used, 80), (stale, 91), (recent, 89)):
        path.touch()
        os.utime(path, (now - days * 86400,) * 2)
    forget()
    total()
    assert used.stat().st_mtime > now - 60
    total(SOURCE + "\n")
    assert not stale.exists()
    assert {used, recent} < set(cache.iterdir())


def test_clearing_removes_nothing_that_is_not_the_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what a user keeps in the folder that RAMERGE_CACHE names, nor what a link leads to."""
    monkeypatch.setenv("RAMERGE_CACHE", str(tmp_path))
    home, linked, digest = tmp_path / "ramerge/counts", tmp_path / "linked", "c" * 64
    kept = [tmp_path / "counts/table", tmp_path / "counts" / digest, linked / digest, home / "notes.txt"]
    kept += [tmp_path / "deltas/mine/file", linked / "folder" / digest]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    others = home / ("d" * 64)
    others.write_text("")
    (home / ("e" * 64)).symlink_to(linked / digest)
    (home / ("f" * 64)).symlink_to(linked / "folder")
    for path in (*kept, *home.iterdir(), *(path.parent for path in kept)):
        os.utime(path, (0, 0), follow_symlinks=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12345678)
        store.sweep(home)
    assert others.exists()
    store.write("counts", bytes(32), b"x")
    assert sorted(path.name for path in home.iterdir()) == ["0" * 64, "notes.txt"]
    assert all(path.exists() for path in kept)
    (tmp_path / "ramerge/kernels").symlink_to(linked)
    store.write("kernels", bytes(32), b"x")
    assert all(path.exists() for path in kept)


def test_the_cache_says_that_it_is_one(cache: Path) -> None:
    """As the specification of CACHEDIR.TAG wants it, so that backups leave it out."""
    for _ in range(2):
        store.write("kernels", bytes(32), b"x")
    assert (cache.parent / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert not (cache.parent.parent / "CACHEDIR.TAG").exists()


def test_where_kernels_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAMERGE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    usual = store.folder("kernels")
    assert usual is not None and usual.is_relative_to("/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert store.folder("kernels") == usual
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert store.folder("kernels") == Path("/shared/ramerge/kernels")
    monkeypatch.setenv("RAMERGE_CACHE", "/there")
    assert store.folder("kernels") == Path("/there/ramerge/kernels")


def test_nothing_is_kept_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> None:
        raise KeyError(user)

    for name in ("RAMERGE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert store.folder("kernels") is None
    store.write("kernels", bytes(32), b"code")
    assert store.read("kernels", bytes(32)) is None


def test_32_bit_operations() -> None:
    source = """
def operate(x, y, by, out):
    for i in range(np.uint64(x.size)):
        out[np.uint64(3) * i] = xor32(x[i], y[i])
        out[np.uint64(3) * i + np.uint64(1)] = rotl32(x[i], by[i])
        out[np.uint64(3) * i + np.uint64(2)] = rotl32(x[i], 13)
    return 0
"""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2**32, (2, 1000), dtype=np.uint32)
    by = rng.integers(0, 32, 1000, dtype=np.uint32)
    out = np.empty((1000, 3), np.uint32)
    native.load("operate", source, ("u32[]",) * 4, "i64")(x, y, by, out)
    wide = x.astype(np.uint64)
    turned = [((wide << n) | (wide >> (np.uint64(32) - n))).astype(np.uint32) for n in (by.astype(np.uint64), 13)]
    assert np.array_equal(out, np.stack([x ^ y, *turned], axis=1))
