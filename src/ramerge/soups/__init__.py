"""Checkpoints along a run: their averages, and where the run is going. With methods and a command.

steps                       which training step an agent is
uniform, ema, scored        methods: weighted means of checkpoints
extrapolate, relex          methods: beyond the last checkpoint
greedy, scores              soups that are scored; scores from logs
straightness, page          how straight a run is: for the terminal, as JSON, as a page
recipe                      from a run and a strategy to a recipe
checkpoints                 the checkpoints of a run: a folder, a list, a repository's branches, a chain of deltas
commands                    the command line
"""
