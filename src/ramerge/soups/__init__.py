"""Averages of checkpoints along a run, and predictions of later checkpoints: methods and a command.

commands       `ramerge soup`
recipe         makes a recipe from a run and a strategy; called by `commands`
checkpoints    a run's checkpoints: a folder, a list, a repository's branches, a chain of deltas; as agents of a recipe
scores         scores of checkpoints from logs of `ramerge eval`, for `recipe`; chooses checkpoints of different skills
greedy         the greedy soup: checkpoints are merged and scored in turn; called by `commands`
straightness   measures in one read of its checkpoints how straight a run is; called by `commands`
page           shows the straightness as an HTML page

steps          the training step of each agent, for the methods below and `straightness`; numbers by agent
uniform        a method: the mean of checkpoints
ema            a method: the exponential moving average along the run
scored         a method: the mean of checkpoints, weighted by scores
extrapolate    a method: the line from the first agent through the last one, continued
relex          a method: predicts a later checkpoint from the line of the task vectors, also for `straightness`
"""
