"""Parts that features and plug-ins are written with. Our own features import nothing but `ramerge` and this package.

**Unstable.** Names and arguments may change with every version of ramerge; `methods.INTERFACE` changes when plug-ins
must be changed, and a plug-in that was written for another version is refused by name.

The pages in docs/reference/sdk show every name in a script that runs. A module for each thing that a feature may need;
all of them only hand on names of the core and of `cli`:

recipes   documents with line numbers, checked recipes, and recipes of other programs
plans     the plan that is made of a recipe, what planning found, headers of models
methods   classes of methods, what they count first, parameters; all methods
kernels   compiled loops, how floats are packed, and how a loop of one's own is compiled
linalg    whole matrices: spectra
formats   a format and what it is handed, opened checkpoints, indices, statistics that were recorded, sidecars
tensors   tensors and where their elements are stored, readers, identities of files, names of dtypes
storage   models on the hub and in buckets, and the files of a delta
passes    all blocks of a plan, by any executor; warnings about what was read
outputs   kinds of output: the folder that is built, with its journal, and how large files are written
records   records of merges, and other JSON files as dataclasses
commands  commands: options, words and messages
flags     recipes by flags, and flags of a recipe
options   settings that are declared once
registry  objects by name, of plug-ins too
progress  events of long work, how they are shown, and delayed signals
errors    reasons of errors, and warnings that are no errors
text      untrusted text and JSON, made safe to show
files     files that appear whole or not at all, locks, paths, the user's cache
machine   devices, processors, memory, threads; extras that are not installed, and data frames
"""
