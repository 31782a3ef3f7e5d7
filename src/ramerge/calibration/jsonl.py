"""Examples from JSON lines, one after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ramerge.foundation.errors import InputError, reason
from ramerge.foundation.jsontext import JsonLimits, parse

# Of a line: more text than any model takes.
_LIMITS = JsonLimits(size=16_000_000, signs=500_000)
_FORMS = ("prompt", "messages", "text")
_NOTHING_GIVEN = "has no completion, and labels=given takes the likelihood of one; add it, or use labels=sampled"


@dataclass(frozen=True)
class Text:
    """A line whose labels are `labels`, after `context`; None where everything counts.

    `complete` says that nothing is put in front: the text has all special tokens that the model reads.
    """

    number: int
    context: str | None
    labels: str
    complete: bool = False


@dataclass(frozen=True)
class ChatExample:
    """A line of messages. The last is the completion if it is the assistant's; otherwise everything counts."""

    number: int
    messages: Sequence[Mapping[str, Any]]

    @property
    def is_answered(self) -> bool:
        """Whether the last message is the assistant's."""
        return bool(self.messages[-1]["role"] == "assistant")


Example = Text | ChatExample


def check(path: Path, examples: int, *, sampled: bool) -> int:
    """How many lines there are to use: `examples`, or fewer in a shorter file."""
    count, problems = 0, []
    for item in _items(path, examples, sampled):
        count += 1
        if isinstance(item, str):
            problems.append(item)
    if problems:
        raise InputError(problems)
    if not count:
        raise InputError(f"{path}: holds no lines; give a file of JSON lines, one example each")
    return count


def read(path: Path, examples: int, *, sampled: bool) -> Iterator[Example]:
    """The first `examples` lines. Later lines are not looked at.

    A line is an object with exactly one of `prompt` (text, with an optional text `completion`), `messages` (objects
    with a text `role` and a text `content`) and `text`; other keys are ignored.
    """
    for item in _items(path, examples, sampled):
        if isinstance(item, str):
            raise InputError(item)
        yield item


def _items(path: Path, examples: int, sampled: bool) -> Iterator[Example | str]:
    """Each line's example, or what is wrong with it."""
    try:
        # a pipe would block or end before the second pass, and a device never end
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is not a regular file; give a file of JSON lines")
        with path.open("rb") as file:
            for number, line in enumerate(islice(iter(lambda: file.readline(_LIMITS.size + 1), b""), examples), 1):
                item = _example(number, line, sampled)
                yield f"{path}: line {number}: {item}" if isinstance(item, str) else item
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {reason(error)}") from error


def _example(number: int, line: bytes, sampled: bool) -> Example | str:
    if not line.strip():
        return "is empty"
    try:
        document = parse(line, _LIMITS)
    except ValueError as error:
        return str(error)
    if not isinstance(document, dict):
        return f"must be a JSON object, and is {_kind(document)}"
    forms = [form for form in _FORMS if form in document]
    if len(forms) != 1:
        what = "has none of" if not forms else f"has {' and '.join(forms)}, and must have one of"
        return f"{what} prompt, messages and text"
    if forms == ["messages"]:
        return _chat(number, document["messages"], sampled)
    return _text(number, document, forms[0], sampled)


def _text(number: int, document: Mapping[str, Any], form: str, sampled: bool) -> Text | str:
    fields = [form, "completion"] if "completion" in document else [form]
    if fields == ["text", "completion"]:
        return "has text and completion; a completion belongs to a prompt"
    wrong = [problem for field in fields if (problem := _not_text(field, document[field]))]
    if wrong:
        return "; ".join(wrong)
    if len(fields) == 2:
        return Text(number, document[form], document["completion"])
    if form == "prompt" and not sampled:
        return _NOTHING_GIVEN
    return Text(number, None, document[form])


def _chat(number: int, messages: Any, sampled: bool) -> ChatExample | str:
    if not isinstance(messages, list):
        return f"messages must be a list, and is {_kind(messages)}"
    if not messages:
        return "messages is empty"
    wrong = []
    for position, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            wrong.append(f"message {position} must be an object, and is {_kind(message)}")
            continue
        found = (_not_text(field, message.get(field), may_be_empty=field == "content") for field in ("role", "content"))
        wrong += [f"message {position}: {problem}" for problem in found if problem]
    if wrong:
        return "; ".join(wrong)
    chat = ChatExample(number, messages)
    return chat if chat.is_answered or sampled else f"the last message is not the assistant's: it {_NOTHING_GIVEN}"


def _not_text(field: str, value: Any, *, may_be_empty: bool = False) -> str | None:
    """Why a value is no text for a model; None if it is one."""
    if not isinstance(value, str):
        return f"{field} must be text, and is {_kind(value)}"
    if not value and not may_be_empty:
        return f"{field} is empty"
    try:
        value.encode()
    except UnicodeEncodeError:
        return f"{field} holds half of a surrogate pair, which is no character"
    return None


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null or absent"}
    return names.get(type(value), "a number")
