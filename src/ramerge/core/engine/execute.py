"""From a plan to checkpoints: sample, count, merge, commit. `execute` reads top to bottom."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from ramerge.core.engine.executors.executor import Executor
from ramerge.core.engine.gathered_from import refuse_other_models
from ramerge.core.engine.outputs import OutputKind, open_output
from ramerge.core.engine.reads import Passes
from ramerge.core.engine.record import Record
from ramerge.core.engine.sidecars import records_of
from ramerge.core.engine.sinks import InMemorySink, MergedTensor
from ramerge.core.engine.warn import inspect, refuse_wrong_models
from ramerge.core.foundation.errors import PlanError
from ramerge.core.foundation.progress import Listener, silence
from ramerge.core.planning.model import MergePlan
from ramerge.core.tensors.identity import check_unchanged


def execute(
    plan: MergePlan,
    executor: Executor,
    listen: Listener = silence,
    on_tensor: Callable[[MergedTensor], None] | None = None,
    *,
    fresh: bool = False,
) -> tuple[Record, ...]:
    """Carry out a plan: write to its output folder, or pass each merged tensor to `on_tensor`.

    Blocks that an interrupted run of an equal plan has written to the same folder are not merged again.

    Raises:
        PlanError: the plan has problems, or neither an output folder nor a function is given.
        WeightsError: values cannot be merged (all such tensors are listed), or a strict plan has warnings.
        CheckpointError: an input cannot be read, or has changed since planning; all such files are listed.
        OutputError: the output cannot be written.
    """
    if plan.findings.problems or (plan.output.target is None) == (on_tensor is None):
        raise PlanError(plan.findings.problems or "give either an output folder, or a function that takes the tensors")
    start = time.monotonic()
    with closing(Passes(plan, executor, listen)) as passes:
        warnings = inspect(plan)
        refuse_wrong_models(plan, warnings)
        refuse_other_models(plan)
        if on_tensor is not None:
            passes.count()
            with closing(InMemorySink(plan, on_tensor)) as whole:
                passes.merge(whole)
                whole.finish()
            passes.keep()
            return records_of(plan, passes, 0, warnings, start)
        kind = plan.output.kind
        assert isinstance(kind, OutputKind)
        with open_output(kind.spec(plan), fresh=fresh) as output:
            passes.journal = output.journal
            records = kind.write(plan, passes, output, warnings, start)
            check_unchanged(plan.inputs.files)  # the copied companions must not have changed either
        passes.keep()
        return records
