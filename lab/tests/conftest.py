"""What is kept is read once: drawing replicates takes seconds."""

import pytest

from lab.results import Results


@pytest.fixture(scope="session")
def kept() -> Results:
    return Results()
