"""The words of a command line that name models and recipes, for commands of the core and of features.

read         words → a recipe's document, and the output
write        a recipe → words, for commands that `ui` and `report` show or start, or a file of its own
"""
