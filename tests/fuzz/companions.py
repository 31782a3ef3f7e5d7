"""JSON files next to the weights that name others: states of processors, and code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

from ramerge import api
from ramerge.core.formats.open import open_checkpoint
from ramerge.core.formats.sidecars import companion_files
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.options import Options
from tests.checkpoints import recipe, simple, write_checkpoint
from tests.fuzz.common import BATCH, check_refusal, check_shown, folder
from tests.fuzz.mutate import NAMES, json_text

STATE = "step_1_normalizer_processor.safetensors"
_FILES = ("policy_preprocessor.json", "tokenizer_config.json")
Case = tuple[str, str, bytes]


@cache
def _models() -> Path:
    place = folder("companions")
    for name in ("base", "agent"):
        write_checkpoint(place / name, simple(0, shape=(2, 2), moved=0.5 * (name == "agent")))
        (place / name / STATE).write_bytes(name.encode())
    (place / "secret.safetensors").write_bytes(b"secret")
    return place


def cases(seed: int) -> Iterator[Case]:
    """Whose file it is, its name and its text."""
    rng = Random(seed)
    names = (STATE, "model.safetensors", "../secret.safetensors", *NAMES)
    for _ in range(BATCH):
        document = {
            "steps": [{"registry_name": "x"}, {"state_file": rng.choice(names)}, {"state_file": STATE}],
            "auto_map": {"AutoModel": f"{rng.choice(names)}.X", "AutoTokenizer": ["tok.T", None]},
        }
        yield rng.choice(("base", "agent")), rng.choice(_FILES), json_text(rng, document)


def check(case: Case) -> bool:
    """A plan that can be shown; nothing but files of the folder is copied, and no weights that are read."""
    owner, name, text = case
    place = _models()
    for model in ("base", "agent"):
        for file in _FILES:
            (place / model / file).write_text(json.dumps({"steps": [{"state_file": STATE}]}))
    (place / owner / name).write_bytes(text)
    plan = api.plan(recipe(place, ["agent"]), options=Options(cache=False))
    check_shown([*plan.notes, *plan.problems, *plan.warnings])
    weights = place / "base/model.safetensors"
    try:
        copied = companion_files(open_checkpoint(place / "base"))
    except CheckpointError as error:
        check_refusal(error)
        return False
    assert weights not in copied.values()
    assert all(path.resolve().parent == (place / "base").resolve() for path in copied.values()), copied
    return not plan.problems
