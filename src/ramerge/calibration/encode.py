"""Turns prompt and reply, as text or chat, into token ids, and marks the labels among them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

_MOST_TURNS = 3


@dataclass(frozen=True)
class Text:
    """An example that is plain text: `labels` after `context`.

    With `complete`, nothing is put in front: the text already has all special tokens.
    """

    context: str
    labels: str = ""
    complete: bool = False


@dataclass(frozen=True)
class ChatExample:
    """An example that is a list of messages. A last message of the assistant is the reply; otherwise, all messages
    count.
    """

    messages: Sequence[Mapping[str, object]]

    @property
    def has_reply(self) -> bool:
        """Whether the last message is the assistant's."""
        return bool(self.messages[-1]["role"] == "assistant")


Example = Text | ChatExample


@dataclass(frozen=True)
class EncodedExample:
    """Token ids of an example. Ids from `start` on are labels, each predicted from all ids before it.

    Attributes:
        start: position of the first label, at least 1.
    """

    ids: tuple[int, ...]
    start: int
    truncated: bool


class ExampleEncoder:
    """Encoder of examples into token ids, with a tokenizer of transformers and its chat template."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length

    def __call__(self, example: Example) -> EncodedExample | str:
        """Return the ids of an example, or the problem with it."""
        if isinstance(example, ChatExample):
            texts = self._render_chat(example)
            if isinstance(texts, str):
                return texts
            context, labels = (self._token_ids(text) for text in texts)
            end = self._tokenizer.eos_token_id
            if example.has_reply and end in labels:
                # no model has to generate what a template writes behind the end of the sequence
                labels = labels[: len(labels) - labels[::-1].index(end)]
        else:
            context, labels = self._ids_of_context(example), self._token_ids(example.labels)
        return self.cut(context, labels)

    def cut(self, context: Sequence[int], labels: Sequence[int]) -> EncodedExample | str:
        """Cut an example to as many ids as fit; return it, or the problem with it.

        Ids are cut first from the left of the context, which is never cut completely, then from the right of labels.
        """
        length = len(context) + len(labels)
        labels = labels[: self._max_length - bool(context)]
        room = self._max_length - len(labels)
        if len(context) > room:
            # models lean on the beginning-of-sequence token far more than on any other
            has_start_token = room > 1 and context[0] == self._tokenizer.bos_token_id
            context = [*context[:has_start_token], *context[len(context) - room + has_start_token :]]
        ids, start = (*context, *labels), max(len(context), 1)
        if len(ids) <= start:
            return "gives no token whose likelihood could be taken"
        return EncodedExample(ids, start, len(ids) < length)

    def prompt(self, example: Example) -> list[int] | str:
        """Return the ids of a prompt, ready for a reply and not cut; or the problem with the example."""
        if isinstance(example, Text):
            return self._ids_of_context(example)
        texts = self._render_chat(example)
        return texts if isinstance(texts, str) else self._token_ids(texts[1])

    def conversation(self, text: str) -> tuple[list[Mapping[str, str]], str] | None:
        """Recover the messages of a prompt from text that a trainer has decoded without special tokens.

        With these messages, the chat template writes the same text, apart from special tokens.

        Returns:
            The messages, and text that only the trainer's template puts before the reply, such as empty thoughts; None
            if the text is not a conversation.
        """
        for roles, marks in self._template_shapes:
            if (between := _texts_between(marks, text)) is None:
                continue
            *contents, rest = between
            messages = _conversation(roles, contents)
            # marks of white space alone are no evidence that something else may follow them
            if self._decoded_prompt(messages) == text.removesuffix(rest) and (not rest or not marks[-1].isspace()):
                return messages, rest
        return None

    @cached_property
    def _template_shapes(self) -> list[tuple[list[str], list[str]]]:
        """Roles, and the template's text around contents, for conversations of up to three turns, longest first."""
        shapes = []
        for turns, system in product(range(_MOST_TURNS, 0, -1), (False, True)):
            roles = [*(["system"] if system else []), *(["user", "assistant"] * turns)[:-1]]
            contents = [f"content{place}of{len(roles)}" for place in range(len(roles))]
            marks = re.split("|".join(contents), self._decoded_prompt(_conversation(roles, contents)))
            # where only special tokens stand between contents, nothing is left to separate them
            if len(marks) == len(roles) + 1 and all(marks[1:]):
                shapes.append((roles, marks))
        return shapes

    def _decoded_prompt(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return a prompt as a trainer decodes it; empty if there is no template, or it refuses the messages."""
        texts = self._render_chat(ChatExample(messages))
        text = "" if isinstance(texts, str) else texts[1]
        return str(self._tokenizer.decode(self._token_ids(text), skip_special_tokens=True))

    def _ids_of_context(self, example: Text) -> list[int]:
        return [
            *([] if example.complete else self._leading_special_tokens(example.context)),
            *self._token_ids(example.context),
        ]

    def _token_ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _leading_special_tokens(self, text: str) -> list[int]:
        """Return the special tokens that the tokenizer puts in front of a text, without those that it puts after it."""
        plain, whole = self._token_ids(text), list(self._tokenizer(text)["input_ids"])
        if not plain:  # what is in front of nothing cannot be distinguished from what is behind it
            return whole[:1] if whole[:1] == [self._tokenizer.bos_token_id] else []
        for start in range(len(whole) - len(plain) + 1):
            if whole[start : start + len(plain)] == plain:
                # a text that a chat template has written may begin with them
                return whole[:start] if plain[:start] != whole[:start] else []
        return []

    def _render_chat(self, chat: ChatExample) -> tuple[str, str] | str:
        """Return the chat's context and labels as its template writes them, or the problem with the chat."""
        if not self._tokenizer.chat_template:
            return "has messages, but the model's tokenizer has no chat template; give `prompt` as plain text"
        try:
            if not chat.has_reply:
                return "", self._apply_template(chat.messages, add_generation_prompt=True)
            whole = self._apply_template(chat.messages)
            # a template may refuse a conversation without a question; then the reply is all there is
            context = self._apply_template(chat.messages[:-1], add_generation_prompt=True) if chat.messages[1:] else ""
        except Exception as error:  # a template is code of the model's authors and may raise anything
            return f"the chat template refuses the messages: {error}"
        if not whole.startswith(context):
            return (
                "the chat template writes the conversation before the reply otherwise when the reply follows; "
                "use prompt and reply"
            )
        return context, whole.removeprefix(context)

    def _apply_template(self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = False) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
            )
        )


def _texts_between(marks: Sequence[str], text: str) -> list[str] | None:
    """Return the texts between the marks and after the last mark, which is matched at its last occurrence; None if
    absent.
    """
    first, *inner, last = marks
    if not text.startswith(first):
        return None
    contents, rest = [], text[len(first) :]
    for mark in inner:
        content, is_there, rest = rest.partition(mark)
        contents.append(content)
        if not is_there:
            return None
    content, is_there, rest = rest.rpartition(last)
    return [*contents, content, rest] if is_there else None


def _conversation(roles: Sequence[str], contents: Sequence[str]) -> list[Mapping[str, str]]:
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
