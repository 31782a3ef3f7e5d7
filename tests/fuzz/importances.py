"""Importances of an agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

from ramerge import api
from ramerge.core.foundation.errors import RamergeError
from ramerge.core.options import Options
from tests.checkpoints import floats, write_checkpoint
from tests.fuzz.common import BATCH, check_refusal, check_shown, folder
from tests.fuzz.mutate import json_text

Case = tuple[str, bytes]


@cache
def _models() -> Path:
    place = folder("importances")
    for name, value in (("base", 0.0), ("agent", 1.0), ("fisher", 0.5)):
        write_checkpoint(place / name, {"a": floats([value, 1.0]), "b": floats([[value]])})
    return place


@cache
def _good() -> tuple[dict[str, object], bytes]:
    data = (_models() / "fisher/model.safetensors").read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def cases(seed: int) -> Iterator[Case]:
    """What it is, and its bytes."""
    rng = Random(seed)
    header, data = _good()
    for _ in range(BATCH):
        if rng.random() < 0.7:
            text = json_text(rng, header)
            yield "header", len(text).to_bytes(8, "little") + text + data
        else:
            text = json.dumps(header).encode()
            weights = bytes(rng.choice((0, 1, 0x7F, 0x80, 0xFF)) for _ in data)
            yield "weights", len(text).to_bytes(8, "little") + text + weights


def check(case: Case) -> bool:
    """A merge of the method fisher, or an error."""
    kind, data = case
    place = _models()
    try:
        (place / "fisher/model.safetensors").write_bytes(data)
        agents = {"agent": {"model": str(place / "agent"), "importance": str(place / "fisher")}}
        source = {"method": "fisher", "base": str(place / "base"), "agents": agents}
        if kind == "weights":
            list(api.plan(source, options=Options(cache=False)).tensors())
            return True
        plan = api.plan(source, options=Options(cache=False))
    except RamergeError as error:
        check_refusal(error)
        return False
    check_shown([*plan.notes, *plan.problems, *plan.warnings])
    return not plan.problems
