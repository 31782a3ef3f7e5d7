"""Configurations of an agent next to the base's: compared, shown, and rewritten with another dtype."""

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
from ramerge.core.formats.files import read_json
from ramerge.core.formats.sidecars import companions_of
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.foundation.jsontext import dumped
from ramerge.core.options import Options
from tests.checkpoints import recipe, simple, write_checkpoint
from tests.formats.quantized import SAMPLES, write_quantized
from tests.fuzz.common import BATCH, check_refusal, check_shown, folder
from tests.fuzz.mutate import json_text

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "torch_dtype": "bfloat16",
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "vocab_size": 40,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
    "tie_word_embeddings": False,
    "eos_token_id": [1, 2],
    "text_config": {"head_dim": 8, "rope_parameters": {"rope_theta": 1, "rope_type": "default"}, "dtype": "float32"},
    "quantization_config": None,
    "id2label": {"0": "A"},
}

_QUANTIZATIONS = [dict(SAMPLES[name].config) for name in ("fp8 blocks", "compressed groups", "compressed blocks")]


@cache
def _models() -> Path:
    place = folder("configs")
    for name in ("base", "agent"):
        write_checkpoint(place / name, simple(0, shape=(2, 2), moved=0.5 * (name == "agent")), config=CONFIG)
    write_quantized(place / "quantized", "compressed groups", simple(0, shape=(2, 2), moved=0.5))
    return place


def cases(seed: int) -> Iterator[bytes]:
    """The text of an agent's config.json."""
    rng = Random(seed)
    declared = rng.choice([None] * 6 + [{"quant_method": "gptq", "bits": 4}, *_QUANTIZATIONS])
    document = CONFIG | {"quantization_config": declared}
    for _ in range(BATCH):
        yield json_text(rng, document)


def check(case: bytes) -> bool:
    """A plan with problems or without, that can be shown; a companion that is a configuration still."""
    place = _models()
    agents = ["agent", "quantized"] if b"quant_method" in case else ["agent"]
    for agent in agents:
        (place / agent / "config.json").write_bytes(case)
    plan = api.plan(recipe(place, agents), options=Options(cache=False))
    check_shown([*plan.notes, *plan.problems, *plan.warnings])
    screen = io.StringIO()
    with redirect_stdout(screen):
        say(plan.explain().splitlines())
    assert all(line.isprintable() for line in screen.getvalue().split("\n")), screen.getvalue()
    json.loads(dumped(plan.to_dict()))
    try:
        ((_, text),) = companions_of({"config.json": place / "agent/config.json"}, "F16")
        assert isinstance(json.loads(text) if isinstance(text, str) else read_json(text), dict)
    except CheckpointError as error:
        check_refusal(error)
        assert plan.problems
    return not plan.problems
