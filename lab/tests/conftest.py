"""Results that are kept, read once: drawing replicates takes seconds."""

from typing import Any

import pytest


@pytest.fixture(scope="session")
def lab_results() -> Any:
    from lab.results import Results  # here, because it needs torch, and `make test` does without

    return Results()
