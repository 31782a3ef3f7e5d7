"""Reads what `torch.save` writes, without torch, and without executing anything.

load          a file's values, in which a tensor is a `View`; the names that a pickle may use, and checks of numbers
instructions  the instructions of pickle that make values, and none that calls anything; `Stub` stands for an object
archive       a zip archive whose entries are found by position: for `load`; windows of files, for `dcp`, too
"""
