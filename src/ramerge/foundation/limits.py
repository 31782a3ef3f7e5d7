"""A limit of the process that libraries do not bear; it is looked at before they are imported."""

from __future__ import annotations

import os
import resource

from ramerge.foundation.errors import PlanError

# Half as much again as a merge that compiles its kernels was measured to map; it uses a fifth of that.
_LEAST_BYTES = 1_250_000_000
# The stack and the buffers of a thread of OpenBLAS, of which NumPy and SciPy each have as many as there are processors.
_THREAD_BYTES = 100_000_000


def check_limits() -> None:
    """Refuse an address space (`ulimit -v`) in which numba, LLVM or OpenBLAS would hang or abort.

    In one that is limited, OpenBLAS starts no more threads than there is room for.

    Raises:
        PlanError: the limit is too low.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    if limit < _LEAST_BYTES:
        raise PlanError(
            f"the address space is limited to {limit:,} bytes (ulimit -v), and the libraries need {_LEAST_BYTES:,}, "
            "though they use little of it; lift the limit, and bound the memory that is used with --max-memory"
        )
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(1 + (limit - _LEAST_BYTES) // _THREAD_BYTES))
