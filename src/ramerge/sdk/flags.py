"""Recipes by flags of a command line, and flags of a recipe.

>>> from ramerge.sdk.flags import words_of
>>> from ramerge.sdk.recipes import open_recipe
>>> words_of(open_recipe("recipe.yaml"))
['--method', 'ram+', '--base', 'base', '--agent', 'code=coder', '--agent', 'tool=tool', '--agent', 'memory=memory']
"""

from ramerge.cli.flags.read import from_here, read_inputs, recipe_of_words
from ramerge.cli.flags.write import limit_words, words_of, write_recipe

__all__ = ["from_here", "limit_words", "read_inputs", "recipe_of_words", "words_of", "write_recipe"]
