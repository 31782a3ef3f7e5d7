"""Changes by RL: sparsity, overlap and angles of task vectors, and what merges leave of them (sections 3.1 and 3.2).

analyze      the function that users call: one streaming read of the inputs
task_vector_statistics, precision_loss   what is counted, tensor by tensor; `survey`: the loop that counts
observe      the pass that counts
cells        figures by layer and role, also while they are counted
parts        what the counts mean, for a part of the model; `results`: for all parts; `tensor_roles`: which they are
cores        the coefficients of `core`, and the best factor of the sum, forecast
recommend    which merge to try first
findings     what that means for merging, in sentences
text, tables, report/     results for people, for data frames, as a page
agent_figures   what a merge did to each agent, as text
finished     a merge that is done, read back
commands     `ramerge analyze`, `recommend` and `report`; `command_output`: what they write
"""
