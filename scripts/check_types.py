"""Check what pyright knows of the types that users see: `python scripts/check_types.py`.

Every name that `ramerge` exports must be complete; of everything else, mypy decides.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"
STUB = SOURCES / "ramerge/__init__.pyi"


def exported() -> set[str]:
    """The names that `ramerge` exports, by the modules that define them."""
    imports = [node for node in ast.parse(STUB.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    return {f"ramerge.{node.module}.{alias.name}" for node in imports if node.level for alias in node.names}


def is_part_of(name: str, public: set[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in public)


if __name__ == "__main__":
    command = [
        "pyright",
        "--pythonpath",
        sys.executable,
        "--verifytypes",
        "ramerge",
        "--ignoreexternal",
        "--outputjson",
    ]
    # pyright does not find an editable installation
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False, env=environment
    )
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    if not symbols:
        sys.exit(f"pyright has found no symbols in {SOURCES}")
    unknown = [symbol for symbol in symbols if symbol["isExported"] and not symbol["isTypeKnown"]]
    public = exported()
    problems = [
        f"{symbol['name']}: {diagnostic['message']}"
        for symbol in unknown
        if is_part_of(symbol["name"], public)
        for diagnostic in symbol["diagnostics"]
    ]
    sys.exit("\n".join(problems) or None)
