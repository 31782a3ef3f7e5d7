"""From a plan to checkpoints: count, reduce, merge, commit.

execute                  all steps in order
passes                   counting, observing, merging, as values that an executor takes
worker, tally            the work on one block; sums over blocks
result_codec             what was found in a block, as bytes
sinks, uploads, stream   where merged bytes go: files, remote shards, memory
kinds, checkpoint_output kinds of output, by entry point; the usual one
sidecars                 files alongside the weights
open_output              the folder that is built, with its journal
journal                  what was done, so that a run can be resumed
fingerprint, dependencies    what a run depends on
record, card             what a merge did, for programs and for people
sanity_checks, warn      warnings about weights
chosen                   the executor that the user chose
executors/               process the blocks of a pass
"""
