"""From a plan to checkpoints: count, reduce, merge, commit.

execute                  all steps in order
passes                   counting, observing, merging, as values that an executor takes
worker, results, tally   the work on one block; what it finds; sums over blocks
sinks, uploads, sidecars outputs of merged bytes, local and remote; files alongside the weights
patches                  merged bytes into a delta
open_output, planned     the folder that is built, with its journal; what a plan builds there
journal, fingerprint     what was done, and what it depends on
record, card             what a merge did, for programs and for people
suspect, warn            warnings about weights
chosen, options          the executor that the user chose; the options for that
executors/               process the blocks of a pass
"""
