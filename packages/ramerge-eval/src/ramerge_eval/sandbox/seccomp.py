"""A filter of system calls for sandboxed programs, in the form that `bwrap --seccomp` takes.

Namespaces isolate programs. The filter refuses calls that would evade limits (memory that belongs to no process, new
namespaces with their own mounts), kernel interfaces that programs of benchmarks do not need, and all but local sockets,
because addresses of the host's hypervisor (AF_VSOCK) ignore network namespaces.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Sequence

# AUDIT_ARCH_… of linux/audit.h
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# by name, its number on x86_64 and on aarch64 (asm/unistd_64.h, asm-generic/unistd.h)
_DENIALS = {
    # memory that no process is charged for
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "vmsplice": (278, 75),  # a page in a pipe can hold back the 2 MiB that it is a part of
    "io_setup": (206, 0),
    "inotify_add_watch": (254, 27),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # namespaces: no capability can be had without one, so that calls which need one need no filter
    "unshare": (272, 97),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    # wide kernel interfaces
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
}
_CLONE, _CLONE3, _MMAP, _SOCKET, _SETSOCKOPT = (56, 220), (435, 435), (9, 222), (41, 198), (54, 208)
_SHARING, _ANONYMOUS = 0x01, 0x20  # bits of MAP_SHARED and MAP_SHARED_VALIDATE, of MAP_ANONYMOUS
# SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE: `watch` counts sockets by their default
_BUFFERS = (7, 8, 32, 33)
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_X32 = 0x40000000  # the first number of another table of x86_64

# linux/bpf_common.h, linux/seccomp.h; offsets are those of struct seccomp_data
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _THIRD_ARGUMENT, _FOURTH_ARGUMENT = 0, 4, 16, 32, 40
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000

_Instruction = tuple[int, int, int, int]


def seccomp_filter(machine: str) -> bytes:
    """Return the filter of system calls for a machine, by its name in `os.uname`.

    Raises:
        KeyError: the machine's system calls are unknown.
    """
    architecture, column = _ARCHITECTURES[machine], list(_ARCHITECTURES).index(machine)
    refuse = _answer(_FAIL | errno.EPERM)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        _answer(_KILL),
        (_LOAD, 0, 0, _NUMBER),
        *_when(_AT_LEAST, _X32, [refuse]),
    ]
    for numbers in _DENIALS.values():
        program += _when(_EQUAL, numbers[column], [refuse])
    # its flags are in memory, out of a filter's reach; the C library falls back on clone
    program += _when(_EQUAL, _CLONE3[column], [_answer(_FAIL | errno.ENOSYS)])
    # its pages stay when they are unmapped or given back (MADV_DONTNEED), and then count for no process
    flags = (_LOAD, 0, 0, _FOURTH_ARGUMENT)
    sharing = _when(_ANY_BIT, _ANONYMOUS, _when(_ANY_BIT, _SHARING, [refuse]))
    program += _when(_EQUAL, _MMAP[column], [flags, *sharing, _answer(_ALLOW)])
    argument = (_LOAD, 0, 0, _FIRST_ARGUMENT)
    program += _when(_EQUAL, _CLONE[column], [argument, *_when(_ANY_BIT, _NEW_NAMESPACES, [refuse]), _answer(_ALLOW)])
    program += _when(
        _EQUAL, _SOCKET[column], [argument, *_when(_EQUAL, int(socket.AF_UNIX), [_answer(_ALLOW)]), refuse]
    )
    option = (_LOAD, 0, 0, _THIRD_ARGUMENT)
    buffers = [instruction for each in _BUFFERS for instruction in _when(_EQUAL, each, [refuse])]
    program += _when(_EQUAL, _SETSOCKOPT[column], [option, *buffers])
    program.append(_answer(_ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _answer(value: int) -> _Instruction:
    return (_RETURN, 0, 0, value)


def _when(comparison: int, value: int, then: Sequence[_Instruction]) -> list[_Instruction]:
    return [(comparison, 0, len(then), value), *then]
