"""Run a command of ramerge, and write the kernels that it compiles: `python scripts/dump_kernels.py OUT COMMAND...`.

For each kernel OUT gets `NAME.py` (what the template was expanded to), `NAME.ll` (numba's LLVM code)
and `NAME.s` (assembly for this processor). Nothing is taken from the store of machine code, so everything is compiled.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from ramerge.cli.main import main
from ramerge.kernels import compiler
from ramerge.kernels.native import KernelSource


def dump(folder: Path, source: KernelSource, features: str) -> Any:
    """Compile a kernel, and write what it was compiled from and to."""
    compiled = compile_kernel(source, features)
    code = compiled.inspect_llvm()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(llvm.get_host_cpu_name(), features, opt=3, codemodel="jitdefault", jit=True)
    texts = {"py": source.text, "ll": code, "s": machine.emit_assembly(llvm.parse_assembly(code))}
    for suffix, text in texts.items():
        (folder / f"{source.name}.{suffix}").write_text(text, encoding="utf-8")
    return compiled


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    compile_kernel = compiler.compile_kernel
    compiler.compile_kernel = lambda source, features: dump(folder, source, features)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["RAMERGE_CACHE"] = cache
        sys.argv = ["ramerge", *sys.argv[2:]]
        sys.exit(main())
