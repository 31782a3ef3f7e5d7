"""Tokenizer files of an agent next to the base's: their tokens and templates, compared and shown."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from random import Random

from ramerge import api
from ramerge.cli.terminal import say
from ramerge.core.foundation.jsontext import dumped
from ramerge.core.options import Options
from tests.checkpoints import recipe, simple, write_checkpoint
from tests.fuzz.common import BATCH, check_shown, folder
from tests.fuzz.mutate import json_text

ADDED = [{"id": 4, "content": "<s>", "special": True}, {"id": 5, "content": "<é>"}]
FILES = {
    "tokenizer.json": {"added_tokens": ADDED, "model": {"vocab": {"a": 0, "\\": 1, '"vocab": {': 2, "é": 3}}},
    "vocab.json": {"a": 0, "b": 1, "{": 2},
    "added_tokens.json": {"<s>": 4},
    "tokenizer_config.json": {"added_tokens_decoder": {"4": {"content": "<s>"}}, "chat_template": "{{ a }}"},
    "chat_template.json": {"chat_template": "{{ b }}"},
}
SCORED = {"added_tokens": ADDED, "model": {"vocab": [["a", -1.0], ["b", 2], ["[", 1e3]]}}
Case = tuple[str, bytes]


@cache
def _models() -> Path:
    place = folder("tokenizers")
    for name in ("base", "agent"):
        write_checkpoint(place / name, simple(0, shape=(2, 2), moved=0.5 * (name == "agent")))
    (place / "base/tokenizer.json").write_text(json.dumps(FILES["tokenizer.json"]))
    return place


def cases(seed: int) -> Iterator[Case]:
    """The name of one file of the agent, and its text; broken into pieces as often as mutated."""
    rng = Random(seed)
    for _ in range(BATCH):
        name = rng.choice(list(FILES))
        document = SCORED if name == "tokenizer.json" and rng.random() < 0.3 else FILES[name]
        text = json_text(rng, document)
        if rng.random() < 0.2:
            cut = rng.randrange(len(text) + 1)
            text = text[:cut] + rng.choice([b"", b'"', b"\\", b"{", b"[" * 999, b"\xff\xfe", b"9" * 500]) + text[cut:]
        yield name, text


def check(case: Case) -> bool:
    """A plan with problems or without, that can be shown."""
    place, (name, text) = _models(), case
    for other in FILES:
        (place / "agent" / other).unlink(missing_ok=True)
    if name in ("added_tokens.json", "tokenizer_config.json"):
        (place / "agent/vocab.json").write_text(json.dumps(FILES["vocab.json"]))
    (place / "agent" / name).write_bytes(text)
    plan = api.plan(recipe(place, ["agent"]), options=Options(cache=False))
    check_shown([*plan.notes, *plan.problems, *plan.warnings])
    screen = io.StringIO()
    with redirect_stdout(screen):
        say(plan.explain().splitlines())
    assert all(line.isprintable() for line in screen.getvalue().split("\n")), screen.getvalue()
    json.loads(dumped(plan.to_dict()))
    return not plan.problems
