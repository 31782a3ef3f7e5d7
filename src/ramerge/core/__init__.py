"""Everything that a merge needs, from the recipe to the written checkpoint. Nothing here knows a feature by name.

Rooms from top to bottom; ARCHITECTURE.md names what each imports:

engine      carries out a plan: passes, workers, journal, record; executors
planning    recipe and headers -> plan
output      output folders: the staging directory, the commit, remote outputs
recipe      text -> checked recipe
formats     folder -> tensors, one format a file
tensors     what a tensor is, and the reader
storage     from a model's name to its folder; remote files
methods     one paper a file
linalg      whole matrices, on NumPy or torch
kernels     compiled loops, compiled once
registry    methods, formats, commands and kinds of output by entry point
foundation  what knows nothing of merging
options     how a run is carried out; every room may import it
"""
