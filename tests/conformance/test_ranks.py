"""Every method on several ranks: the bytes of threads."""

from pathlib import Path

import pytest

from ramerge.engine.ranks import Rank
from ramerge.methods.table import METHODS
from tests.conformance.test_merge import plain
from tests.kills import merge, weights
from tests.test_ranks import SECONDS, side_by_side


@pytest.mark.parametrize("method", METHODS)
def test_ranks_write_the_bytes_of_threads(method: str, tmp_path: Path) -> None:
    source, _, _, _ = plain(tmp_path, method)
    merge(source, tmp_path / "threads", block=512)
    found = side_by_side(
        [lambda n=n: merge(source, tmp_path / "ranks", block=512, rank=Rank(n, 3, SECONDS)) for n in range(3)]
    )
    assert found == [None] * 3
    assert weights(tmp_path / "ranks") == weights(tmp_path / "threads")
