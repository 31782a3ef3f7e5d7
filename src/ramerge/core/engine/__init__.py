"""From a plan to checkpoints: count, reduce, merge, commit.

execute                  all steps in order
reads                    what is read of the inputs, pass by pass, and what it finds
gathered_from            refuses inputs that were recorded from other models
passes                   counting and merging, as values that an executor takes
worker, tally            the work on one block; sums over blocks
team                     a worker of several threads, whose matrices a device solves for together
operators                what methods make of recorded inputs, once for all threads
result_codec             what was found in a block, as bytes
sinks, uploads, stream   where merged bytes go: files, remote shards, memory
outputs                  kinds of output, by entry point; the folder that is built, with its journal
checkpoint_output        the usual kind
sidecars                 files alongside the weights
journal                  what was done, so that a run can be resumed
fingerprint              what a run depends on
record, card             what a merge did: for programs, and as a page
columns                  the table of agents, as text
sampling                 samples of the weights of all models
sanity_checks, warn      warnings about weights
executors/               process the blocks of a pass; the one that the user chose
"""
