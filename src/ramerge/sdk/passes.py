"""All blocks of a plan, read once, by threads or on a cluster.

>>> from ramerge.sdk.passes import chosen_executor
>>> with chosen_executor(None, 2, lambda workers: 1_000_000 * workers) as executor:
...     print(executor.workers)
2
"""

from ramerge.core.engine.executors import chosen_executor
from ramerge.core.engine.executors.executor import Executor, Pass, Processed, in_runs
from ramerge.core.engine.passes import PlanPass, in_order
from ramerge.core.engine.reads import Passes, tasks_of
from ramerge.core.engine.result_codec import BlockResult, Results
from ramerge.core.engine.tally import NonFinite
from ramerge.core.engine.warn import (
    AboutMethod,
    effects,
    inspect,
    refuse_if_strict,
    rounding_notes,
    spoiled,
    warnings_of,
)
from ramerge.core.engine.worker import Sink, Task, Worker

__all__ = [
    "AboutMethod",
    "BlockResult",
    "Executor",
    "NonFinite",
    "Pass",
    "Passes",
    "PlanPass",
    "Processed",
    "Results",
    "Sink",
    "Task",
    "Worker",
    "chosen_executor",
    "effects",
    "in_order",
    "in_runs",
    "inspect",
    "refuse_if_strict",
    "rounding_notes",
    "spoiled",
    "tasks_of",
    "warnings_of",
]
