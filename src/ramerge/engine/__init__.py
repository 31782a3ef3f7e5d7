"""From a plan to checkpoints: count, reduce, merge, commit.

execute                  all steps in order
worker, tally            the work on one block; sums over blocks
sinks, sending, beside   outputs of merged bytes, here and elsewhere; files beside the weights
record, card             what a merge did, for programs and for people
suspect, warn            warnings about weights
chosen                   the executor that the user chose
executors/               run a function over blocks
"""
