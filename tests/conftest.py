"""What every test finds: a home folder of its own, and compiled kernels that all workers and runs share."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from ramerge.checkpoint import identity
from ramerge.engine.executors import ray
from ramerge.planning import remembered
from tests.executors.cluster import two_nodes

settings.register_profile(
    "ramerge",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("ramerge")

_OF_THE_DEVELOPER = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "NLTK_", "XDG_CACHE_", "XDG_CONFIG_", "XDG_DATA_")
_home = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Give this process, and all that it starts, a new home folder: no test meets the developer's caches or settings.

    Machine code is kept between runs, in the cache of pytest: compiling it takes longer than most tests. Its keys are
    digests of all that decides it, and files appear there whole, so any number of processes may share it.
    """
    if hasattr(config, "workerinput"):  # a worker has the environment of the process that started it
        return
    home = Path(tempfile.mkdtemp(prefix="ramerge-tests-"))
    config.stash[_home] = home
    for name in [name for name in os.environ if name.startswith(_OF_THE_DEVELOPER)]:
        del os.environ[name]
    cache = home / "cache"
    cache.mkdir()
    if config.pluginmanager.hasplugin("cacheprovider"):
        (cache / "kernels").symlink_to(config.cache.mkdir("kernels"))
    else:
        (cache / "kernels").mkdir()
    os.environ |= {"HOME": str(home), "RAMERGE_CACHE": str(cache), "RAMERGE_TESTS_HOME": str(home)}


def pytest_unconfigure(config: pytest.Config) -> None:
    """The home folder goes with the run."""
    if _home in config.stash:
        shutil.rmtree(config.stash[_home], ignore_errors=True)


@pytest.fixture
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for one test, but with the machine code that all share."""
    place = tmp_path_factory.mktemp("cache")
    (place / "kernels").symlink_to(Path(os.environ["RAMERGE_CACHE"]) / "kernels")
    monkeypatch.setenv("RAMERGE_CACHE", str(place))
    return place


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Two nodes of Ray. They start in some seconds, so all tests of a process share them."""
    with two_nodes() as made:
        yield made


@pytest.fixture
def connected(cluster: Any) -> Iterator[Any]:
    """The module `ray`, connected to them."""
    with ray.connected({"address": cluster.address}) as module:
        yield module


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
