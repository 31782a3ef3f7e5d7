"""Recipes: from YAML, flags or Python to a checked `Recipe`. Opens no checkpoint.

document      the text as plain values, with the line of each
dialects      forms of recipes of other programs, found by entry point
model         the structure of a recipe: the public classes `Recipe`, `Agent`, `Rule` and others
checks        checks beyond the structure: methods, parameters, names of agents
other_method  a recipe with another method, without what belongs to the method before
layers        what a layer is
globs         which rule catches which names of tensors, of many rules and names at once
paths         where relative paths start
patterns      regular expressions of rename rules, in bounded time
read, points  opens a recipe in any form; one merge for each combination of varied values
sentences     reasons why a recipe is refused
"""
