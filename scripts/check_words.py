"""Report words of scripts/words.txt in text files: `python scripts/check_words.py PATH...`; folders are searched.

Code between backticks and in fenced blocks of Markdown is left out: names are what they are. Of Python, comments and
strings are read, which hold docstrings and messages.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

RULES = Path(__file__).with_name("words.txt")
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)\n]*\)", re.DOTALL)
# f-strings are tokens of their own from Python 3.12 on
PROSE = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
SUFFIXES = {".md", ".py", ".toml", ".yaml", ".yml", ".cff"}


def rules() -> dict[re.Pattern[str], str]:
    """What not to write, and what to write instead."""
    lines = [line for line in RULES.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    pairs = (line.split(" -> ") for line in lines)
    return {re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): instead for pattern, instead in pairs}


def prose(path: Path) -> str:
    """A file's text, in which all but sentences is blank."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = comments_and_strings(text)
    return CODE.sub(lambda found: blank(found[0]), text) if path.suffix in {".md", ".py"} else text


def comments_and_strings(text: str) -> str:
    """Python without code; strings of one word are left out as well, because they are names and keys."""
    lines = [blank(line) for line in text.splitlines(keepends=True)]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in PROSE and (token.type == tokenize.COMMENT or " " in token.string):
            row, column = token.start
            for number, line in enumerate(token.string.splitlines(keepends=True), row - 1):
                start = column if number == row - 1 else 0
                kept = lines[number]
                lines[number] = kept[:start] + line + kept[start + len(line) :]
    return "".join(lines)


def blank(text: str) -> str:
    """The same lines, of spaces."""
    return re.sub(r"[^\n]", " ", text)


def problems(path: Path) -> Iterator[str]:
    """The lines of a file that hold such a word."""
    text = prose(path)
    for pattern, instead in rules().items():
        for found in pattern.finditer(text):
            yield f"{path}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]!r}; write: {instead}"


if __name__ == "__main__":
    named = [Path(name) for name in sys.argv[1:]]
    files = [file for path in named for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    found = [line for file in files if file.suffix in SUFFIXES for line in problems(file)]
    sys.exit("\n".join([*found, f"{len(found)} words to replace (scripts/words.txt)"]) if found else None)
