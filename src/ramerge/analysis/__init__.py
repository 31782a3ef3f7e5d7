"""Changes by RL: sparsity, overlap and angles of task vectors, and their fate in merges (sections 3.1 and 3.2).

commands                 `ramerge analyze`, `recommend` and `report`
command_output           prints and writes the results of these commands; checks of paths, also for `soups/commands`
analyze                  the function that users call: recipe → plan → one read of the inputs → `Analysis`
observe                  the pass that merges without writing and counts statistics; called by `analyze`
task_vector_statistics   the statistic that this pass counts for each tensor; `Tally`: its counts, summed over tensors
survey                   the compiled loop of this statistic; the layout of its arrays; names of fates and bins
precision_loss           a statistic of the same pass, and its finding: what float32 agents would lose in bfloat16
tensor_roles             the role of a tensor, from its name; tensors by layer and role, for `analyze`
parts                    turns a `Tally` into figures of a part of the model: agents, pairs, fates; the class `Finding`
cells                    the heat map: figures by layer and role, shown while `observe` adds them up; for `analyze`
findings                 sentences that say what the figures mean for merging; called by `analyze`
results                  `Analysis`: the figures of all parts; to and from JSON (`ui/look` reads it back)
tables                   the rows of `--csv` and of data frames, for `results`; the CSV files, for `command_output`
text                     an analysis as text for `commands`; an agent's row and percentages, also for `report/page`
recommend                which merge to try first, why, and the search that chooses; for `command_output` and `ui/look`
finished                 opens a finished merge as its recipe and record, for `ramerge report` and `ui/share`
report/                  an analysis as an HTML page and as files of figures
"""
