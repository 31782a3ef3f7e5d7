"""Run a command of ramerge, and write the kernels that it compiles:

    python scripts/dump_kernels.py [--target TRIPLE] OUT COMMAND...

For each kernel OUT gets `NAME.py` (what the template was expanded to), `NAME.ll` (numba's LLVM code)
and `NAME.s` (assembly). Nothing is taken from the store of machine code, so everything is compiled.

Assembly is for this processor, or for TRIPLE, such as aarch64-unknown-linux-gnu. LLVM then writes what it would write
on that system from code that numba has optimized for this architecture's plainest processor.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm


def main() -> int:
    """Run the command with a compiler that keeps what it makes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="", metavar="TRIPLE", help="write assembly for this system")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.target:  # numba reads these when it is imported
        os.environ |= {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    from ramerge.cli.main import main as run
    from ramerge.core.kernels import compiler

    compile_kernel = compiler.compile_kernel

    def compile_and_dump(source: Any, features: str) -> Any:
        compiled = compile_kernel(source, features)
        code = compiled.inspect_llvm()
        texts = {"py": source.text, "ll": code, "s": _assembly(code, given.target, features)}
        for suffix, text in texts.items():
            (given.out / f"{source.name}.{suffix}").write_text(text, encoding="utf-8")
        return compiled

    compiler.compile_kernel = compile_and_dump
    with tempfile.TemporaryDirectory() as cache:
        os.environ["RAMERGE_CACHE"] = cache
        sys.argv = ["ramerge", *given.command]
        return run()


def _assembly(code: str, triple: str, features: str) -> str:
    if not triple:
        target = llvm.Target.from_triple(llvm.get_process_triple())
        name = llvm.get_host_cpu_name()
        machine = target.create_target_machine(name, features, opt=3, codemodel="jitdefault", jit=True)
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        machine = llvm.Target.from_triple(triple).create_target_machine(opt=3)
        code = re.sub(r'target triple = ".*"', f'target triple = "{triple}"', code)
        code = re.sub(r'target datalayout = ".*"', f'target datalayout = "{machine.target_data}"', code)
    return str(machine.emit_assembly(llvm.parse_assembly(code)))


if __name__ == "__main__":
    sys.exit(main())
