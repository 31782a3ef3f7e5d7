"""Deltas: an agent's changes of its base. With commands, a format and kinds of output.

commands         `ramerge delta` and `apply`
run              `delta` and `apply`, which users call: models are opened, memory divided, record and card written
make             a delta of base and agent: which tensors are compared, and the pass that compares them; called by `run`
rebuild          the agent's files out of a delta; called by `run`
record           `DeltaRecord`, which `run` returns, and README.md of a delta; the card of a merge comes from the engine

kinds            `AsDelta` and `AsAdapter`, which `merge` finds by entry point as kinds of output
delta_output     a merge as a delta: the sink that compares merged blocks with the base's, then the files; for `kinds`
adapter_plan     which tensors of a merge get factors, with checks, notes and memory, when it is planned; for `kinds`
adapter_output   a merge as a LoRA adapter: the sink that keeps merged tensors, then the files; for `kinds`
factors          two factors of an update: concatenated or decomposed; called by `adapter_output`

spool            blocks in any order, in a file with slots; for `make`, `delta_output` and `adapter_output`
collect          blocks of a spool into the delta's files, in order; called by `make` and `delta_output`
write            `DeltaWriter`: a delta's files, tensor by tensor, then the agent's headers and sidecar files; for
                 `collect`, `make` and `trainers/convert`

format           the format `delta`: opens a delta over its base; also the sidecar files of a model, for all that write
patched          the origin of a delta's tensors: elements of a base with the changes of a chain of deltas
index            the index of a delta, written and read; the size of a delta, the digest of a model
codec            blocks as bytes: encoded, decoded, their table and digests; how much memory that takes
word_patches     the compiled loops of `codec`, and how large their results may get; the array types `Bytes` and `Words`
trainers/        deltas that trainers publish, as formats
"""
