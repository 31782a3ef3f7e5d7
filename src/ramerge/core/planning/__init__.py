"""Plans: made from headers only, and complete before the first weight is read.

build            turns the points of a recipe into a plan, by the steps below; called by `api`
findings         `PlanFinding`: problems, warnings and notes, which all steps return; their messages
owners           owners of tensors: an agent, the base or all agents; their labels, also for `engine`
requirements     requirements of kinds of output on a merge, each with its message
kinds            how a kind of output takes part in planning: the base class of `engine.outputs.OutputKind`

Steps, in the order in which `build` takes them:

inputs           finds and opens the models of a recipe (`OpenedInputs`); the only module that does
soups            an agent that is a mean of checkpoints, for `inputs`; its weights, also for records
name_mappings    gives agents' tensors the base's names, by the recipe's rules and by the habits of libraries
absences         optional tensors, such as buffers, shared keys and values, towers; for `name_mappings`
match            compares agents' tensors, importances and recorded inputs with the base's tensors
vocabulary       `Rows` of embeddings that only some models have, and rows with different tokens
tokens           reads tokens, chat templates and other settings of tokenizers, for `vocabulary`, `checks` and `damaged`
checks           right after `inputs`: agents of another architecture, adapters; at the end all other findings, about
                 config.json, rules, layers, rounding, shard sizes; chooses the companions to copy
damaged          warns of damaged files next to the weights that `checks` chose to copy or `tokens` would read
configs          compares config.json of base and agents, and of the base with its weights; `checks` writes the messages
derived          values that follow from others, by the rules in config_keys.json; for `configs`
layout           plans each tensor of the output: sources, dtype, file and offset
cached_counts    counts of earlier reads, which a plan looks up and `engine.reads` stores; tensors and origins as plain
                 values, for `engine.fingerprint`
rounds           the statistics that each read before the merging pass counts; for `api`, a plan without cached counts
resources        threads, blocks and memory; whether a GPU solves for whole matrices

The result:

model            `MergePlan`, `TensorPlan`, `OutputPart`, `Block`, `Resources`, for `checks`, `explain` and all of
                 `engine`; the parts of a model that are counted separately (`scope_of`)
explain          a plan as text and as plain values, for `api`; its problems and forecast warnings, for `cli` and
                 `engine.warn`
headers          not part of a plan: each model by its headers alone, for the page of `ui`
"""
