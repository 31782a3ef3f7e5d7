"""Merge RL-trained agents of one base model, exactly and out of core.

import ramerge

record = ramerge.merge("recipe.yaml", "merged")
print(record.agents["code"].density, record.agents["code"].lambda_)
"""

import lazy_loader

# numba takes most of a second to import; `ramerge --version` and `import ramerge` do without it. The names are those of
# `__init__.pyi`, which type checkers read too.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
