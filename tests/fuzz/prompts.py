"""Prompts and rollouts in every form that trainers write."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Iterator
from random import Random

from ramerge.calibration.prompts import read_prompts
from ramerge.core.foundation.errors import RamergeError
from tests.calibration.test_prompts import CHAT, EPISODE, SKYRL, SLIME, TRACE, TRL, VERL
from tests.fuzz.common import BATCH, check_refusal, folder
from tests.fuzz.mutate import json_text, torn

Case = tuple[str, bytes]
RECORDS = ({"messages": CHAT}, VERL, TRL, SKYRL, SLIME, TRACE, EPISODE)


def cases(seed: int) -> Iterator[Case]:
    """The suffix of a file, and its bytes."""
    rng = Random(seed)
    for _ in range(BATCH):
        if rng.random() < 0.2:
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w") as file:
                samples = [json.loads(json.dumps({**SLIME, rng.choice(list(SLIME)): rng.choice(RECORDS)}))]
                file.writestr("0/data.pkl", pickle.dumps({"samples": samples}, 2))
            yield ".pt", torn(rng, buffer.getvalue()) if rng.random() < 0.5 else buffer.getvalue()
            continue
        lines = b"\n".join(json_text(rng, rng.choice(RECORDS)) for _ in range(rng.randrange(1, 4)))
        yield ".jsonl", torn(rng, lines) if rng.random() < 0.1 else lines


def check(case: Case) -> bool:
    """Prompts that are whole, or an error."""
    suffix, data = case
    path = folder("prompts") / f"file{suffix}"
    path.write_bytes(data)
    try:
        drawn = read_prompts(path, 2)
    except RamergeError as error:
        check_refusal(error)
        return False
    for prompt in drawn:
        assert prompt.text or prompt.messages
        prompt.key.encode()
        for reply in prompt.replies:
            reply.text.encode()
            assert not reply.ids or 0 < reply.start < len(reply.ids)
    return True
