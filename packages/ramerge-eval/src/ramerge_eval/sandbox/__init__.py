"""Runs Python programs that a model wrote, which are treated as hostile.

A program runs under bubblewrap: namespaces of its own, no network, a read-only root with little more than a Python
interpreter, an empty /tmp of limited size, no rights, a filter of system calls. The kernel limits processor time,
address space, processes and file sizes. Limits on all processes together, which the kernel cannot enforce, are watched
from outside: wall time, and memory every `_TICK` seconds, so a program may exceed its memory for that long.

The watch is a thread of this process, so C code that holds the interpreter's lock for long suspends it. If memory runs
out in the meantime, the kernel kills programs before this process (oom_score_adj), unless a program has reset that.
If the kernel has Landlock, programs cannot open files in /proc, which reveal much about the machine.

A control group would limit memory exactly, but few machines let an ordinary user make one.

provider     the sandbox `bubblewrap` of Inspect, a /tmp for each sample; called by Inspect and `tasks/coding/judging`
execution    starts, follows and kills a run of a program or a pair; checks whether programs can run on this machine
bubblewrap   the command line of bubblewrap with its mounts, for `execution`
seccomp      the filter of system calls, for `bubblewrap`
start        the program that runs first inside, passed as text by `execution`
watch        `Limits`, and a program's usage, measured from outside; for `execution`
"""
