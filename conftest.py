"""The environment of every test: a home folder of its own, and compiled kernels that all workers and runs share.

`make test` runs tests without the marker `full`, `make test-all` the others, too. A module of the full tier says so
itself: `pytestmark = pytest.mark.full`.
"""

import contextlib
import gc
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from tests.engine.executors.cluster import two_nodes
from tests.messages import Messages

import ramerge
from ramerge.core.engine.executors import ray
from ramerge.core.planning import cached_counts
from ramerge.core.tensors import identity

settings.register_profile(
    "ramerge",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("few", settings.get_profile("ramerge"), max_examples=20)

FULL_FIXTURES = {"cluster", "installed", "s3"}
FULL_MODULE = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.full\b", re.MULTILINE)

# The last one: tests start hundreds of processes, and each would compile anew what it imports.
_OF_THE_DEVELOPER = (
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "NLTK_", "XDG_CACHE_", "XDG_CONFIG_", "XDG_DATA_"),
    "PYTHONDONTWRITEBYTECODE",
)

if sys.version_info < (3, 11):
    # pathlib binds these when it is imported, where tests that replace them in `os` do not reach them
    for _name in ("rename", "rmdir", "unlink"):
        setattr(Path._accessor, _name, lambda *arguments, _name=_name: getattr(os, _name)(*arguments))  # noqa: SLF001

_home = pytest.StashKey[Path]()
_connection = contextlib.ExitStack()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-messages", action="store_true", help="write tests/*/messages.txt: see tests/messages.py")


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
    sys.dont_write_bytecode = False
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
    return True if _is_fast(config) and _is_full(collection_path) else None


@pytest.hookimpl(tryfirst=True)  # before they are selected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as `full` that use a fixture of that tier, or need a library; those of a cluster come first.

    Each process of xdist begins with as many consecutive tests, and others take from the end of what it has left. So
    one process has all tests of a cluster, which starts once.
    """
    for item in items:
        if FULL_FIXTURES & set(getattr(item, "fixturenames", ())) or item.get_closest_marker("needs"):
            item.add_marker(pytest.mark.full)
    items.sort(key=lambda item: not _uses_cluster(item))


def pytest_collection_finish() -> None:
    """The garbage collector leaves out what was imported: with PyTorch, compiling a kernel takes a tenth less time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Look for the libraries that a test needs."""
    for library in (name for mark in item.iter_markers("needs") for name in mark.args):
        pytest.importorskip(library)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    return _failed_in_ci((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[Any]:
    return _failed_in_ci((yield))


def _failed_in_ci(report: Any) -> Any:
    """A report; CI has every library, so what `importorskip` has skipped there has failed."""
    if os.environ.get("CI") and report.skipped and "could not import" in str(report.longrepr):
        report.outcome = "failed"
    return report


def _is_full(module: Path) -> bool:
    return module.suffix == ".py" and FULL_MODULE.search(module.read_text(encoding="utf-8")) is not None


def _is_fast(config: pytest.Config) -> bool:
    """Whether tests of the marker `full` are left out."""
    return "not full" in config.option.markexpr


def _uses_cluster(item: pytest.Item) -> bool:
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    names = {*getattr(item, "fixturenames", ()), *(value for value in values if isinstance(value, str))}
    return not names.isdisjoint(("cluster", "ray"))


@pytest.fixture
def messages(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Messages]:
    """The words of errors and warnings: `tests/messages.py`."""
    path, root = request.node.path, request.config.rootpath / "tests"
    folder = root / path.relative_to(root).parts[0]
    test = f"{path.stem}::{request.node.name}"
    folders = {
        "TMP": str(tmp_path),
        "SHARED": str(tmp_path_factory.getbasetemp()),
        "HOME": os.environ["RAMERGE_TESTS_HOME"],
        "RAMERGE": str(Path(ramerge.__file__).parent),
    }
    seen = Messages(test, folder / "messages.txt", folders, write=request.config.getoption("--write-messages"))
    failures = request.session.testsfailed
    yield seen
    if request.session.testsfailed == failures:
        seen.finish()


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
        _connection.close()


@pytest.fixture
def connected(cluster: Any) -> Any:
    """The module `ray`, connected to them. It stays so for the next test that needs it: its processes have started."""
    return _connection.enter_context(ray.connection({"address": cluster.address}))


@pytest.fixture(autouse=True)
def _connected_only_where_asked(request: pytest.FixtureRequest) -> None:
    if "connected" not in request.fixturenames:
        _connection.close()


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
