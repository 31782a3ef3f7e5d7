"""The command line.

start        where the process begins
main         the group of commands; errors and signals in words
commands     a function a command, no logic
flags        from the words of a command line to a recipe's document
texts        results for people
completion   what the shell offers after Tab
"""
