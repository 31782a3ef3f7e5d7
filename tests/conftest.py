import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from ramerge.checkpoint import identity
from ramerge.planning import remembered

settings.register_profile(
    "ramerge",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("ramerge")


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not meet counts that others have left."""
    monkeypatch.setattr(remembered, "SETTLED_SECONDS", 1e9)


@pytest.fixture(autouse=True)
def _nothing_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests merge what they have just written."""
    monkeypatch.setattr(identity, "TICK_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def _numbers_may_overflow():
    """Test data goes to the edges of every format on purpose; what the code under test does there is asserted."""
    with np.errstate(all="ignore"):
        yield
