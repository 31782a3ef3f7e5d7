"""Plans: made from headers only, and complete before the first weight is read.

build            from the points of a recipe to a plan, by the steps below; called by `api`
findings         `PlanFinding`: problems, warnings and notes, which every step returns; their messages
owners           owners of tensors: an agent, the base or all agents; their labels, for `engine` too
requirements     what kinds of output require of a merge, each worded once
kinds            how a kind of output takes part in planning: the base class of `engine.outputs.OutputKind`

Steps, in the order in which `build` takes them:

inputs           finds and opens the models of a recipe (`OpenedInputs`); the only module that does
soups            the agent of `inputs` that is a mean of checkpoints; its weights, for records, too
name_mappings    gives agents' tensors the base's names, by the recipe's rules and by what libraries usually do
absences         for `name_mappings`: optional tensors, such as buffers, shared keys and values, towers
match            compares agents' tensors, importances and recorded inputs with the base's tensors
vocabulary       `Rows` of embeddings that only some models have, and rows with different tokens
tokens           reads tokens, chat templates and other settings of tokenizers, for `vocabulary`, `checks` and `damaged`
checks           right after `inputs`: agents of another architecture, adapters; at the end all other findings, on
                 config.json, rules, layers, rounding, shard sizes; chooses the companions to copy
damaged          warnings of damaged files next to the weights, which `checks` chose to copy or `tokens` would read
configs          for `checks`, which words it: compares config.json of base and agents, and of the base and its weights
derived          for `configs`: values that follow from others, by the rules in config_keys.json
layout           from tensors that are `Matched` to the output's: sources, dtype, file and offset of each
cached_counts    counts of earlier reads: a plan recalls them, `engine.reads` keeps them; tensors and origins as plain
                 values, for `engine.fingerprint`
rounds           which statistics each read before the merging pass counts; for `api`, a plan without cached counts
resources        threads, blocks and memory; whether a GPU solves for whole matrices

The result:

model            `MergePlan`, `TensorPlan`, `OutputPart`, `Block`, `Resources`: fields, and what follows from them,
                 for `checks`, `explain` and all of `engine`; by which parts of a model is counted (`scope_of`)
explain          a plan as text and as plain values, for `api`; why it cannot be merged and which warnings it forecasts,
                 for `cli` and `engine.warn`
headers          no part of a plan: each model by its headers alone, for the page of `ui`
"""
