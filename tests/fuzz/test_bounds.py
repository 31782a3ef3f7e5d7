"""Inputs that were made to take long or much: in a process of their own, with the bounds of `make fuzz`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ramerge.calibration.prompts import read_prompts
from ramerge.core.engine.record import read_record
from ramerge.core.formats.files import read_json
from ramerge.core.formats.open import open_checkpoint
from ramerge.core.foundation.errors import RamergeError
from ramerge.core.planning.configs import compare_configs
from ramerge.core.planning.tokens import TokenReader
from ramerge.core.recipe.document import read_document
from ramerge.core.tensors.header import read_header
from tests.checkpoints import simple, write_checkpoint
from tests.fuzz.runner import run

pytestmark = pytest.mark.full  # files of 100 MB

BIG = 99_000_000
MOST_SECONDS = 20.0  # none takes one on a quiet machine; what grows as the square of its length takes minutes


def header(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


def configuration(path: Path) -> None:
    """As a plan does with an agent's."""
    compare_configs({"norm_eps": 1}, read_json(path))


def tokenizer(path: Path) -> None:
    """As a plan does with an agent's, whose bytes are not the base's."""
    place = write_checkpoint(path.parent / "model", simple(0, shape=(1,)))
    path.replace(place / "tokenizer.json")
    found = TokenReader().tokens_of(open_checkpoint(place))
    assert len(found) < 10_000_000


def index(path: Path) -> None:
    place = write_checkpoint(path.parent / "model", simple(0, shape=(1,)), shards=2)
    path.replace(place / "model.safetensors.index.json")
    open_checkpoint(place)


def lines(path: Path) -> None:
    read_prompts(path, 256)


def entries(count: int, value: str) -> str:
    return "{" + ",".join(f'"{place:06}":{value}' for place in range(count)) + "}"


@pytest.mark.parametrize(
    ("read", "make"),
    [
        (read_header, lambda: header(b'{"a":[' + b"[]," * (BIG // 3) + b"[]]}")),
        (read_header, lambda: header(b'{"a":"' + b"x" * BIG + b'"}')),
        (read_header, lambda: header(b'{"' + b"x" * 30_000_000 + b'":{"dtype":"\xf0\x9f\x98\x80"}}')),
        (read_header, lambda: header(entries(100_000, '{"dtype":"x","shape":[],"data_offsets":[]}').encode())),
        (read_header, lambda: header(b"[" * 30_000_000)),
        (read_header, lambda: header(b'{"a":"' + b'\\"' * 10_000_000)),
        (configuration, lambda: json.dumps({"norm" * 4000: 1, "a_eps" * 3000: 2}).encode()),
        (configuration, lambda: json.dumps({".".join(["norm" * 20] * 12): 1}).encode()),
        (configuration, lambda: b'{"a":' + b"9" * 30_000_000 + b"}"),
        (configuration, lambda: entries(300_000, "1").encode()),
        (tokenizer, lambda: b'{"model":{"vocab":{"' + b"\\n" * 40_000_000 + b'":1}}}'),
        (tokenizer, lambda: b'{"model":{"vocab":{"' + b"x" * BIG),
        (tokenizer, lambda: b'{"model":{"vocab":' + entries(999_999, "1" * 9).encode() + b"}}"),
        (tokenizer, lambda: b'{"added_tokens":[' + b'{"id":' * 15_000_000),
        (tokenizer, lambda: b'{"added_tokens":[' + b'{"":"",' * 12_000_000),
        (tokenizer, lambda: b'"vocab":[' + b'["",' * 20_000_000),
        (tokenizer, lambda: b'"vocab"' + b" " * BIG),
        (tokenizer, lambda: b'"vocab" ' * (BIG // 8)),
        (index, lambda: ('{"weight_map":' + entries(300_000, '"model.safetensors"') + "}").encode()),
        (read_record, lambda: b'{"agents":' + b"[" * 900 + b"]" * 900 + b"}"),
        (read_document, lambda: "".join(f"k{place}: 1\n" for place in range(70_000)).encode()),
        (read_document, lambda: b"a: " + b"[" * 900),
        (read_document, lambda: b"x" * 20_000_000),
        (lines, lambda: b'{"text": "' + b"x" * 40_000_000),
    ],
)
def test_it_is_refused_in_a_moment(read: Callable[[Path], object], make: Callable[[], bytes], tmp_path: Path) -> None:
    (tmp_path / "warm").write_bytes(b"{}")
    (tmp_path / "bomb").write_bytes(make())

    def cases(seed: int) -> Iterator[str]:
        yield "bomb" if seed else "warm"

    def check(name: str) -> bool:
        try:
            read(tmp_path / name)
        except RamergeError as error:
            assert len(str(error)) < 100_000
        return True

    found = run(SimpleNamespace(cases=cases, check=check), iter([1]), 1, most_seconds=MOST_SECONDS)
    (tmp_path / "bomb").unlink(missing_ok=True)
    assert not found.defects


def test_hanging_or_dying_process_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from tests.fuzz import runner

    def check(case: int) -> bool:
        if case == 7:
            os._exit(1)
        if case == 8:
            raise KeyError(case)
        return case % 2 == 0

    kind = SimpleNamespace(cases=lambda seed: iter(range(4 * seed, 4 * seed + 4)), check=check)
    found = runner.run(kind, iter([0, 1, 2, 3]), 14)
    assert [one.partition(": ")[0] for one in found.defects] == ["seed 1, case 3", "seed 2, case 0"]
    assert "KeyError" in found.defects[1]
