"""Machine code that a wheel brings along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import FunctionType
from zipfile import ZipFile

import llvmlite.binding as llvm
import pytest

from ramerge.core.foundation import store
from ramerge.core.kernels import bundle, intrinsics, native
from ramerge.core.kernels.threefry import threefry

_TEXT = "def twice(x):\n    return x + x\n"
_SOURCE = native.KernelSource("twice", _TEXT, ("u64",), "u64", {})
_HERE = next(
    (level for level in bundle.LEVELS if level.fits(llvm.get_process_triple(), native._target_processor()[1])), None
)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle for this machine, and an empty store."""
    if _HERE is None:
        pytest.skip("no level of bundles fits this processor")
    for name in [name for name in os.environ if name.startswith("NUMBA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAMERGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bundle, "FOLDER", tmp_path)
    code, key = native.compile_source(_SOURCE)[1], _SOURCE.portable_key
    assert code and key
    bundle.write(tmp_path / f"{_HERE.name}.zip", {key: code})
    return tmp_path / f"{_HERE.name}.zip"


def found() -> bytes | None:
    bundle._open_zip.cache_clear()
    return bundle.find(_SOURCE.portable_key or "", llvm.get_process_triple(), native._target_processor()[1])


def test_bundled_kernel_runs_without_compiling(written: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom ramerge.core.kernels import bundle, native\n"
        f"bundle.FOLDER = Path({str(written.parent)!r})\n"
        f"print(native.load('twice', {_TEXT!r}, ('u64',), 'u64')(21), 'numba' in sys.modules)\n"
        f"print(native.load('twice', {_TEXT!r} + '\\n', ('u64',), 'u64')(21), 'numba' in sys.modules)\n"
    )
    environment = dict(os.environ) | {"RAMERGE_CACHE": str(written.parent / "empty")}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["42", "False", "42", "True"]


def test_a_bundle_of_other_sources_is_not_used(written: Path) -> None:
    assert found()
    with ZipFile(written, "a") as file:
        file.comment = json.dumps(json.loads(file.comment) | {"version": "0"}).encode()
    assert found() is None
    with ZipFile(written, "a") as file:
        file.comment = b"{"
    assert found() is None


@pytest.mark.parametrize("content", [b"", b"PK", b"no archive" * 100])
def test_a_damaged_bundle_is_not_used(written: Path, content: bytes) -> None:
    written.write_bytes(content)
    assert found() is None


def test_flipped_bits_in_a_bundle_are_noticed(written: Path) -> None:
    whole = written.read_bytes()
    with ZipFile(written) as file:
        start = file.infolist()[0].header_offset + 100
    written.write_bytes(whole[:start] + bytes([whole[start] ^ 1]) + whole[start + 1 :])
    assert found() is None


def test_settings_of_numba_are_obeyed(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native._bundled_code(_SOURCE)
    monkeypatch.setenv("NUMBA_OPT", "1")
    assert native._bundled_code(_SOURCE) is None


def test_level_fits_processors_with_all_features() -> None:
    v4, v3, arm = bundle.LEVELS
    linux, features = "x86_64-unknown-linux-gnu", ",".join(v4.features)
    assert v4.fits(linux, features) and v3.fits(linux, features) and not arm.fits(linux, features)
    assert not v4.fits(linux, ",".join(v3.features)) and not v3.fits(linux, "+avx,+sse3")
    assert not v3.fits("x86_64-apple-darwin", features)
    assert arm.fits("aarch64-unknown-linux-gnu", "+neon,+crc")


def test_a_portable_key_says_what_is_computed() -> None:
    assert native.KernelSource("twice", _TEXT + "#", ("u64",), "u64", {}).portable_key != _SOURCE.portable_key
    called = native.KernelSource("twice", _TEXT, ("u64",), "u64", {"threefry": threefry})
    assert called.portable_key not in (None, _SOURCE.portable_key)
    # a function of a plug-in, or one that is made at run time, is in no bundle
    made = FunctionType(compile("def f(x): return x", "<made>", "exec").co_consts[0], {**intrinsics.INTRINSICS})
    assert native.KernelSource("twice", _TEXT, ("u64",), "u64", {"f": made}).portable_key is None


def test_compiled_kernels_go_to_the_store(written: Path) -> None:
    before = written.read_bytes()
    native.load("thrice", "def thrice(x):\n    return x + x + x\n", ("u64",), "u64")
    home = store.folder("kernels")
    assert home and len([path for path in home.iterdir() if len(path.name) == 64]) == 1
    assert written.read_bytes() == before
