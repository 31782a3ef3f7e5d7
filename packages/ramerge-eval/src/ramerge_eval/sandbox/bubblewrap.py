"""The command line of bubblewrap: a view of a Python interpreter, shared libraries, numpy, and an empty /tmp.

Nothing else of the machine is mounted: no home, no working directory, no installed packages (some hold a benchmark's
answers). numpy is mounted, because programs of coding benchmarks import it, ramerge requires it, and it costs two
mounts.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ramerge import EvaluationError
from ramerge_eval.sandbox.seccomp import seccomp_filter

INSTEAD = "--sandbox docker runs programs in a container, --sandbox local without a sandbox, with all your rights"
PACKAGES = "/packages"
ENVIRONMENT = {
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the same program prints the same twice
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_OLDEST = (0, 7)  # --size came with 0.7.0
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_MORE = ("/etc/ld.so.cache", "/etc/alternatives", "/nix/store")
_DEVICES = ("null", "random", "urandom")  # not zero: mapped, it is memory that no process is charged for
_LINKS = {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
_FIRST_USER, _USERS = 0x60000000, 1 << 29


@dataclass(frozen=True)
class Bubblewrap:
    """A way to start sandboxes with bubblewrap.

    Attributes:
        executable: the path of bubblewrap.
        version: the version of bubblewrap.
        as_root: start as root without a user namespace, and switch to a unique user inside. Otherwise, the sandbox has
            a user namespace, in which a limit on processes counts only its own processes.
        system_calls: the filter of system calls.
    """

    executable: str
    version: str
    as_root: bool
    system_calls: bytes

    @property
    def uncounted(self) -> int:
        """The number of the sandbox's own processes that count as the program's."""
        return 0 if self.as_root else 1

    def user(self) -> int:
        """Return a user id for one program, or -1. Limits are per user, so concurrent programs need different users."""
        return _FIRST_USER + secrets.randbelow(_USERS) if self.as_root else -1

    def command(self, disk_bytes: int, filter_descriptor: int) -> list[str]:
        """Return the command line before the program's own. `disk_bytes`: the size of /tmp."""
        new_user = [] if self.as_root else ["--unshare-user", "--uid", "65534", "--gid", "65534"]
        capabilities = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if self.as_root else []
        return [
            self.executable,
            *new_user,
            *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
            *("--hostname", "sandbox", "--cap-drop", "ALL", *capabilities),
            *("--die-with-parent", "--new-session"),
            *_mounts(),
            *("--size", str(disk_bytes), "--perms", "1777", "--tmpfs", "/tmp", "--chdir", "/tmp"),
            *("--remount-ro", "/", "--seccomp", str(filter_descriptor), "--"),
        ]


def interpreter() -> Path:
    """Return the running Python, which sandboxes mount, not a virtual environment's link to it."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def ways() -> list[Bubblewrap]:
    """Return the ways to start sandboxes that may work on this machine, best first.

    Raises:
        EvaluationError: no way can work, with the reason.
    """
    if sys.platform != "linux":
        raise EvaluationError(f"programs run in a sandbox only on Linux, and this is {sys.platform}; {INSTEAD}")
    executable = shutil.which("bwrap")
    if executable is None:
        raise EvaluationError(
            f"bubblewrap, the sandbox for programs, is not installed: apt install bubblewrap (or dnf, pacman); "
            f"{INSTEAD}"
        )
    machine = os.uname().machine
    try:
        system_calls = seccomp_filter(machine)
    except KeyError:
        raise EvaluationError(f"there is no filter of system calls for {machine}; {INSTEAD}") from None
    answer = subprocess.run([executable, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"(\d+)\.(\d+)[.\d]*", answer.stdout)
    if version is None:
        raise EvaluationError(
            f"{executable} --version says {(answer.stdout + answer.stderr).strip()[:200]!r}; {INSTEAD}"
        )
    if (int(version[1]), int(version[2])) < _OLDEST:
        raise EvaluationError(f"bubblewrap {version[0]} is too old, 0.7.0 or later is needed; {INSTEAD}")
    as_root = [True, False] if os.geteuid() == 0 else [False]
    return [Bubblewrap(executable, version[0], each, system_calls) for each in as_root]


@cache
def _mounts() -> tuple[str, ...]:
    """Return bubblewrap's arguments that mount system libraries, the interpreter, its libraries, numpy, /proc and
    devices.
    """
    # Debian and its kin keep shared libraries in a folder named for the architecture, among much else
    architecture = sysconfig.get_config_var("MULTIARCH") or ""
    libraries = [Path(folder, architecture if Path(folder, architecture).is_dir() else "") for folder in _LIBRARIES]
    prefix = Path(sys.base_prefix).resolve()
    own = [] if prefix == Path("/usr") else [prefix / "lib", prefix / "lib64"]
    paths = [*libraries, *map(Path, _MORE), *own, Path(os.__file__).resolve().parent, interpreter()]
    links = [path for path in map(Path, _LIBRARIES) if path.is_symlink()]
    all_paths = {*links, *paths}
    mounts = {
        path: path for path in paths if path.exists() and path not in links and all_paths.isdisjoint(path.parents)
    }
    masks = [
        path for folder in mounts for pattern in ("*-packages", "python*/*-packages") for path in folder.glob(pattern)
    ]
    numpy = find_spec("numpy")
    if numpy and numpy.origin:
        packages = Path(numpy.origin).parent.parent
        names = [name for name in ("numpy", "numpy.libs") if (packages / name).is_dir()]
        mounts |= {packages / name: Path(PACKAGES, name) for name in names}
    # bubblewrap makes missing parents that only their owner may enter
    parents = dict.fromkeys(path for target in mounts.values() for path in reversed(target.parents[:-1]))
    return (
        *(part for path in parents for part in ("--perms", "0755", "--dir", str(path))),
        *(part for link in links for part in ("--symlink", str(link.readlink()), str(link))),
        *(part for source, target in mounts.items() for part in ("--ro-bind", str(source), str(target))),
        *(part for path in masks for part in ("--tmpfs", str(path), "--remount-ro", str(path))),
        *("--proc", "/proc", "--perms", "0755", "--dir", "/dev", "--symlink", "/tmp", "/dev/shm"),
        *(part for name in _DEVICES for part in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")),
        *(part for name, target in _LINKS.items() for part in ("--symlink", f"/proc/self/{target}", f"/dev/{name}")),
    )
