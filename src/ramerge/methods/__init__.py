"""The merging methods, one paper a file.

base         what a method is
table        all of them
formula, trim, coins     what several share
gram, ranks              sums over tensors and what follows from them; values of given ranks
matrices                 what methods share that solve for whole matrices
"""
