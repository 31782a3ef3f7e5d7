"""What every test finds: a home folder of its own, and compiled kernels that all workers and runs share.

And which tests are in which tier: `make test` runs those without the marker `full`, `make test-all` the others too.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from ramerge.engine.executors import ray
from ramerge.planning import cached_counts
from ramerge.tensors import identity
from tests.engine.executors.cluster import two_nodes

settings.register_profile(
    "ramerge",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("few", settings.get_profile("ramerge"), max_examples=20)

# What `make test` does without, in its small environment. Their modules are not even imported there.
FULL_PATHS = {
    "tests/formats/test_dcp.py": "torch",
    "tests/formats/test_deepspeed.py": "torch",
    "tests/formats/test_fsdp.py": "torch",
    "tests/formats/test_megatron.py": "torch",
    "tests/formats/test_pickled.py": "torch",
    "tests/conformance/test_executors.py": "Ray",
    "tests/selection/test_serving.py": "httpx",
    "tests/storage/test_hub.py": "a stand-in of the hub",
    "tests/storage/test_hub_outputs.py": "a stand-in of the hub",
    "tests/evaluation": "clients of models, checkers, the sandbox",
    "tests/engine/executors/test_launched.py": "Ray",
    "tests/engine/executors/test_ray.py": "Ray",
    "tests/fuzz/test_bounds.py": "files of 100 MB",
    "tests/kernels/test_quantize.py": "torch",
    "tests/lab": "torch",
    "tests/e2e/peers": "mergekit",
    "tests/analysis/report": "the page's libraries, a browser",
    "tests/selection/test_api.py": "Optuna",
    "tests/selection/test_run.py": "Optuna",
    "tests/selection/test_served.py": "Optuna, clients of models",
    "tests/storage/test_executors.py": "Ray",
    "tests/formats/test_adapters.py": "PEFT",
    "tests/docs/test_docs.py": "the pages and all that their examples use",
    "tests/e2e/test_examples.py": "torch",
    "tests/e2e/test_faults.py": "a compiler, many processes",
    "tests/calibration/test_importances.py": "torch",
    "tests/calibration/test_calibrate.py": "torch",
    "tests/calibration/test_rollouts.py": "torch",
    "tests/e2e/test_kills.py": "Ray",
    "tests/e2e/test_launchers.py": "torch, Ray",
    "tests/e2e/test_rivals.py": "an S3 server, many processes",
    "tests/e2e/test_memory.py": "checkpoints of 100 MB",
    "tests/formats/test_quantized_models.py": "torch",
    "tests/formats/test_transformers_models.py": "torch, transformers",
    "tests/soups/test_scores.py": "Inspect",
    "tests/ui/test_browser.py": "Gradio, a browser",
    "tests/ui/test_compare.py": "Gradio, Optuna",
    "tests/ui/test_controls.py": "Gradio",
    "tests/ui/test_guard.py": "Gradio",
    "tests/ui/test_jobs.py": "Gradio",
    "tests/ui/test_search.py": "Gradio",
    "tests/ui/test_look.py": "Gradio",
    "tests/ui/test_share.py": "Gradio, obstore",
    "tests/ui/test_space.py": "Gradio, a browser",
    "tests/e2e/test_notebook.py": "Jupyter, torch",
}
FULL_FIXTURES = {"cluster", "installed", "s3"}

_OF_THE_DEVELOPER = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "NLTK_", "XDG_CACHE_", "XDG_CONFIG_", "XDG_DATA_")
_home = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Give this process, and all that it starts, a new home folder: no test meets the developer's caches or settings.

    Machine code is kept between runs, in the cache of pytest: compiling it takes longer than most tests. Its keys are
    digests of all that decides it, and files appear there whole, so any number of processes may share it.
    """
    settings.load_profile("few" if _is_fast(config) else "ramerge")
    for number in (signal.SIGINT, signal.SIGHUP):  # ignored in the background of a script, and by all that is started
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGHUP else signal.default_int_handler)
    if hasattr(config, "workerinput"):  # a worker has the environment of the process that started it
        return
    home = Path(tempfile.mkdtemp(prefix="ramerge-tests-"))
    config.stash[_home] = home
    for name in [name for name in os.environ if name.startswith(_OF_THE_DEVELOPER)]:
        del os.environ[name]
    cache = home / "cache" / "ramerge"
    cache.mkdir(parents=True)
    if config.pluginmanager.hasplugin("cacheprovider"):
        (cache / "kernels").symlink_to(config.cache.mkdir("kernels"))
    else:
        (cache / "kernels").mkdir()
    os.environ |= {"HOME": str(home), "RAMERGE_CACHE": str(cache.parent), "RAMERGE_TESTS_HOME": str(home)}


def pytest_unconfigure(config: pytest.Config) -> None:
    """The home folder goes with the run."""
    if _home in config.stash:
        shutil.rmtree(config.stash[_home], ignore_errors=True)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where tests of the marker `full` are left out, their modules need not be importable."""
    return True if _is_fast(config) and _name(collection_path, config) in FULL_PATHS else None


@pytest.hookimpl(tryfirst=True)  # before they are selected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what belongs to the full tier: by the tables above, or because it needs a library."""
    for item in items:
        places = {_name(place, config) for place in (item.path, *item.path.parents)}
        fixtures = set(getattr(item, "fixturenames", ()))
        if places & FULL_PATHS.keys() or fixtures & FULL_FIXTURES or item.get_closest_marker("needs"):
            item.add_marker(pytest.mark.full)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a library that is not there."""
    for library in (name for mark in item.iter_markers("needs") for name in mark.args):
        pytest.importorskip(library)


def _is_fast(config: pytest.Config) -> bool:
    """Whether tests of the marker `full` are left out."""
    return "not full" in config.option.markexpr


def _name(path: Path, config: pytest.Config) -> str:
    """As in the table."""
    return path.relative_to(config.rootpath).as_posix() if path.is_relative_to(config.rootpath) else ""


@pytest.fixture
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for one test, but with the machine code that all share."""
    place = tmp_path_factory.mktemp("cache") / "ramerge"
    place.mkdir()
    (place / "kernels").symlink_to(Path(os.environ["RAMERGE_CACHE"]) / "ramerge" / "kernels")
    monkeypatch.setenv("RAMERGE_CACHE", str(place.parent))
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
    monkeypatch.setattr(cached_counts, "SETTLED_SECONDS", 1e9)


@pytest.fixture(autouse=True)
def _nothing_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests merge what they have just written."""
    monkeypatch.setattr(identity, "TICK_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def _numbers_may_overflow():
    """Test data goes to the edges of every format on purpose; what the code under test does there is asserted."""
    with np.errstate(all="ignore"):
        yield
