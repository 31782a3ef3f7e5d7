"""Recipes in mergekit's form. The core finds this form by its entry point in the group `ramerge.recipes`.

translate    translates the recipe, for `core/recipe/read`, and calls the other modules; chooses where relative paths
             start; lists replacements of the flags of mergekit's command line
methods      mergekit's methods and parameters, and their counterparts in ramerge
values       values that differ by layer (gradients) or tensor (filters), and the equivalent rules
"""
