"""Checkpoints along a run: their averages, and where the run is going. A wing with its own methods and command.

steps                       which training step an agent is
uniform, ema, scored        methods: weighted means of checkpoints
extrapolate, relex          methods: beyond the last checkpoint
run                         the checkpoints of a run: a folder, a list, a repository's branches, a chain of deltas
commands                    the command line
"""
