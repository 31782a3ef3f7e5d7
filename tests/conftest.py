import numpy as np
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ramerge",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("ramerge")


@pytest.fixture(autouse=True)
def _numbers_may_overflow():
    """Test data goes to the edges of every format on purpose; what the code under test does there is asserted."""
    with np.errstate(all="ignore"):
        yield
