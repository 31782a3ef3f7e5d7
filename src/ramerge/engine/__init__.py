"""From a plan to checkpoints: count, reduce, merge, commit.

execute                  all steps in order
worker, tally            the work on one block; sums over blocks
sinks, sending, beside   outputs of merged bytes, here and elsewhere; files beside the weights
patches                  merged bytes into a delta
site, planned            where work is done, beside other ranks and after earlier runs; what a plan builds there
journal, facts, ranks    what was done, what it depends on, and who else does it
record, card             what a merge did, for programs and for people
suspect, warn            warnings about weights
chosen, options          the executor that the user chose; the options for that
executors/               run a function over blocks
"""
