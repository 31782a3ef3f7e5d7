"""Deltas as wholes: made from a base and an agent, and turned back into the agent.

make   what an agent has changed of its base, into a folder
apply  the agent's files, to the byte
"""
