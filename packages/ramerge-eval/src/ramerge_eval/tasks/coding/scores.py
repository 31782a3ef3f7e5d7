"""Metrics of a problem, computed from which programs pass which tests, as in CURE (evaluation/eval.py).

A problem has k programs, t ground-truth tests and m generated tests. G[i, j] is whether program i passes ground-truth
test j, U[i, j] whether it passes generated test j; C is the set of correct programs, i with G[i, j] for all j.
Each figure is a ratio of two sums over the problems:

    acc               |C|                                                      / k
    accumulated       sum of G                                                 / k t
    ut                number of j with U[i, j] for all i in C                  / m        where C is not empty
    ut_accumulated    sum of U[i, j] over i in C                               / |C| m    where C is not empty
    bon_acc           whether b is in C                                        / 1        where m > 0
    bon_accumulated   sum of G[b, j]                                           / t        where m > 0

For BoN(n, m'), b is the program among the first n that passes most of the first m' generated tests; the first one, if
several are equal. An answer without a program or test counts as a failing program or test; CURE leaves tests that it
cannot read, and problems without any, out of its sums. A problem without requested tests has no weight in the last 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from ramerge_eval.tasks.common import Ratio

METRICS = ("acc", "accumulated", "ut", "ut_accumulated", "bon_acc", "bon_accumulated")

Table = Sequence[Sequence[bool]]
"""Rows of programs, columns of tests: whether the program passes the test."""


def figures(truth: Table, own_tests: Table, bon: tuple[int, int]) -> dict[str, Ratio]:
    """Compute all metrics of one problem, from which programs pass which tests.

    Args:
        truth: results of ground-truth tests.
        own_tests: results of generated tests, which may be empty.
        bon: n and m' of BoN.
    """
    correct = [row for row, results in zip(own_tests, truth, strict=True) if all(results)]
    choice = truth[best(own_tests, bon)]
    count, weight = len(own_tests[0]), 1.0 if own_tests[0] else 0.0
    return {
        "acc": (len(correct), len(truth)),
        "accumulated": (_count(truth), len(truth) * len(choice)),
        "ut": (sum(map(all, zip(*correct, strict=True))), count if correct else 0),
        "ut_accumulated": (_count(correct), len(correct) * count),
        "bon_acc": (all(choice) * weight, weight),
        "bon_accumulated": (sum(choice) * weight, len(choice) * weight),
    }


def nothing(programs: int, truth: int, own_tests: int) -> dict[str, Ratio]:
    """Return the metrics of a problem whose requests all failed: zero, with the weights as if all programs had been
    right.
    """
    weight = 1.0 if own_tests else 0.0
    whole = (programs, programs * truth, own_tests, programs * own_tests, weight, truth * weight)
    return {name: (0.0, float(each)) for name, each in zip(METRICS, whole, strict=True)}


def best(own_tests: Table, bon: tuple[int, int]) -> int:
    """Return the program that BoN chooses: the first with the most generated tests passed."""
    programs, tests = bon
    counts = [sum(row[:tests]) for row in own_tests[:programs]]
    return counts.index(max(counts))


def _count(table: Table) -> int:
    return sum(map(sum, table))
