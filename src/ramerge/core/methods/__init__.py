"""The merging methods, one paper a file.

base, define         what a method is, and one from an annotated formula
registry             all of them
formula, drop_mask   formulas of one element, and the random drop before them
trim, ranks, moved   thresholds: of ranks, by counting, and of what moved
sums, gram           sums over tensors, and what follows from them
matrices             methods that solve for whole matrices
"""
