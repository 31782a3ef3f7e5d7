"""Registries: objects that plug-ins add by entry point, such as the trainers of `ramerge handoff`.

>>> import click
>>> from ramerge.sdk.registry import Registry
>>> "merge" in Registry("ramerge.commands", click.Command, versioned=False)
True
"""

from ramerge.core.registry import FEATURES, Registry

__all__ = [
    "FEATURES",
    "Registry",
]
