"""Reads files of `torch.save` without torch, and without executing anything.

load          reads a file's values, with tensors as `View`; the names that a pickle may use, and checks of numbers
instructions  executes the pickle instructions that create values, and none that calls anything; `Stub` replaces objects
archive       zip archives whose entries are read by position: for `load`; windows of files, for `dcp`, too
"""
