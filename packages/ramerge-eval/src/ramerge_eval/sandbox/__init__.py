"""Runs Python programs that a model wrote, which are hostile until shown otherwise.

A program runs under bubblewrap: namespaces of its own, no network, a read-only root with little more than a Python
interpreter, an empty /tmp of limited size, no rights, a filter of system calls. The kernel limits processor time,
address space, processes and file sizes. What the kernel limits for single processes only is watched from here for all
of them together: time on the clock, and memory every `_TICK` seconds, so a program may exceed its memory for that long.

The watch is a thread of this process: C code here that keeps the interpreter's lock for long suspends it. Where memory
runs out in the meantime, the kernel kills programs before the run (oom_score_adj), unless one has taken that back.
Programs cannot open files in /proc, which tell much about the machine, where the kernel has Landlock to forbid it.

A control group would hold memory exactly, but few machines let an ordinary user make one.

provider     the sandbox `bubblewrap` of Inspect, a /tmp for each sample; called by Inspect and `tasks/coding/judging`
execution    one run of a program or of a pair: started, followed, killed; whether programs can run here
bubblewrap   the command line of bubblewrap with its mounts, for `execution`
seccomp      the filter of system calls, for `bubblewrap`
start        the program that runs first inside, as text that `execution` hands over
watch        `Limits`, and what a program uses of them, seen from outside; for `execution`
"""
