"""The interface of plug-ins: a plug-in imports nothing but `ramerge` and this package.

**Unstable.** Names and arguments may change with every version of ramerge; `methods.INTERFACE` changes when plug-ins
must be changed, and a plug-in that was written for another version is refused by name.

The pages in docs/reference/sdk show every name in a script that runs. All modules only hand on names of the core and of
`cli`:

methods   classes of methods, formulas of one element, statistics that are counted first; all methods
kernels   blocks of tensors, as methods get and return them
linalg    whole matrices: spectra
formats   a format, what it is handed, and how it reads JSON files
tensors   tensors and where their elements are stored, readers, identities of files
storage   folders, models on the hub and in buckets
recipes   documents with line numbers, checked recipes, recipes by flags, and recipes of other programs
plans     the plan that is made of a recipe, and findings
passes    all blocks of a plan, by any executor
outputs   kinds of output: the folder that is built, with its journal, and how large files are written
records   records of merges, and other JSON files as dataclasses
commands  commands: options, words and messages
options   settings that are declared once, and how values of users are checked
progress  events of long work, how they are shown, and the exception that ends it on a signal
registry  objects by name, of plug-ins too
text      untrusted text and JSON, made safe to show
files     files that appear whole or not at all, locks, the user's cache

Our own features use it as plug-ins do. They import some more of the core, room by room: the import rules in
pyproject.toml say which. A name is here if plug-ins need it and an example or two features use it.
"""
