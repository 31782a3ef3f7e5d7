"""The merging methods, one paper a file.

base         what a method is
table        all of them
formula, trim, coins     what several share
matrices                 what methods share that solve for whole matrices
"""
