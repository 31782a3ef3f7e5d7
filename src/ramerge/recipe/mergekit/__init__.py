"""Recipes of mergekit's form.

translate    from there to ramerge's form
methods      mergekit's methods and their parameters, and what they are here
values       values that differ over layers (gradients) and tensors (filters), and the rules that say the same
"""
