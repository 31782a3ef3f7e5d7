"""Recipes: from YAML, flags or Python to a checked `Recipe`. Opens no checkpoint.

read          reads a recipe in any form and returns a document in ramerge's own form, for `api`; finds forms of other
              programs by entry point, with advice on these programs' options, for `cli.main`
document      `Document`: plain values with their lines or flags, for messages; reads YAML
points        `Point`: one merge with recipe, method and parameters. Makes one for each combination of varied values,
              and names the folders of a sweep; called by `api`
checks        turns a document into a checked `Recipe`: methods, parameters, names of agents; called by `points` and
              `api`
model         the public classes `Recipe`, `Agent`, `Soup`, `Rule`, `Rename` and `Allow`, and the types of their fields
sentences     pydantic's errors as messages, for `checks` and `model`
other_method  replaces the method of a recipe, and removes what belongs to the previous method
layers        defines the layer of a tensor by its name; for rules, plans, `analysis` and `mergekit`
globs         finds the rule that matches each tensor, for many rules and names at once; for `model` and
              `planning.checks`
patterns      regular expressions of rename rules, in bounded time; for `planning.name_mappings`
paths         parts of a model's name, and paths rewritten for a recipe in another folder; for features and records
"""
