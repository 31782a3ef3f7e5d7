"""From a plan to checkpoints: count, reduce, merge, commit.

execute      the whole story
worker, tally            one block; what blocks add up to
sinks, beside            where bytes go; what is written beside the weights
record, card             what a merge did, for programs and for people
suspect, warn            what looks wrong in the weights
executors/               where blocks run
"""
