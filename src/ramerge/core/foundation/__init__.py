"""Code that every other package uses, independent of merging.

Errors and texts:

errors      all errors and warnings that ramerge raises on purpose; describes errors of the operating system
text        makes untrusted text safe to show and to write; lists of names, and suggestions for mistyped names
jsontext    reads JSON from untrusted files within limits, and writes JSON
styles      CSS of all pages: reports, tables of scores, `ramerge ui`
typedjson   reads a JSON file into a dataclass: for records and results

Files:

files       writes files completely or not at all; locks, open files; checks a path before work begins; messages about
            files that do not exist
store       the user's cache folder: machine code, counts, calibrations, unpacked deltas; removes old files
systems     system calls that only some systems have: positioned reads, locks, syncing, memory; for all code that opens
            files
A process:
process     handlers of signals, the message of a stopped process, standard streams: for `cli/main`, before all imports
signals     delays signals: `Guard` and `held` while outputs are completed; `raise_dropped` for long loops
threads     runs tasks concurrently, with results in order: for `engine/sampling` and features; limits BLAS to one
            thread: for `engine/passes`
progress    `Progress`, the events of long work, and their listeners
The machine:
settings    checks the options of a run: their types, `--threads` and `--max-memory`; sizes such as `5GB`
machine     processors and memory of this process; refuses limits below which libraries fail, for `cli/main`
devices     chooses a torch device by name: for `planning/resources` and calibration
dtypes      names of element types, and bytes of an element
extras      optional packages, and how to install them; data frames, for records and analyses
version     the version of this package
"""
