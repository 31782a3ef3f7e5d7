"""A model's tokens of long contexts, in memory that does not grow with their length."""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramerge.foundation.errors import EvaluationError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

START = "Document"
"""What every piece of a context but the first begins with."""

_BATCH = 64
_UNICODE_FORMS = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
_ENDINGS = ("word", "word.", "word ", "word\n", "12")


@dataclass(frozen=True)
class Chunk:
    """Some tokens of a context: from `first` up to but without `end`, and what they decode to."""

    first: int
    end: int
    text: str


class Tokens:
    """The tokenizer of a model.

    Contexts come in pieces that make the whole when put together. Each piece but the first begins with `START`, and the
    one before it ends with a blank line. Most tokenizers split texts into words and give each word its tokens, whatever
    is around it. A word never goes across a blank line into `START`; how a word before it ends may depend on the next
    character, so each piece is tokenised with `START` behind it, whose tokens are taken off again. The tokens are those
    of the whole, which hypothesis checks in the tests.

    Where that cannot be told from a tokenizer's parts, such as SentencePiece's that put a space in front or take a text
    as one word, the whole is tokenised, one context at a time. That takes some 350 bytes a token.

    No special tokens are added. `separable` says which of the two ways is gone. Safe to use from several threads.
    """

    def __init__(self, path: Path) -> None:
        """Load it.

        Args:
            path: a `tokenizer.json` or a folder that holds one.

        Raises:
            EvaluationError: there is none, or it cannot be read.
        """
        self.path = path / "tokenizer.json" if path.is_dir() else path
        self._tokenizer = _loaded(self.path)
        self.separable = _separable(self._tokenizer)
        self._start = self.count([START])[0]
        if not self._start:
            raise EvaluationError(f"{self.path}: knows none of the words of the contexts; it is not the model's")
        self._one = threading.Lock()

    def count(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text by itself."""
        batches = (texts[first : first + _BATCH] for first in range(0, len(texts), _BATCH))
        return [len(each) for batch in batches for each in self._encoded(batch)]

    def ids(self, pieces: Iterable[str]) -> Iterator[Sequence[int]]:
        """The tokens of the whole, some at a time."""
        if not self.separable:
            with self._one:
                whole = array("I", self._encoded(["".join(pieces)])[0])
            yield whole
            return
        followed = pairwise(chain(pieces, [""]))
        while batch := list(islice(followed, _BATCH)):
            encoded = self._encoded([piece + START if following else piece for piece, following in batch])
            for (_, following), ids in zip(batch, encoded, strict=True):
                yield ids[: -self._start] if following else ids

    def chunks(self, pieces: Iterable[str], size: int) -> Iterator[Chunk]:
        """The whole in chunks of `size` tokens, the last with what is left.

        A chunk is what its tokens decode to: a character cut in two becomes replacement characters, as in the original.
        """
        waiting, first = array("I"), 0
        for ids in self.ids(pieces):
            waiting.extend(ids)
            while len(waiting) >= size:
                yield Chunk(first, first + size, self.decode(waiting[:size]))
                first += size
                del waiting[:size]
        if waiting:
            yield Chunk(first, first + len(waiting), self.decode(waiting))

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        """The text of tokens, with special tokens as they are written or without."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=not special)

    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            return [each.ids for each in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        except Exception as error:  # what the library raises has no type of its own
            raise EvaluationError(f"{self.path}: cannot tokenise the contexts ({error})") from error


def _loaded(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    if not path.is_file():
        raise EvaluationError(f"{path}: there is no tokenizer.json; give the model's with --tokenizer")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # what the library raises has no type of its own
        raise EvaluationError(f"{path}: is not a tokenizer ({error})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _separable(tokenizer: Tokenizer) -> bool:
    if tokenizer.pre_tokenizer is None:
        return False
    normalised = all(part["type"] in _UNICODE_FORMS for part in _parts(tokenizer.normalizer, "normalizers"))
    return (
        normalised
        and all(_looks_ahead_alone(part) for part in _parts(tokenizer.pre_tokenizer, "pretokenizers"))
        and all(_splits(tokenizer, ending) for ending in _ENDINGS)
    )


def _parts(component: Any, members: str) -> list[dict[str, Any]]:
    """What a normalizer or pre-tokenizer is made of, as in tokenizer.json."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    return list(state[members]) if state["type"] == "Sequence" else [state]


def _looks_ahead_alone(part: dict[str, Any]) -> bool:
    """Whether the words from some word on are the same without what comes before it."""
    if part["type"] == "ByteLevel":
        return not part["add_prefix_space"]
    if part["type"] == "Split":
        return "(?<" not in part["pattern"].get("Regex", "")
    return bool(part["type"] == "Digits")


def _splits(tokenizer: Tokenizer, ending: str) -> bool:
    """Whether a word begins at `START` after a document that ends so."""
    words = tokenizer.pre_tokenizer.pre_tokenize_str(f"{ending}\n\n{START} 2:\n")
    return any(start == len(ending) + 2 for _, (start, _) in words)
