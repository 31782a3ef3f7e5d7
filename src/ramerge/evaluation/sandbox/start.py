"""What runs first in a sandbox: it takes on limits, reports to the outside, and becomes the program.

`execution` hands the text of this file to `python -c`, so it imports nothing of ramerge and as little as it can of the
standard library. Its arguments: the descriptor that holds the program, the descriptor of the socket to the outside,
the user to become or -1, the folder of packages, limits as NAME:SOFT:HARD, and behind `--` the words of a command that
runs in place of the program.
"""

import _socket
import builtins
import os
import resource
import site
import sys


def main() -> None:
    """Takes on the limits and runs the program as the main module, in a child of the sandbox's first process."""
    source, channel, user = (int(argument) for argument in sys.argv[1:4])
    end = sys.argv.index("--")
    packages, limits, command = sys.argv[4], sys.argv[5:end], sys.argv[end + 1 :]
    for limit in limits:
        set_limit(*limit.split(":"))
    be_killed_first()
    leave_to_child()
    if user >= 0:  # the real root is exempt from the limit on processes
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        give_up_capabilities()
    hide_proc()
    report(channel)
    if command:
        os.close(source)
        become(command, packages)
    site.setquit()  # programs say exit(), which -S has left out
    sys.path.append(packages)
    sys.argv[:] = ["program.py"]
    with os.fdopen(source, encoding="utf-8", errors="surrogatepass") as file:
        program = compile(file.read(), "program.py", "exec")
    namespace, first = sys.modules["__main__"].__dict__, {"__name__": "__main__", "__builtins__": builtins}
    namespace.clear()
    namespace.update(first)
    # to run a program is what this file is for; it holds no rights any more
    exec(program, namespace)  # noqa: S102 - the sandboxed program


def become(command: list[str], packages: str) -> None:
    """Runs a command in place of this process; any Python is the one that runs now."""
    os.environ.setdefault("PYTHONPATH", packages)
    if command[0].rpartition("/")[2] in ("python", "python3"):
        command = [sys.executable, *command[1:]]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}; this sandbox has Python only", file=sys.stderr, flush=True)
        os._exit(127)


def leave_to_child() -> None:
    """Returns in a child. The first process itself only waits: when it ends, the kernel kills all others."""
    child = os.fork()
    if child == 0:
        return
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    ended, status = 0, 0
    while ended != child:  # it inherits orphans too
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def set_limit(name: str, soft: str, hard: str) -> None:
    """Never above a limit that is there already."""
    kind = getattr(resource, name)
    there = resource.getrlimit(kind)[1]
    wanted = [int(soft), int(hard)]
    if there != resource.RLIM_INFINITY:
        wanted = [min(value, there) for value in wanted]
    resource.setrlimit(kind, (wanted[0], wanted[1]))


def be_killed_first() -> None:
    """Where the machine runs out of memory, the kernel kills this process and its children before others."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - pathlib imports slowly
            file.write("1000")
    except OSError:  # only Linux has it
        pass


def give_up_capabilities() -> None:
    """All of them. A change of user leaves those that bubblewrap has made inheritable."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    version_3, this_process = 0x20080522, 0
    header, none = (ctypes.c_uint32 * 2)(version_3, this_process), (ctypes.c_uint32 * 6)()
    if library.capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")


def hide_proc() -> None:
    """Keeps the program from opening files in /proc, which name the machine's folders and tell much else about it.

    What leads out of /proc, such as /dev/stdin, can be opened. Landlock before its version 2 (Linux 5.19) would also
    refuse to rename files from one folder to another, so there, and where the kernel has none, nothing is hidden.
    """
    import ctypes

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
    """Says that the program starts now, with the sandbox's /proc, its first process and its /tmp to hold."""
    outside = _socket.socket(fileno=channel)
    descriptors = [os.open("/proc", os.O_RDONLY), os.pidfd_open(1), os.open("/tmp", os.O_RDONLY)]
    message = b"".join(descriptor.to_bytes(4, sys.byteorder) for descriptor in descriptors)
    outside.sendmsg([b"!"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, message)])
    for descriptor in descriptors:
        os.close(descriptor)
    outside.close()


if __name__ == "__main__":
    main()
