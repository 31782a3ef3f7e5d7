"""Parts that features and plug-ins are written with. Our own features import nothing but `ramerge` and this package.

**Unstable.** Names and arguments may change with every version of ramerge; `methods.INTERFACE` changes when plug-ins
must be changed, and a plug-in that was written for another version is refused by name.

The pages in docs/reference/sdk show every name in a script that runs. A module for each thing that a feature may need:

methods, kernels, linalg   formulas: a method, what it counts first, compiled loops, whole matrices
formats, tensors, storage  checkpoints: a format, tensors and where their elements are stored, remote files
recipes, plans             what is merged: checked recipes, and the plan that is made of one
passes                     all blocks of a plan, by any executor
outputs                    kinds of output: the folder that is built, with its journal, and how files are written
records                    records of merges
commands, flags, options   commands: options, words and messages; recipes by flags; settings that are declared once
progress                   events of long work, how they are shown, and delayed signals
errors, text, files        reasons of errors, untrusted text, whole files and locks
machine                    devices, processors, memory, and packages that not every user has installed
"""
