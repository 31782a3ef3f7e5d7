"""Recipes in mergekit's form: the core finds it by its entry point in the group `ramerge.recipes`.

translate    the recipe in ramerge's form, for `core/recipe/read`; calls all others; where relative paths start; what
             replaces the flags of mergekit's command line
methods      mergekit's methods and their parameters, and what they are here
values       values that differ over layers (gradients) and tensors (filters), and the equivalent rules
"""
