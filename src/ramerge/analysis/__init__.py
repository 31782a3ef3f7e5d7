"""What RL changed: sparsity, overlap and angles of task vectors, and what merges leave of them (sections 3.1 and 3.2).

run          the function that users call
analyze      one streaming read of the inputs
anatomy      what is counted, tensor by tensor
parts        what the counts mean, for a part of the model; `results`: for all parts; `roles` of tensors
findings     what that means for merging, in sentences
text, tables, report/     results for people, for data frames, as a page
finished     a merge that is done, read back
"""
