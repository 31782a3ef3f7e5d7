"""BLAS has the threads that it had, in whatever order merges end."""

from contextlib import ExitStack

import numpy as np
import threadpoolctl

from ramerge.core.foundation.blas import one_blas_thread


def threads() -> list[int]:
    np.ones((2, 2)) @ np.ones((2, 2))
    return [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]


def test_the_first_to_end_leaves_the_limit_to_the_others() -> None:
    before = threads()
    first, second = ExitStack(), ExitStack()
    first.enter_context(one_blas_thread())
    second.enter_context(one_blas_thread())
    first.close()
    assert set(threads()) == {1}
    second.close()
    assert threads() == before
