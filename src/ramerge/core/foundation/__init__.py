"""Code that every other package uses. It knows nothing of merging.

errors                        all errors that ramerge raises on purpose
text                          untrusted text, made safe to show
jsontext, typedjson           JSON of untrusted files within limits: config.json, indices; as a value of a class
files, signals, store         files that appear complete or not at all, delayed signals, the cache between runs
progress                      events of long work
extras                        packages that not every user installs
pool                          blocks side by side in threads, with their results in order
systems                       calls that only some systems have
devices                       where torch computes
machine, limits               processors and memory, and below which libraries fail; what the user allows of them
blas                          BLAS held to one thread
dtypes                        names of element types
process                       signals that end the process, and standard streams, before all other imports
version                       the version of this package
"""
