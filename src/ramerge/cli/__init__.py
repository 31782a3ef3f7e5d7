"""The command line.

start                    the entry point of the process
main                     the group of commands; messages for errors and signals
commands                 one function for each command of the core, without logic
carry_out                plan, merge, and say what was made
options                  options of commands, each declared once
flags/, words            recipes and values by the words of a command line
terminal, progress       what commands print; how progress is shown
texts, summary           results as text for people
"""
