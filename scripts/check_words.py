"""Report words of scripts/words.txt in text files: `python scripts/check_words.py PATH...`; folders are searched.

Code between backticks and in fenced blocks of Markdown is left out: names are what they are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

RULES = Path(__file__).with_name("words.txt")
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)\n]*\)", re.DOTALL)
SUFFIXES = {".md", ".py", ".toml", ".yaml", ".yml", ".cff"}


def rules() -> dict[re.Pattern[str], str]:
    """What not to write, and what to write instead."""
    lines = [line for line in RULES.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    pairs = (line.split(" -> ") for line in lines)
    return {re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): instead for pattern, instead in pairs}


def problems(path: Path) -> Iterator[str]:
    """The lines of a file that hold such a word."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        text = CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    for pattern, instead in rules().items():
        for found in pattern.finditer(text):
            yield f"{path}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]!r}; write: {instead}"


if __name__ == "__main__":
    named = [Path(name) for name in sys.argv[1:]]
    files = [file for path in named for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    found = [line for file in files if file.suffix in SUFFIXES for line in problems(file)]
    sys.exit("\n".join([*found, f"{len(found)} words to replace (scripts/words.txt)"]) if found else None)
