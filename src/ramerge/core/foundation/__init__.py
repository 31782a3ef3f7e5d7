"""Code that every other package uses. It knows nothing of merging.

Errors and texts:

errors      all errors and warnings that ramerge raises on purpose; reasons of the operating system's errors
text        untrusted text made safe to show and to write; lists of names, and what a mistyped name may mean
jsontext    JSON of untrusted files within limits, and JSON that ramerge writes
styles      CSS of all pages: reports, tables of scores, `ramerge ui`
typedjson   values of a JSON file as a dataclass: for records and results

Files:

files       files that appear complete or not at all, locks, open files; checks of a path before work begins, and
            messages about files that do not exist
store       the user's cache folder: machine code, counts, calibrations, unpacked deltas; old files are removed
systems     calls that only some systems have: positioned reads, locks, syncing, memory; for whoever opens files

A process:

process     handlers of signals, the message of a stopped process, standard streams: for `cli/main`, before all imports
signals     delayed signals: `Guard` and `held` for outputs, which must be whole; `raise_dropped` for long loops
threads     tasks side by side, with results in order: for `engine/sampling` and features; BLAS held to one thread:
            for `engine/passes`
progress    `Progress`, the events of long work, and their listeners

The machine:

settings    options of a run, checked: their types, `--threads` and `--max-memory`; sizes such as `5GB`
machine     processors and memory of this process; refuses limits below which libraries fail, for `cli/main`
devices     the device of torch that a text names: for `planning/resources` and calibration
dtypes      names of element types, and bytes of an element
extras      packages that not every user installs, and how to install them; data frames, for records and analyses
version     the version of this package
"""
