"""Metrics of a problem, from which programs pass which tests, as in CURE (evaluation/eval.py).

A problem has k programs, t ground-truth tests and m generated tests. G[i, j] is whether program i passes ground-truth
test j, U[i, j] whether it passes generated test j, C are the correct programs: those i with G[i, j] for all j.
Each figure is a sum over the problems divided by another:

    acc               |C|                                                      / k
    accumulated       sum of G                                                 / k t
    ut                number of j with U[i, j] for all i in C                  / m        where C is not empty
    ut_accumulated    sum of U[i, j] over i in C                               / |C| m    where C is not empty
    bon_acc           whether b is in C                                        / 1        where m > 0
    bon_accumulated   sum of G[b, j]                                           / t        where m > 0

b is the program of the first n with the most U[i, j] among the first m' generated tests, the first of equals, for
BoN(n, m'). A program or test that is absent from an answer passes nothing and is passed by nothing. Here it counts;
CURE leaves tests that it cannot read, and problems without any, out of its sums. A problem for which no tests are asked
has no weight in the last four.
"""

from __future__ import annotations

from collections.abc import Sequence

from ramerge_eval.tasks.common import Ratio

METRICS = ("acc", "accumulated", "ut", "ut_accumulated", "bon_acc", "bon_accumulated")

Table = Sequence[Sequence[bool]]
"""Programs by tests: whether one passes the other."""


def figures(truth: Table, own_tests: Table, bon: tuple[int, int]) -> dict[str, Ratio]:
    """All metrics of one problem, from which programs pass which tests.

    Args:
        truth: programs by ground-truth tests.
        own_tests: programs by generated tests, of which there may be none.
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
    """The metrics of a problem whose requests all failed: as if all programs had been right and no test."""
    weight = 1.0 if own_tests else 0.0
    whole = (programs, programs * truth, own_tests, programs * own_tests, weight, truth * weight)
    return {name: (0.0, float(each)) for name, each in zip(METRICS, whole, strict=True)}


def best(own_tests: Table, bon: tuple[int, int]) -> int:
    """The program that BoN takes: the first with the most generated tests passed."""
    programs, tests = bon
    counts = [sum(row[:tests]) for row in own_tests[:programs]]
    return counts.index(max(counts))


def _count(table: Table) -> int:
    return sum(map(sum, table))
