"""The merging methods, one paper a file.

base, define         the base class of methods, and a method from an annotated formula
registry             all of them
formula, drop_mask   formulas of one element, and the random drop before them
rows, means          methods that merge whole rows, and weighted means of the agents
trim, quantiles, moved   thresholds: by rank, by counting, and by what moved
many, other_result   sums of more agents than a kernel takes; another method as the start
sums, gram           sums over tensors, and what follows from them
matrices             methods that solve for whole matrices
"""
