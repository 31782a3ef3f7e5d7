"""Everything that a merge needs, from the recipe to the written checkpoint. The core does not depend on features.

Rooms from top to bottom; ARCHITECTURE.md lists the imports of each:

engine      carries out a plan: passes, workers, journal, record; executors
planning    recipe and headers -> plan
output      output folders: the staging directory, the commit, remote outputs
recipe      text -> checked recipe
formats     folder -> tensors, one format per file
tensors     a tensor's name, dtype, shape and origin; the reader
storage     from a model's name to its folder; remote files
methods     one paper per file
linalg      whole matrices, on NumPy or torch
kernels     compiled loops, compiled once
registry    finds methods, formats, commands and kinds of output by entry point
foundation  code that is independent of merging
options     options of a run; every room may import it
"""
