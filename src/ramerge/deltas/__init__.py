"""Deltas as wholes: made from a base and an agent, and turned back into the agent.

run       the functions that users call
commands  the same on the command line
card      the page of a delta
record    what is known of one that was written or applied
make      what an agent has changed of its base, into a folder
"""
