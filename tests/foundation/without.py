"""`ramerge` in a Python from which names and modules are taken: `python -m tests.foundation.without NAMES COMMAND...`.

NAMES are separated by commas: `os.preadv` is a name, `fcntl` a module.
"""

import importlib
import os
import sys
from contextlib import suppress


def take(names: list[str]) -> None:
    for name in names:
        module, _, attribute = name.partition(".")
        if attribute:
            with suppress(AttributeError):  # it may be missing for real
                delattr(importlib.import_module(module), attribute)
        else:
            sys.modules[module] = None  # type: ignore[assignment]


if __name__ == "__main__":
    take(sys.argv[1].split(","))
    if not hasattr(os, "O_NONBLOCK"):  # where it is missing, no function takes the descriptor of a folder; shutil looks
        os.supports_dir_fd.clear()
    from ramerge.cli.main import main

    sys.argv = ["ramerge", *sys.argv[2:]]
    main()
