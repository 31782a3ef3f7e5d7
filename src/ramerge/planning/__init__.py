"""Plans: made from headers only, and complete before the first weight is read.

build            from a checked recipe to a plan
inputs           finds and opens the models
match, names     compares agents with the base: missing, extra, tied and renamed tensors
layout           the tensors and files of the output
rounds           reads before the merging pass
remembered       counts of earlier reads
resources        threads, blocks and memory
checks, findings further checks; problems, warnings and notes
model            what a plan is
"""
