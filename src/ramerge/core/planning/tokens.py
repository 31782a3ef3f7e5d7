"""Read tokens and chat templates of models from the files next to their weights.

A tokenizer.json may have 40 MB, mostly merges. Parsing it takes seconds and 300 MB of memory. Therefore the entries of
the vocabulary and of the merges are matched one after another, and most of the rest is skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, TypeAlias

from ramerge.core.foundation.errors import CheckpointError, readable
from ramerge.core.foundation.jsontext import JsonLimits, damage, parse
from ramerge.core.storage.location import Location
from ramerge.core.tensors.access import access
from ramerge.core.tensors.checkpoint import Checkpoint

# Enough for a vocabulary of half a million tokens with its merges.
_MOST_BYTES = 128_000_000
# Limits for configurations, and for the entry of a single added token.
_CONFIG, _ENTRY = JsonLimits(size=32_000_000, signs=1_000_000), JsonLimits(size=100_000, signs=1000, depth=4)
# Limits for files that are fully parsed to see whether they are damaged. A token may be long, and takes two signs.
_PARSED = JsonLimits(size=1_000_000, signs=500_000, name=1_000_000)
# Repetitions are bounded, because the regex engine stores each of them.
_STRING = rb'"([^"\\]{0,4096}(?:\\.[^"\\]{0,4096}){0,512})"'
_TOKEN_NUMBER = re.compile(rb"\s*,?\s*" + _STRING + rb"\s*:\s*([0-9]{1,9})(?![0-9.eE])")
_TOKEN_SCORE = re.compile(rb"\s*,?\s*\[\s*" + _STRING + rb"\s*,[^\[\]\"]{1,64}\]")
_OBJECT = re.compile(rb'\s*,?\s*(\{[^{}"]*(?:' + _STRING + rb'[^{}"]{0,256}){0,32}\})')
# No token is followed by a colon and a bracket.
_VOCABULARY = re.compile(rb'"vocab"\s{0,9}:\s{0,9}([{\[])')
_ADDED_TOKENS = re.compile(rb'"added_tokens"\s{0,9}:\s{0,9}\[')
_MERGES = re.compile(rb'"merges"\s{0,9}:\s{0,9}\[')
_MERGE = re.compile(rb"\s*,?\s*(?:" + _STRING + rb"|\[\s*" + _STRING + rb"\s*,\s*" + _STRING + rb"\s*\])")
_STEPS = {"normalizer": "another normalizer", "pre_tokenizer": "another pre-tokenizer"}
_LONGEST_STEP = 100_000
_ROW = re.compile("[0-9]{1,9}")
_NAMES = ("tokenizer.json", "vocab.json", "added_tokens.json", "tokenizer_config.json")
_UNREAD = ("tokenizer.model", "vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tekken.json", "qwen.tiktoken")
_JINJA, _TEMPLATES = "chat_template.jinja", ("tokenizer_config.json", "chat_template.json")
_GENERATION = "generation_config.json"

Comparison: TypeAlias = Literal["tokens", "chat template", "end tokens"]
"""Properties of models that are compared, as messages call them."""


@dataclass(frozen=True)
class TokenReader:
    """Reads the tokens, chat templates and stop tokens of models."""

    _damages: dict[Location, str | None] = field(default_factory=dict, compare=False, repr=False)

    def digest_of(self, model: Checkpoint) -> bytes | None:
        """A digest of a model's tokenizer files; None if no file is supported, or if one is damaged."""
        texts = [self._read_file(model, name, _MOST_BYTES) for name in (*_NAMES, "merges.txt")]
        if (texts[0] is None and texts[1] is None) or self.damages(model, "tokens"):
            return None
        return sha256(repr([text and sha256(text).digest() for text in texts]).encode()).digest()

    def tokens_of(self, model: Checkpoint) -> dict[int, bytes]:
        """The tokens of a model in UTF-8, by row. If files disagree, later files win, as in transformers."""
        tokenizer_json, vocab_json, added_tokens_json, tokenizer_config = (
            self._read_file(model, name, _MOST_BYTES) for name in _NAMES
        )
        tokens: dict[int, bytes] = {}
        if tokenizer_json is not None:
            tokens.update(_vocabulary_entries(tokenizer_json))
            tokens.update(_added_tokens(tokenizer_json))
        else:
            for text in (vocab_json or b"", added_tokens_json or b""):
                tokens.update(_numbered_tokens(text, text.find(b"{") + 1))
        decoder = _parse_config(tokenizer_config).get("added_tokens_decoder")
        for row, entry in decoder.items() if isinstance(decoder, Mapping) else ():
            if isinstance(entry, Mapping) and isinstance(entry.get("content"), str) and _ROW.fullmatch(row):
                tokens[int(row)] = entry["content"].encode("utf-8", "replace")
        return tokens

    def damages(self, model: Checkpoint, what: Comparison) -> dict[Location, str]:
        """The files for a property that are not valid JSON objects, each with the reason."""
        if what == "tokens":
            own = _NAMES[:1] if self._find_file(model, _NAMES[0]) is not None else _NAMES[1:3]
            names: Iterable[str] = (*own, _NAMES[3])
        elif what == "chat template":
            names = _TEMPLATES if self._find_file(model, _JINJA) is None else ()
        else:
            names = (_GENERATION,)
        paths = [path for name in names if (path := self._find_file(model, name)) is not None]
        return {path: reason for path in paths if (reason := self.damage_of(path)) is not None}

    def damage_of(self, path: Location) -> str | None:
        """Why a file is not a JSON object; None if it is one, or if it is large and looks like one."""
        if path not in self._damages:
            with readable(path), path.open("rb") as file:
                self._damages[path] = damage(file, _PARSED)
        return self._damages[path]

    def has_valid_json(self, model: Checkpoint, file_name: str) -> bool:
        """Whether a model has a file of this name that contains a JSON object."""
        path = self._find_file(model, file_name)
        return path is not None and self.damage_of(path) is None

    def tokenization_settings(self, model: Checkpoint) -> dict[str, object]:
        """The settings of tokenization besides the tokens, by description; empty if a model has no such files."""
        tokenizer_json = self._read_file(model, "tokenizer.json", _MOST_BYTES)
        if tokenizer_json is None:
            lines = self._read_file(model, "merges.txt", _MOST_BYTES)
            merges = (line for line in (lines or b"").splitlines() if line[:1] != b"#")
            return {"other merges": _digest_lines(merges)} if lines is not None else {}
        steps = {text: _step_settings(tokenizer_json, key) for key, text in _STEPS.items()}
        begin = _MERGES.search(tokenizer_json)
        if begin is None:
            return steps
        pairs = (match.groups() for match in _adjacent_matches(_MERGE, tokenizer_json, begin.end()))
        # merges are written as strings or as pairs; both become `left right`
        merges = (
            _unescape(one) if one is not None else _unescape(left) + b" " + _unescape(right)
            for one, left, right in pairs
        )
        return {"other merges": _digest_lines(merges), **steps}

    def stops_of(self, model: Checkpoint) -> set[int]:
        """The tokens at which generation ends, from `generation_config.json`; empty if it has none."""
        stops = _parse_config(self._read_file(model, _GENERATION, _CONFIG.size)).get("eos_token_id")
        return {token for token in (stops if isinstance(stops, list) else [stops]) if isinstance(token, int)}

    def unread(self, model: Checkpoint) -> str | None:
        """The name of a tokenizer file that is not supported; None if the model has none."""
        return next((name for name in _UNREAD if self._find_file(model, name) is not None), None)

    def has_tokenizer(self, model: Checkpoint) -> bool:
        """Whether a model has a tokenizer file."""
        return any(self._find_file(model, name) is not None for name in (*_NAMES[:2], *_UNREAD))

    def has_generation(self, model: Checkpoint) -> bool:
        """Whether a model has a generation configuration."""
        return self._find_file(model, _GENERATION) is not None

    def template_of(self, model: Checkpoint) -> str | None:
        """The chat template that transformers would use, without surrounding whitespace; None if there is none."""
        text = self._read_file(model, _JINJA, _CONFIG.size)
        if text is not None:
            return text.decode("utf-8", "replace").strip()
        for name in _TEMPLATES:
            template = _parse_config(self._read_file(model, name, _CONFIG.size)).get("chat_template")
            if template:
                return template.strip() if isinstance(template, str) else json.dumps(template, sort_keys=True)
        return None

    def _find_file(self, model: Checkpoint, name: str) -> Location | None:
        for folder in reversed(model.companion_folders):
            path = folder / name
            if path.is_file() and (model.outside_links or not access(path).leads_outside(folder)):
                return path
        return None

    def _read_file(self, model: Checkpoint, name: str, most: int) -> bytes | None:
        path = self._find_file(model, name)
        return None if path is None else _read_bytes(path, most)


def _read_bytes(path: Location, most: int) -> bytes:
    with readable(path), path.open("rb") as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise CheckpointError(f"{path}: has more than the {most:,} bytes that are read")
    return text


def _vocabulary_entries(text: bytes) -> Iterator[tuple[int, bytes]]:
    begin = _VOCABULARY.search(text)
    if begin is not None and begin[1] == b"{":
        yield from _numbered_tokens(text, begin.end())
    elif begin is not None:
        entries = (_unescape(match[1]) for match in _adjacent_matches(_TOKEN_SCORE, text, begin.end()))
        yield from enumerate(entries)


def _numbered_tokens(text: bytes, position: int) -> Iterator[tuple[int, bytes]]:
    for match in _adjacent_matches(_TOKEN_NUMBER, text, position):
        yield int(match[2]), _unescape(match[1])


def _added_tokens(text: bytes) -> Iterator[tuple[int, bytes]]:
    begin = _ADDED_TOKENS.search(text)
    for match in _adjacent_matches(_OBJECT, text, begin.end()) if begin is not None else ():
        entry = _parse_config(match[1], _ENTRY)
        row, content = entry.get("id"), entry.get("content")
        if isinstance(row, int) and isinstance(content, str):
            yield row, content.encode("utf-8", "replace")


def _digest_lines(lines: Iterable[bytes]) -> bytes:
    digest = sha256()
    for line in lines:
        digest.update(line + b"\n")
    return digest.digest()


def _step_settings(text: bytes, key: str) -> object:
    """The settings of a tokenization step such as the pre-tokenizer; None if they are missing or unreadable."""
    begin = re.search(rb'"%b"\s{0,9}:\s{0,9}(?={)' % key.encode(), text)
    if begin is None:
        return None
    try:
        part = text[begin.end() : begin.end() + _LONGEST_STEP].decode("utf-8", "replace")
        return json.JSONDecoder().raw_decode(part)[0]
    except (ValueError, RecursionError):
        return None


def _adjacent_matches(pattern: re.Pattern[bytes], text: bytes, position: int) -> Iterator[re.Match[bytes]]:
    """Yield matches that follow each other without gaps, starting at `position`."""
    while (match := pattern.match(text, position)) is not None:
        yield match
        position = match.end()


def _unescape(raw: bytes) -> bytes:
    """Resolve the escapes in a JSON string, because libraries escape different characters. Return it in UTF-8."""
    if b"\\" not in raw:
        return raw
    try:
        return str(json.loads(b'"%b"' % raw)).encode("utf-8", "replace")
    except ValueError:
        return raw


def _parse_config(text: bytes | None, limits: JsonLimits = _CONFIG) -> dict[str, Any]:
    """The JSON object in a text; empty if it is not one, because even broken tokenizer files are copied unchanged."""
    try:
        values = parse(text or b"{}", limits, halves="replace")
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}
