"""Recipes in mergekit's form: the core finds it by its entry point in the group `ramerge.recipes`.

translate    from there to ramerge's form
methods      mergekit's methods and their parameters, and what they are here
flags        what replaces the flags of its command line
folders      where relative paths start
values       values that differ over layers (gradients) and tensors (filters), and the rules that say the same
"""
