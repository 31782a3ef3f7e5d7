"""Deltas: what an agent has changed of its base. With commands, a format and kinds of output.

run, commands     the functions that users call, and the same on the command line
make              what an agent has changed of its base, into a folder: the pass that compares them
rebuild           the agent that deltas give back
kinds             kinds of output: a delta, a LoRA adapter
output, patches   a merge that is written as a delta
adapter_plan, adapter_output, factors   a merge that is written as a LoRA adapter, and its factors
record, card      what is known of a delta, and its page
format            the format
patched           the origin of its tensors: a base's elements with those of a chain of deltas over them
index             the index and the files of a delta
codec             blocks: what has changed, as bytes
word_patches      its compiled loops, and how long their results may get
spool, collect    blocks until they are appended to the delta's files, and that end
write, sidecars   the writer, and the files alongside the weights
trainers/         deltas that trainers publish, unpacked once
"""
