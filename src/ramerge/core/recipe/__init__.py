"""Recipes: from YAML, flags or Python to a checked `Recipe`. Opens no checkpoint.

read          opens a recipe in any form, for `api`: the document in ramerge's own form; forms of other programs, found
              by entry point, with advice on their options, for `cli.main`
document      `Document`: plain values, and the line or flag of each, for messages; reads YAML
points        `Point`, one merge: recipe, method and parameters; one for each combination of varied values, with the
              names of a sweep's folders; made by `api`
checks        from a document to a checked `Recipe`: methods, parameters, names of agents; called by `points` and `api`
model         the public classes `Recipe`, `Agent`, `Soup`, `Rule`, `Rename` and `Allow`, and the types of their fields
sentences     pydantic's errors as messages, for `checks` and `model`
other_method  gives a recipe another method, without what belongs to the method before; the default method
layers        what a layer is, by a tensor's name; for rules, plans, `analysis` and `mergekit`
globs         which rule catches which names of tensors, of many rules and names at once; for `model` and
              `planning.checks`
patterns      regular expressions of rename rules, in bounded time; for `planning.name_mappings`
paths         parts of a model's name, and the paths of a recipe as another folder needs them; for features and records
"""
