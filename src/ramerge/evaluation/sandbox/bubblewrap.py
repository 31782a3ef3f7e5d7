"""What a program sees in a sandbox of bubblewrap: a Python interpreter, shared libraries, numpy, and an empty /tmp.

Nothing else of the machine is mounted: no home, no working directory, no installed packages (some hold a benchmark's
answers). numpy is, because programs of coding benchmarks import it, ramerge brings it, and it costs two mounts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ramerge.evaluation.sandbox.seccomp import seccomp_filter
from ramerge.foundation.errors import EvaluationError

INSTEAD = "--sandbox docker runs programs in a container, --sandbox local without a sandbox, with all your rights"
MOST_USERS = 128
"""Users that a process has for its programs, as many as may run at once."""

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
_FIRST_USER = 0x60000000


@dataclass(frozen=True)
class Bubblewrap:
    """A way to start sandboxes.

    Attributes:
        executable: of bubblewrap.
        version: of bubblewrap.
        as_root: start as root without a user namespace and become a user inside that no one else is. Otherwise the
            sandbox has a user namespace, in which a limit on processes counts only its own.
        system_calls: the filter.
        mounts: arguments for what is visible.
    """

    executable: str
    version: str
    as_root: bool
    system_calls: bytes
    mounts: tuple[str, ...]

    @property
    def uncounted(self) -> int:
        """Processes of the sandbox itself that count as the program's."""
        return 0 if self.as_root else 1

    def user(self, slot: int) -> int:
        """The user that a program becomes, or -1. Limits go by user, so programs at the same time are different ones.

        Args:
            slot: below `MOST_USERS`, and no other program of this process has it now.
        """
        return _FIRST_USER + (os.getpid() % 2**22) * MOST_USERS + slot if self.as_root else -1

    def command(
        self,
        disk_bytes: int,
        filter_descriptor: int,
        environment: Mapping[str, str],
        folder: str,
        files: Mapping[str, int],
    ) -> list[str]:
        """Everything in front of what is to run inside.

        Args:
            disk_bytes: of /tmp.
            filter_descriptor: holds the filter of system calls.
            environment: of the program, besides `ENVIRONMENT`.
            folder: where it starts, of those in /tmp.
            files: descriptors that hold the files of /tmp, by their paths below it.
        """
        user = [] if self.as_root else ["--unshare-user", "--uid", "65534", "--gid", "65534"]
        capabilities = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if self.as_root else []
        variables = [
            part for name, value in {**ENVIRONMENT, **environment}.items() for part in ("--setenv", name, value)
        ]
        return [
            self.executable,
            *user,
            *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
            *("--hostname", "sandbox", "--cap-drop", "ALL", *capabilities),
            *("--as-pid-1", "--die-with-parent", "--new-session"),
            *("--clearenv", *variables),
            *self.mounts,
            *("--size", str(disk_bytes), "--perms", "1777", "--tmpfs", "/tmp"),
            *_written(files, folder),
            *("--chdir", folder),
            *("--remount-ro", "/", "--seccomp", str(filter_descriptor), "--"),
        ]


def _written(files: Mapping[str, int], folder: str) -> list[str]:
    """Arguments that make files, which anyone inside may change, and their folders."""
    folders = [*(Path("/tmp", path).parent for path in files), Path(folder)]
    made = dict.fromkeys(each for one in folders for each in (*reversed(one.parents), one) if len(each.parts) > 2)
    return [
        *(part for each in made for part in ("--perms", "0777", "--dir", str(each))),
        *(
            part
            for path, descriptor in files.items()
            for part in ("--perms", "0777", "--file", str(descriptor), str(Path("/tmp", path)))
        ),
    ]


def interpreter() -> Path:
    """The Python that runs now, not a virtual environment's link to it."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def package_folder() -> Path | None:
    """Where numpy is installed."""
    spec = find_spec("numpy")
    return Path(spec.origin).parent.parent if spec and spec.origin else None


def ways() -> list[Bubblewrap]:
    """The ways that may work here, best first.

    Raises:
        EvaluationError: none can; says why.
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
    version = _version(executable)
    mounts = tuple(_mounts())
    return [
        Bubblewrap(executable, version, as_root, system_calls, mounts)
        for as_root in ([True, False] if os.geteuid() == 0 else [False])
    ]


def _version(executable: str) -> str:
    said = subprocess.run([executable, "--version"], capture_output=True, text=True, check=False)
    numbers = re.search(r"(\d+)\.(\d+)[.\d]*", said.stdout)
    if numbers is None:
        raise EvaluationError(f"{executable} --version says {(said.stdout + said.stderr).strip()[:200]!r}; {INSTEAD}")
    if (int(numbers[1]), int(numbers[2])) < _OLDEST:
        raise EvaluationError(f"bubblewrap {numbers[0]} is too old, 0.7.0 or later is needed; {INSTEAD}")
    return numbers[0]


def _mounts() -> list[str]:
    """System libraries, the interpreter, its standard library, numpy, /proc and a few devices."""
    links = [path for path in map(Path, _LIBRARIES) if path.is_symlink()]
    needed = [path for path in _needed() if path.exists()]
    covered = {*links, *needed}
    shown = {path: path for path in needed if path not in links and covered.isdisjoint(path.parents)}
    hidden = [
        path for folder in shown for pattern in ("*-packages", "python*/*-packages") for path in folder.glob(pattern)
    ]
    packages = package_folder()
    if packages:
        names = [name for name in ("numpy", "numpy.libs") if (packages / name).is_dir()]
        shown |= {packages / name: Path(PACKAGES, name) for name in names}
    # bubblewrap makes missing parents that only their owner may enter
    parents = dict.fromkeys(path for target in shown.values() for path in reversed(target.parents[:-1]))
    return [
        *(part for path in parents for part in ("--perms", "0755", "--dir", str(path))),
        *(part for link in links for part in ("--symlink", str(link.readlink()), str(link))),
        *(part for source, target in shown.items() for part in ("--ro-bind", str(source), str(target))),
        *(part for path in hidden for part in ("--tmpfs", str(path), "--remount-ro", str(path))),
        *("--proc", "/proc", "--perms", "0755", "--dir", "/dev"),
        *_devices(),
    ]


def _needed() -> list[Path]:
    """Where an interpreter's files may be."""
    # Debian and its kin keep shared libraries in a folder named for the architecture, among much else
    architecture = sysconfig.get_config_var("MULTIARCH") or ""
    libraries = [Path(folder, architecture) for folder in _LIBRARIES]
    libraries = [narrow if narrow.is_dir() else narrow.parent for narrow in libraries] if architecture else libraries
    prefix = Path(sys.base_prefix).resolve()
    own = [] if prefix == Path("/usr") else [prefix / "lib", prefix / "lib64"]
    standard = Path(os.__file__).resolve().parent
    return list(dict.fromkeys([*libraries, *map(Path, _MORE), *own, standard, interpreter()]))


def _devices() -> list[str]:
    arguments = [part for name in _DEVICES for part in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")]
    links = {"fd": "/proc/self/fd", "shm": "/tmp"} | {
        name: f"/proc/self/fd/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))
    }
    for name, target in links.items():
        arguments += ["--symlink", target, f"/dev/{name}"]
    return arguments
