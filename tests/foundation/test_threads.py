"""BLAS has the threads that it had, in whatever order merges end."""

import threading
from contextlib import ExitStack

import numpy as np
import threadpoolctl

from ramerge.core.foundation.threads import one_blas_thread


def threads() -> list[int]:
    np.ones((2, 2)) @ np.ones((2, 2))
    return [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]


def test_first_to_end_keeps_the_limit() -> None:
    before = threads()
    first, second = ExitStack(), ExitStack()
    first.enter_context(one_blas_thread())
    second.enter_context(one_blas_thread())
    first.close()
    assert set(threads()) == {1}
    second.close()
    assert threads() == before


def test_a_thread_holds_what_another_one_has_set() -> None:
    before, inside = threads(), list[int]()
    threadpoolctl.threadpool_limits(before[0], "blas")  # since then, threadpoolctl heeds this thread alone

    def merge() -> None:
        with one_blas_thread():
            inside.extend(threads())

    merging = threading.Thread(target=merge)
    merging.start()
    merging.join()
    assert set(inside) == {1} and threads() == before
