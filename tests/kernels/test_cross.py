"""Kernels for arm64, as LLVM writes them on this machine: they round as here, and loops use vectors."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints import write_simple
from tests.tiers import some

ROOT = Path(__file__).parents[2]
# a product and a sum in one instruction, rounded once
FUSED = re.compile(r"\s(fml[as]|fn?m(add|sub)|bfmla\w*|bfdot|bfmmla)\s")
CALL = re.compile(r"\sbl\s+(\S+)")
VECTOR = re.compile(r"\sv\d+\.(16b|8h|4s|2d)")


@pytest.mark.full
@pytest.mark.parametrize("method", some(["ram+", "ties", "dare", "wudi"], full=["ram+", "wudi"]))
def test_arm64(method: str, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    agents = [word for name in names for word in ("--agent", f"{name}={tmp_path / name}")]
    out = tmp_path / "kernels"
    command = [sys.executable, ROOT / "scripts/dump_kernels.py", "--target", "aarch64-unknown-linux-gnu", out]
    flags = ["--method", method, "--base", tmp_path / "base", *agents, tmp_path / "merged", "--quiet"]
    done = subprocess.run([*command, "merge", *flags], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assemblies = {path.stem: path.read_text() for path in sorted(out.glob("*.s"))}
    assert len(assemblies) >= 2
    for name, assembly in assemblies.items():
        own = {symbol for symbol in CALL.findall(assembly) if "ramerge" in symbol}
        assert set(CALL.findall(assembly)) == own, f"{name} calls functions of a library"
        assert not FUSED.search(assembly), f"{name} rounds a product and a sum once"
        assert "llvm.x86" not in (out / f"{name}.ll").read_text(), name
    vectors = [name for name, assembly in assemblies.items() if VECTOR.search(assembly)]
    assert vectors, "no loop uses vectors"
