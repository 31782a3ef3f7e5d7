"""From a plan to checkpoints: samples, counts, merges, commits.

The run as a whole:

execute            all steps in order; called by `api`
outputs            `OutputKind`, a way to write a merge, found by entry point; opens the folder that is built and its
                   journal, for `execute`
checkpoint_output  the usual `OutputKind`, and the pattern for those of `deltas`: runs the passes, then writes sidecars
stream             merged tensors one after another, for the loop over `Plan.tensors` in `api`
journal            `Journal`, `PassJournal`: which blocks are done, and what was counted in them, so that a run can be
                   resumed; opened by `outputs`, read and written by `reads`
fingerprint        dependencies of a run, as text, for the journals of merges and deltas; for `api` also whether a plan
                   resumes an interrupted run

Before the passes, for `execute`:

gathered_from      refuses recorded inputs and importances of other models; `calibration` makes their digests with it
warn               all warnings about weights: of samples before the passes (`inspect`, for `analysis`, too), of counts
                   after them (for `sidecars`)
sanity_checks      finds swapped, damaged and unrelated models in the samples, for `warn`
sampling           reads the samples, for `sanity_checks`

The passes:

reads              `Passes`: the open inputs, counting, merging, and their results; made by `execute`, run by kinds of
                   output
passes             `CountPass` and `MergePass`, the values that an executor takes, and the order of their blocks
executors/         threads or Ray tasks that process the blocks of a pass; the one that the user chose
worker             one thread's work on a block, for `passes`: reads all inputs, counts or merges, writes to a `Sink`
operators          operators of methods from recorded inputs, once for all threads; reads these inputs for `worker`
result_codec       `BlockResult`, a worker's result for a block, and its bytes in the journal; `blank`, empty counts of
                   rounding, for `worker`, `tally` and `reads`
tally              `PassTally`, the sums of a pass for `reads`, and its progress; `Refusals` of NaN, Inf and overflows
sinks              targets of `worker`: the shards of a folder, or a function that takes whole tensors
uploads            the sink of remote outputs: uploads each shard as soon as it is complete

After the passes:

sidecars           makes the records, and writes them with index, companions, card and recipe; called by kinds of output
record             `Record` and `Sweep`, as in `ramerge.json` and `sweep.json`; also read again, for `analysis`
card               the model card, README.md
columns            titles, formats and meanings of the agents' figures, for `card` and `cli`
"""
