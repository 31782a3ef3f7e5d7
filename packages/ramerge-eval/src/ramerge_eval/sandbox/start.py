"""The program that runs first in a sandbox: sets limits, reports to the outside, and becomes the requested program.

`execution` hands the text of this file to `python -c`, so it imports nothing of ramerge, and as little as possible of
the standard library. Its arguments are two descriptors: one of the job, a dictionary in Python's own serialization, and
one of the socket to the outside.
"""

# pathlib imports slowly
# ruff: noqa: PTH101, PTH103, PTH120, PTH123

import _socket
import builtins
import ctypes
import marshal
import os
import resource
import site
import sys


def main() -> None:
    """Set the limits of the sandbox, and become the program as the main module, or a command."""
    source, channel = map(int, sys.argv[1:])
    with os.fdopen(source, "rb") as file:
        job = marshal.load(file)
    for name, value in job["limits"].items():
        kind = getattr(resource, name)
        there = resource.getrlimit(kind)[1]  # never above a limit that is there already
        resource.setrlimit(kind, (value if there == resource.RLIM_INFINITY else min(value, there),) * 2)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, this process and its children go before others
    if job["user"] >= 0:  # the real root is exempt from the limit on processes
        os.setgroups([])
        os.setresgid(*[job["user"]] * 3)
        os.setresuid(*[job["user"]] * 3)
    hide_proc()
    for path, content in job["files"].items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
        os.chmod(path, 0o777)
    report(channel)
    if job["command"]:
        become(job["command"], {"PYTHONPATH": job["packages"], **job["environment"]}, job["folder"])
    site.setquit()  # programs say exit(), which -S has left out
    sys.path.append(job["packages"])
    sys.argv[:] = ["program.py"]
    program = compile(job["program"], "program.py", "exec")
    namespace, first = sys.modules["__main__"].__dict__, {"__name__": "__main__", "__builtins__": builtins}
    namespace.clear()
    namespace.update(first)
    # to run a program is what this file is for; it holds no rights any more
    exec(program, namespace)  # noqa: S102 - the sandboxed program


def become(command: list[str], environment: dict[str, str], folder: str) -> None:
    """Run a command in the sandbox in place of this process; `python` in any form means the running interpreter."""
    os.environ.update(environment)
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    if command[0].rpartition("/")[2] in ("python", "python3"):
        command = [sys.executable, *command[1:]]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}; this sandbox has Python only", file=sys.stderr, flush=True)
        os._exit(127)


def hide_proc() -> None:
    """Keep the program from opening files in /proc, which reveal the machine's folders and much else about it.

    Links out of /proc, such as /dev/stdin, can be opened. Landlock before version 2 (Linux 5.19) would also refuse to
    rename files from one folder to another, so there, and without Landlock, nothing is hidden.
    """
    create, add, restrict = 444, 445, 446
    write_file, read_file, refer = 1 << 1, 1 << 2, 1 << 13
    ask_version, beneath_a_folder = 1, 1
    system_call = ctypes.CDLL(None).syscall
    if system_call(create, None, 0, ask_version) < 2:
        return
    rights = ctypes.c_uint64(write_file | read_file | refer)
    rules = system_call(create, ctypes.byref(rights), ctypes.sizeof(rights), 0)
    for entry in os.scandir("/"):
        if entry.name != "proc":
            folder = os.open(entry.path, os.O_PATH)
            rule = bytes(rights) + folder.to_bytes(4, sys.byteorder)
            if system_call(add, rules, beneath_a_folder, rule, 0):
                raise OSError("landlock_add_rule")
            os.close(folder)
    if system_call(restrict, rules, 0):
        raise OSError("landlock_restrict_self")
    os.close(rules)


def report(channel: int) -> None:
    """Report that the program starts now; send descriptors of the sandbox's /proc, first process and /tmp."""
    outside = _socket.socket(fileno=channel)
    descriptors = [os.open("/proc", os.O_RDONLY), os.pidfd_open(1), os.open("/tmp", os.O_RDONLY)]
    message = b"".join(descriptor.to_bytes(4, sys.byteorder) for descriptor in descriptors)
    outside.sendmsg([b"!"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, message)])
    for descriptor in descriptors:
        os.close(descriptor)
    outside.close()


if __name__ == "__main__":
    main()
