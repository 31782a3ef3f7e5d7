"""The command-line arguments that name models and recipes, for commands of the core and of features.

read         arguments → a recipe's document, and the output
write        a recipe → arguments, for commands that `ui` and `report` show or start; or → a file
"""
