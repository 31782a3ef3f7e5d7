"""From a plan to checkpoints: samples, counts, merges, commits.

The run as a whole:

execute            all steps in order; called by `api`
outputs            `OutputKind`, a way to write a merge, found by entry point; opens the staging directory and its
                   journal, for `execute`
checkpoint_output  the default `OutputKind`, and the pattern for the kinds of `deltas`: runs the passes, then writes
                   sidecars
stream             yields merged tensors one after another, for the loop over `Plan.tensors` in `api`
journal            `Journal`, `PassJournal`: record finished blocks and their counts, so that a run can be
                   resumed; opened by `outputs`, read and written by `reads`
fingerprint        everything that a run depends on, as text, for the journals of merges and deltas; tells `api`
                   whether a plan resumes an interrupted run

Before the passes, for `execute`:

gathered_from      refuses recorded inputs and importances of other models; `calibration` computes digests with it
warn               all warnings about weights: before the passes from samples (`inspect`, also for `analysis`), and
                   after them from counts (for `sidecars`)
sanity_checks      finds swapped, damaged and unrelated models in the samples, for `warn`
sampling           reads the samples, for `sanity_checks`

The passes:

reads              `Passes`: holds the open inputs, counts, merges, and keeps the results; created by `execute`, run by
                   kinds of output
passes             `CountPass` and `MergePass`, the values that an executor takes, and the order of their blocks
executors/         process the blocks of a pass on threads or as Ray tasks, as the user chose
worker             one thread's work on a block, for `passes`: reads all inputs, counts or merges, writes to a `Sink`
operators          caches the operators that methods compute from recorded inputs; reads these inputs for `worker`
result_codec       `BlockResult`, a worker's result for a block, and its encoding in the journal; `blank`, zeroed
                   rounding counts, for `worker`, `tally` and `reads`
tally              `PassTally`, the sums and progress of a pass for `reads`; `Refusals` of NaN, Inf and overflows
sinks              targets of `worker`: the shards of a folder, or a function that takes whole tensors
uploads            the sink of remote outputs: uploads each shard as soon as it is complete

After the passes:

sidecars           creates the records, and writes them with index, companions, card and recipe; called by kinds of
                   output
record             `Record` and `Sweep`, the contents of `ramerge.json` and `sweep.json`; reads them for `analysis`
card               the model card, README.md
columns            titles, formats and explanations of the agents' figures, for `card` and `cli`
"""
