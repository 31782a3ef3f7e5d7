"""Messages of a feature, in one reviewed file: `tests/FEATURE/messages.txt`.

A test says where a message comes from, and the file says its words. `pytest --write-messages` writes those that
changed, in one process; read them as a user would before you commit them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SECTION = re.compile(r"^== (.+)\n((?:[- ] .*\n|\n)*)", re.MULTILINE)

_VARYING = {
    r"SHARED/([^/]*?)\d+/": r"SHARED/\1/",  # numbered folders of fixtures
    r"\d+ % of (the work|an earlier run)": r"N % of \1",  # how far threads were
    r"at least \d+MB": "at least N MB",  # of this machine
}


class Messages:
    """Messages that one test has seen so far; each must be the next of the test's section."""

    def __init__(self, test: str, path: Path, folders: dict[str, str], *, write: bool) -> None:
        self.test, self.path, self.folders, self.write = test, path, folders, write
        self.seen: list[str] = []

    def check(self, *texts: object) -> None:
        """Compare texts, in which names such as `TMP` stand for the folders of this run."""
        assert texts, "nothing was said"
        for text in map(str, texts):
            for name, folder in self.folders.items():
                text = text.replace(folder, name)
            for pattern, replacement in _VARYING.items():
                text = re.sub(pattern, replacement, text)
            self.seen.append(text.strip())
        if not self.write:
            stored = read_messages(self.path).get(self.test, [])
            assert self.seen == stored[: len(self.seen)], f"if the new words are better: {self.path}, --write-messages"

    def finish(self) -> None:
        """Write what was seen, or make sure that nothing of the section is left."""
        if self.write:
            write_messages(self.path, self.test, self.seen)
        else:
            assert self.seen == read_messages(self.path).get(self.test, [])

    @contextmanager
    def raises(self, error: type[BaseException] | tuple[type[BaseException], ...]) -> Iterator[pytest.ExceptionInfo]:
        """`pytest.raises`, and a check of what the error says."""
        with pytest.raises(error) as caught:
            yield caught
        self.check(caught.value)

    @contextmanager
    def warns(self, category: type[Warning]) -> Iterator[pytest.WarningsRecorder]:
        """`pytest.warns`, and a check of all that these warnings say."""
        with pytest.warns(category) as caught:
            yield caught
        self.check(*(warning.message for warning in caught if issubclass(warning.category, category)))


def read_messages(path: Path) -> dict[str, list[str]]:
    """The messages of each test."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return {
        test: [part.replace("\n  ", "\n").strip() for part in re.split(r"^- ", lines, flags=re.MULTILINE)[1:]]
        for test, lines in _SECTION.findall(text)
    }


def write_messages(path: Path, test: str, messages: list[str]) -> None:
    """Replace the messages of one test."""
    sections = {**read_messages(path), test: messages}
    parts = [
        f"== {name}\n" + "".join(f"- {text}".replace("\n", "\n  ") + "\n" for text in sections[name])
        for name in sorted(sections)
        if sections[name]
    ]
    path.write_text("\n".join(parts), encoding="utf-8")
