"""Tests, and processes that they start, meet none of the developer's folders."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

from ramerge.core.foundation import store

SAID = """
from ramerge.core.foundation import store
from pathlib import Path
print(Path.home(), store.folder("counts"))
"""


def test_home_and_caches_are_the_suites_own() -> None:
    home = Path.home()
    assert home != Path(pwd.getpwuid(os.getuid()).pw_dir)
    counts = store.folder("counts")
    assert counts is not None and counts.is_relative_to(home)
    said = subprocess.run([sys.executable, "-c", SAID], capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(home), str(counts)]


def test_the_hubs_cache_is_the_suites_own() -> None:
    from huggingface_hub import constants

    for place in (constants.HF_HOME, constants.HF_HUB_CACHE, constants.HF_TOKEN_PATH):
        assert Path(place).is_relative_to(Path.home())
