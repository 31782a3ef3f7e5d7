"""All blocks of a plan, read once, by threads or on a cluster.

>>> from ramerge.sdk.passes import chosen_executor
>>> with chosen_executor(None, 2, lambda workers: 1_000_000 * workers) as executor:
...     print(executor.workers)
2
"""

from ramerge.core.engine.executors import chosen_executor
from ramerge.core.engine.reads import Passes

__all__ = [
    "Passes",
    "chosen_executor",
]
