"""The command line.

start        the entry point of the process
main         the group of commands; messages for errors and signals
commands     one function for each command, without logic
flags        from arguments of the command line to a recipe's document
texts        results as text for people
completion   words that the shell offers after Tab
"""
