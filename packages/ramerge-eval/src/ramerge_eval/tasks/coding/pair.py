"""Runs two programs, each of which reads what the other prints; both end when the first ends.

`judging` hands the text of this file to a sandbox, so it imports nothing of ramerge. Its arguments are the
programs' files, which are removed before either starts. If it runs as root, the second program becomes a user that
cannot touch the first.
"""

import os
import subprocess
import sys
from typing import Any

_NOBODY = 65534
_NO_START = 125


def main() -> None:
    """Run both programs, and kill the second when the first ends."""
    asking, answering = (take(path) for path in sys.argv[1:3])
    questions, answers = os.pipe(), os.pipe()
    first = start(asking, stdin=answers[0], stdout=questions[1])
    other = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    try:
        second = start(answering, stdin=questions[0], stdout=answers[1], start_new_session=True, **other)
    except PermissionError:
        first.kill()
        os._exit(_NO_START)
    for end in (*questions, *answers):
        os.close(end)
    code = first.wait()
    second.kill()
    os._exit(code if code >= 0 else 128 - code)


def take(path: str) -> int:
    """Load a program into memory, and remove its file."""
    descriptor = os.memfd_create("program")
    with open(path, "rb") as file:  # noqa: PTH123 - as little as possible is imported
        os.write(descriptor, file.read())
    os.unlink(path)  # noqa: PTH108
    return descriptor


def start(program: int, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that runs a program."""
    return subprocess.Popen([sys.executable, f"/proc/self/fd/{program}"], pass_fds=[program], **options)


main()
