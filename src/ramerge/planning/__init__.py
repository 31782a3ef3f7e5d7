"""Plans: made from headers only, and complete before the first weight is read.

build            from a checked recipe to a plan
inputs           the models, found and opened
match, names     agents beside the base: what is missing, extra, tied, or named otherwise
layout           the tensors and files of the output
rounds           reads before the merging pass; `remembered`: counts of earlier reads
resources        threads, blocks and memory
checks, findings what would fail, and how it is said
model            what a plan is
"""
