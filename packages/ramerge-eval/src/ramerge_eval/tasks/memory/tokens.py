"""The tokenizer of the model under test: lengths and chunks of texts."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

from ramerge import EvaluationError


class Tokens:
    """The tokenizer of the model under test, without special tokens. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Load the tokenizer.

        Args:
            path: a `tokenizer.json` or a folder that holds one.

        Raises:
            EvaluationError: the file is missing, or cannot be read.
        """
        from tokenizers import Tokenizer

        self.path = path / "tokenizer.json" if path.is_dir() else path
        if not self.path.is_file():
            raise EvaluationError(f"{self.path}: there is no tokenizer.json; give the model's with --tokenizer")
        try:
            self._tokenizer = Tokenizer.from_file(str(self.path))
        except Exception as error:  # what the library raises has no type of its own
            raise EvaluationError(f"{self.path}: is not a tokenizer ({error})") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._one = threading.Lock()

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text by itself."""
        try:
            return [len(each.ids) for each in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        except Exception as error:  # what the library raises has no type of its own
            raise EvaluationError(f"{self.path}: cannot tokenize the contexts ({error})") from error

    def chunks(self, text: str, size: int) -> Iterator[tuple[str, int]]:
        """Yield a text in chunks of `size` tokens, the last perhaps shorter, with the number of tokens of each.

        A chunk is the text that its tokens decode to: a split character becomes replacement characters, as in the
            original.
        The library takes some 350 bytes per token while it encodes, so one text is encoded at a time.
        """
        with self._one:
            [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
            ids = array("I", encoding.ids)
            del encoding
        for first in range(0, len(ids), size):
            part = list(ids[first : first + size])
            yield self._tokenizer.decode(part, skip_special_tokens=False), len(part)
