"""Plans: made from headers only, and complete before the first weight is read.

build            from a checked recipe to a plan
soups            agents that are means of checkpoints
inputs           finds and opens the models
headers          what their headers say, before anything is planned
name_mappings    gives agents' tensors the base's names, by the recipe's rules and by what libraries usually do
absences         what one of two models need not have: buffers, shared keys and values, towers
match            compares agents with the base: missing, extra and tied tensors
configs          config.json of base and agents, and of the base and its weights (config_keys.json: defaults of keys)
derived          values of config.json that follow from others
vocabulary       embeddings with different numbers of rows, and rows with different tokens
tokens           reads tokens and chat templates
layout           the tensors and files of the output
rounds           reads before the merging pass
cached_counts    counts of earlier reads
resources        threads, blocks and memory
devices          where whole matrices are solved for
checks           further checks
findings         problems, warnings and notes, which every step returns
owners           whose a tensor is: an agent's, the base's or all agents'
kinds            kinds of output, as far as plans must know them
model            a plan: fields only
explain          a plan as text and as plain values, and warnings that follow from it
"""
