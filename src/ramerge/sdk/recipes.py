"""Recipes: documents with line numbers, checked recipes, recipes by flags, and recipes of other programs.

>>> from ramerge.sdk.recipes import check, open_recipe, words_of
>>> document = open_recipe("recipe.yaml")
>>> sorted(check(document).agents)
['code', 'memory', 'tool']
>>> words_of(document)[:4]
['--method', 'ram+', '--base', 'base']
"""

from ramerge.cli.flags.read import read_inputs, recipe_of_words
from ramerge.cli.flags.write import words_of
from ramerge.core.planning.inputs import open_recipe
from ramerge.core.recipe.checks import check, models_only
from ramerge.core.recipe.document import Document, read_document
from ramerge.core.recipe.paths import reads_of
from ramerge.core.recipe.points import Point, make_points
from ramerge.core.recipe.read import AnyRecipe, Dialect

__all__ = [
    "AnyRecipe",
    "Dialect",
    "Document",
    "Point",
    "check",
    "make_points",
    "models_only",
    "open_recipe",
    "read_document",
    "read_inputs",
    "reads_of",
    "recipe_of_words",
    "words_of",
]
