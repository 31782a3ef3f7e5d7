"""The words of a command line that name models and recipes, for commands of the core and of its wings.

options      `--base`, `--agent`, `--set` and the others, each defined once
read         words → a recipe's document, and the output
"""
