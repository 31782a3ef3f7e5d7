"""Recipes in mergekit's form: the core finds it by its entry point in the group `ramerge.recipes`.

translate    the recipe in ramerge's form, for `core/recipe/dialects`; calls all others
methods      mergekit's methods and their parameters, and what they are here
values       values that differ over layers (gradients) and tensors (filters), and the rules that say the same
folders      where relative paths of a recipe start
flags        what replaces the flags of mergekit's command line
"""
