"""Deltas: an agent's changes to its base. Commands, a format and kinds of output.

commands         `ramerge delta` and `apply`
run              `delta` and `apply`, which users call: they open models, divide memory, and write record and card
make             a delta of base and agent: pairs tensors, and compares them in a pass; called by `run`
rebuild          rebuilds the agent's files from a delta; called by `run`
record           `DeltaRecord`, which `run` returns, and README.md of a delta; the card of a merge comes from the engine

kinds            `AsDelta` and `AsAdapter`, which `merge` finds by entry point as kinds of output
delta_output     writes a merge as a delta: a sink compares merged blocks with the base's; then the files; for `kinds`
adapter_plan     plans a merge as an adapter: tensors that get factors, checks, notes and memory; for `kinds`
adapter_output   writes a merge as a LoRA adapter: a sink stores merged tensors; then the files; for `kinds`
factors          computes two factors of an update, concatenated or decomposed; called by `adapter_output`

spool            stores blocks in any order, in a file with slots; for `make`, `delta_output` and `adapter_output`
collect          copies blocks from a spool into the delta's files, in order; called by `make` and `delta_output`
write            `DeltaWriter`: a delta's files, tensor by tensor, then the agent's headers and sidecar files; for
                 `collect`, `make` and `trainers/convert`

format           the format `delta`: opens a delta over its base; lists the sidecar files of a model, for all writers
patched          the origin of a delta's tensors: elements of a base with the changes of a chain of deltas
index            writes and reads the index of a delta; the size of a delta, the digest of a model
codec            encodes and decodes blocks; their table, digests and memory
word_patches     the compiled loops of `codec`, and bounds on their results; the array types `Bytes` and `Words`
trainers/        deltas that trainers publish, as formats
"""
