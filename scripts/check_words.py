"""Report words of scripts/words.txt in text files: `python scripts/check_words.py PATH...`; folders are searched.

Code between backticks and in fenced blocks of Markdown is left out: names are what they are. Of Python, comments and
strings are read, which hold docstrings and messages.

Two habits are counted in all code, tests included: docstrings that begin with "What" or "Of", and names that are bare
participles. Their numbers may only fall; `--list` shows where they are.
"""

from __future__ import annotations

import ast
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
CODE_FOLDERS = ("src", "lab", "benchmarks", "scripts", "docs", "examples", "space", "tests", "conftest.py")
BEGINNINGS = re.compile(r"(?:What|Of)\b")
PARTICIPLES = {"asked", "given", "known", "made", "said", "told", "wanted"}
MOST = {"docstring": 180, "name": 1051}
"""How many there still are: lower these numbers when you have mended some."""
SUFFIXES = {".md", ".py", ".toml", ".yaml", ".yml", ".cff"}


def rules() -> dict[re.Pattern[str], str]:
    """Patterns of words not to write, and what to write instead."""
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


def habits(path: Path) -> Iterator[tuple[str, str]]:
    """Docstrings of a module that begin badly, and names in it that are bare participles; kind and place of each."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if BEGINNINGS.match(text):
                yield "docstring", f"{path}:{node.body[0].lineno}: {text.splitlines()[0]}"
        for name in bound(node):
            if name in PARTICIPLES:
                yield "name", f"{path}:{getattr(node, 'lineno', 1)}: {name}"


def bound(node: ast.AST) -> Iterator[str]:
    """Names that a node gives to something."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name


def too_many() -> Iterator[str]:
    """Kinds of habits that have become more; with `--list` all of them."""
    root = Path(__file__).parents[1]
    places = [root / name for name in CODE_FOLDERS]
    modules = [module for place in places for module in ([place] if place.is_file() else sorted(place.rglob("*.py")))]
    seen = [one for module in modules for one in habits(module)]
    for kind, most in MOST.items():
        lines = [line for each, line in seen if each == kind]
        if "--list" in sys.argv:
            yield from lines
        if len(lines) > most:
            yield f"{len(lines)} of the kind {kind}, at most {most} may be left; --list shows them"


if __name__ == "__main__":
    named = [Path(name) for name in sys.argv[1:] if name != "--list"]
    files = [file for path in named for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    found = [line for file in files if file.suffix in SUFFIXES for line in problems(file)]
    if found:
        found.append(f"{len(found)} words to replace (scripts/words.txt)")
    sys.exit("\n".join([*found, *too_many()]) or None)
