"""Report words of scripts/words.txt in text files: `python scripts/check_words.py PATH...`; folders are searched.

Code between backticks and in fenced blocks of Markdown is left out: names are what they are. Of Python, comments and
strings are read, which hold docstrings and messages.

Two habits are counted in code: docstrings that begin with "What" or "Of", whose number may only fall, and the share
of names that are or end in a verb form of scripts/verb_forms.txt (`found`, `as_given`); `--list` shows where they are.
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
VERB_FORMS = Path(__file__).with_name("verb_forms.txt")
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)\n]*\)", re.DOTALL)
# f-strings are tokens of their own from Python 3.12 on
PROSE = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
CODE_FOLDERS = ("src", "lab", "benchmarks", "packages", "scripts", "docs", "examples", "space", "tests", "conftest.py")
BEGINNINGS = re.compile(r"(?:What|Of)\b")
MOST_DOCSTRINGS = 110
"""How many there still are: lower this number when you have mended some."""
NAMED_FOLDERS = ("src", "lab", "benchmarks", "packages/ramerge-eval/src")
MOST_VERBS = 0.01
"""Largest share of verb forms among the names that code assigns, takes as parameters and defines."""
PREDICATES = {"are", "can", "did", "does", "has", "have", "is", "must", "should", "was", "were", "would"}
"""First words of names for yes or no, which a participle may follow: `is_sorted`."""
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
    return CODE.sub(lambda match: blank(match[0]), text) if path.suffix in {".md", ".py"} else text


def comments_and_strings(text: str) -> str:
    """Python without code; strings of one word are left out as well, because they are names and keys."""
    lines = [blank(line) for line in text.splitlines(keepends=True)]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in PROSE and (token.type == tokenize.COMMENT or " " in token.string):
            row, column = token.start
            for number, line in enumerate(token.string.splitlines(keepends=True), row - 1):
                start = column if number == row - 1 else 0
                spaces = lines[number]
                lines[number] = spaces[:start] + line + spaces[start + len(line) :]
    return "".join(lines)


def blank(text: str) -> str:
    """The same lines, of spaces."""
    return re.sub(r"[^\n]", " ", text)


def problems(path: Path) -> Iterator[str]:
    """The lines of a file that hold such a word."""
    text = prose(path)
    for pattern, instead in rules().items():
        for match in pattern.finditer(text):
            yield f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}; write: {instead}"


def verb_forms() -> frozenset[str]:
    """Participles, pasts and third persons that are no nouns."""
    lines = VERB_FORMS.read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())


def is_verb(name: str, forms: frozenset[str]) -> bool:
    """Whether a name says what happened to a value instead of what the value is."""
    words = name.strip("_").lower().split("_")
    return words[-1] in forms and words[0] not in PREDICATES and not name.startswith("__")


def bound(node: ast.AST) -> Iterator[str]:
    """Names that a node gives to something."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name


def modules(folders: tuple[str, ...]) -> Iterator[Path]:
    """Python files of folders of this repository."""
    for place in (Path(__file__).parents[1] / name for name in folders):
        yield from [place] if place.is_file() else sorted(place.rglob("*.py"))


def places(module: Path) -> Iterator[tuple[str, ast.AST]]:
    """Nodes of a module, and where they are."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        yield f"{module}:{getattr(node, 'lineno', 1)}", node


def docstrings() -> Iterator[str]:
    """Docstrings that begin badly."""
    for place, node in (pair for module in modules(CODE_FOLDERS) for pair in places(module)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if BEGINNINGS.match(text):
                yield f"{place}: {text.splitlines()[0]}"


def too_many() -> Iterator[str]:
    """Habits that have become more than there may be; with `--list` all of them."""
    forms = verb_forms()
    names = [
        (f"{place}: {name}", name)
        for module in modules(NAMED_FOLDERS)
        for place, node in places(module)
        for name in bound(node)
    ]
    verbs = [line for line, name in names if is_verb(name, forms)]
    beginnings = list(docstrings())
    if "--list" in sys.argv:
        yield from [*beginnings, *verbs, f"{len(verbs) / len(names):.2%} of {len(names):,} names are verb forms"]
    if len(beginnings) > MOST_DOCSTRINGS:
        yield f"{len(beginnings)} docstrings begin with What or Of, at most {MOST_DOCSTRINGS} may; --list shows them"
    if len(verbs) > MOST_VERBS * len(names):
        yield f"{len(verbs)} of {len(names):,} names are verb forms, at most {MOST_VERBS:.1%} may be; --list shows them"


if __name__ == "__main__":
    paths = [Path(name) for name in sys.argv[1:] if name != "--list"]
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    lines = [line for file in files if file.suffix in SUFFIXES for line in problems(file)]
    if lines:
        lines.append(f"{len(lines)} words to replace (scripts/words.txt)")
    sys.exit("\n".join([*lines, *too_many()]) or None)
