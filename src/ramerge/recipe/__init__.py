"""What to merge, and how: from YAML, flags or Python to a checked `Recipe`. Opens no checkpoint.

document     the text as plain values, with the line of each
mergekit/    translates recipes from mergekit's form
model        the structure of a recipe
checks       checks beyond the structure: methods, parameters, names of agents
layers       what a layer is
paths        where relative paths start
patterns     regular expressions of rename rules, in bounded time
words        keys and values in words of a command line
"""
