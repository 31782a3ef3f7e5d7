"""Recipes: documents with line numbers, checked recipes, and recipes of other programs.

>>> from ramerge.sdk.recipes import check, open_recipe
>>> sorted(check(open_recipe("recipe.yaml")).agents)
['code', 'memory', 'tool']
"""

from ramerge.core.planning.inputs import open_recipe
from ramerge.core.recipe.checks import as_yaml, check, check_unchosen, models_only, note_unused
from ramerge.core.recipe.document import DEFAULT_METHOD, Document, Key, parse_document, read_document
from ramerge.core.recipe.layers import LayerId, layer_of
from ramerge.core.recipe.model import AUTO
from ramerge.core.recipe.other_method import for_method
from ramerge.core.recipe.paths import names_in, parts_of, portable, reads_of
from ramerge.core.recipe.points import Point, make_points
from ramerge.core.recipe.read import AnyRecipe, Dialect, Look, blind, translate_recipe

__all__ = [
    "AUTO",
    "DEFAULT_METHOD",
    "AnyRecipe",
    "Dialect",
    "Document",
    "Key",
    "LayerId",
    "Look",
    "Point",
    "as_yaml",
    "blind",
    "check",
    "check_unchosen",
    "for_method",
    "layer_of",
    "make_points",
    "models_only",
    "names_in",
    "note_unused",
    "open_recipe",
    "parse_document",
    "parts_of",
    "portable",
    "read_document",
    "reads_of",
    "translate_recipe",
]
