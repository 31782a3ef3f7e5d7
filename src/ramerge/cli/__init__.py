"""The command line.

start        the entry point of the process
main         the group of commands; messages for errors and signals
commands     one function for each command, without logic
texts        results as text for people
"""
