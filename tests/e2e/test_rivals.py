"""A short cut of `make rivals`: pairs of jobs of which the first is stopped at a moment of choice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ramerge.core.storage.upload import CLAIM
from tests.e2e.rivals import KINDS, MODES, Rivals, Trial, trials
from tests.storage import seaweed
from tests.tiers import some

pytestmark = pytest.mark.full  # an S3 server, many processes

_AT_ONCE, _BEFORE, _ = MODES
# The first kind, the second one, what both replace, where the first is stopped, and who completes the output.
STOPPED = [
    ("merge", "apply", "", CLAIM, "the second"),  # both have the same small files, and the second has no ramerge.json
    ("merge", "merge --as-delta", "", CLAIM, "the second"),
    ("merge", "sweep", "", CLAIM, "the second"),  # whose indexes are in other folders
    ("apply", "delta", "", CLAIM, "the second"),
    ("merge", "delta", "merge", CLAIM, "the second"),
    ("merge", "convert", "", "config.json", "the first"),  # it commits, so the second one does not begin
    ("delta", "soup", "sweep", "delta.safetensors.index.json", "the first"),
]


@pytest.fixture(scope="module")
def rivals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rivals]:
    folder = tmp_path_factory.mktemp("rivals")
    (folder / "server").mkdir()
    with seaweed.running(folder / "server") as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield Rivals(server, folder)


@pytest.mark.parametrize(("first", "second", "old", "moment", "winner"), some(STOPPED, full=(STOPPED[0], STOPPED[-1])))
def test_one_of_two_rivals_completes(
    first: str, second: str, old: str, moment: str, winner: str, rivals: Rivals
) -> None:
    assert rivals.run(Trial((first, second), _BEFORE, old, moment)) == (f"stopped: {winner}", [])


def test_two_at_once(rivals: Rivals) -> None:
    _, problems = rivals.run(Trial(("merge", "merge --as-delta"), _AT_ONCE, "", 0))
    assert problems == []


def test_trials_are_of_all_pairs_in_all_modes() -> None:
    drawn = list(trials(3 * len(KINDS) ** 2, 0))
    assert len({(trial.kinds, trial.mode) for trial in drawn}) == len(drawn)
