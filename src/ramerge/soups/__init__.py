"""Checkpoints along a run: their averages, and where the run is going. With methods and a command.

commands       `ramerge soup`
recipe         from a run and a strategy to a recipe; called by `commands`
checkpoints    a run's checkpoints: a folder, a list, a repository's branches, a chain of deltas; as agents of a recipe
scores         scores of checkpoints from logs of `ramerge eval`, for `recipe`; checkpoints that differ in their skills
greedy         the greedy soup: checkpoints are merged and scored in turn; called by `commands`
straightness   how straight a run is: one read of its checkpoints, as JSON and for the terminal; called by `commands`
page           the same as an HTML page

steps          the training step of each agent, for the methods below and `straightness`; numbers by agent
uniform        a method: the mean of checkpoints
ema            a method: the exponential moving average along the run
scored         a method: the mean, weighted by scores
extrapolate    a method: the line from the first agent through the last one, continued
relex          a method: a later checkpoint, from the line of the task vectors; this line is for `straightness`, too
"""
