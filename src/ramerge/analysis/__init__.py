"""Changes by RL: sparsity, overlap and angles of task vectors, and their fate in merges (sections 3.1 and 3.2).

commands                 `ramerge analyze`, `recommend` and `report`
command_output           what these commands print and write; checks of paths, which `soups/commands` uses, too
analyze                  the function that users call: recipe → plan → one read of the inputs → `Analysis`
observe                  the pass that merges without writing and counts statistics; called by `analyze`
task_vector_statistics   the statistic that this pass counts of each tensor; `Tally`: its counts, added up over tensors
survey                   the compiled loop of this statistic; the layout of its arrays, names of fates and bins
precision_loss           a statistic of the same pass: what float32 agents would lose in bfloat16; with its finding
tensor_roles             the role of a tensor, from its name; tensors by layer and role, for `analyze`
parts                    from a `Tally` to figures of a part of the model: agents, pairs, fates; the class `Finding`
cells                    the heat map: figures by layer and role, seen while `observe` adds them up; for `analyze`
findings                 sentences on what the figures mean for merging; called by `analyze`
results                  `Analysis`: the figures of all parts, as JSON, and read back from it by `ui/look`
tables                   the rows of `--csv` and of data frames, for `results`; the CSV files, for `command_output`
text                     an analysis as lines for `commands`; an agent's row and percentages, for `report/page`, too
recommend                which merge to try first, why, and the search that chooses; for `command_output` and `ui/look`
finished                 a merge that is done, as its recipe and record, for `ramerge report` and `ui/share`
report/                  an analysis as an HTML page and as files of figures
"""
