"""What `make test` leaves out is said once, and nothing is left out in silence."""

from pathlib import Path

import pytest

from tests.conftest import FULL_PATHS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("place", FULL_PATHS)
def test_what_is_left_out_exists(place: str) -> None:
    assert (ROOT / place).exists()


def test_modules_of_the_fast_tier_skip_no_library() -> None:
    left_out = {ROOT / place for place in FULL_PATHS}
    modules = [path for path in (ROOT / "tests").rglob("test_*.py") if not left_out & {path, *path.parents}]
    words = "pytest." + "importorskip("
    assert [path.name for path in modules if words in path.read_text(encoding="utf-8")] == []


@pytest.mark.needs("numpy")
def test_what_needs_a_library_is_left_out(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("full") is not None
