"""Reads what `torch.save` writes, without torch, and without executing anything.

archive        a zip archive whose entries are found by position
instructions   the instructions of pickle that make values, and none that calls anything
load           the names that a pickle may use, and the plain values that they stand for
"""
