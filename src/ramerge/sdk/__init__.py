"""The interface of plug-ins: a plug-in imports nothing but `ramerge` and this package.

**Unstable.** Names and arguments may change with every version of ramerge; `methods.INTERFACE` changes when plug-ins
must be changed, and a plug-in that was written for another version is refused by name.

The pages in docs/reference/sdk show every name in a runnable script. All modules only re-export names of the core and
`cli`:

methods   classes of methods, formulas for one element, statistics to count first; all methods
kernels   blocks of tensors, the input and output of methods
linalg    whole matrices: spectra
formats   a format, its input, and how it reads JSON files
tensors   tensors and where their elements are stored, readers, identities of files
storage   folders, models on the hub and in buckets
recipes   documents with line numbers, checked recipes, recipes by flags, and recipes of other programs
plans     the plan made from a recipe, and findings
passes    all blocks of a plan, by any executor
outputs   kinds of output: the output folder, its journal, and writing large files
records   records of merges, and other JSON files as dataclasses
commands  commands: options, arguments and messages
options   settings that are declared once, and checks of users' values
progress  events of long work, how to show them, and the exception that ends the work on a signal
registry  objects by name, also from plug-ins
text      untrusted text and JSON, made safe to show
files     files that appear whole or not at all, locks, the user's cache

ramerge's own features use this package as plug-ins do. They also import some of the core, room by room, as the import
rules in pyproject.toml allow. A name is here if plug-ins need it, and an example or two features use it.
"""
