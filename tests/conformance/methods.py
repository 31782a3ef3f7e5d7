"""A row for each method: parameters to try, and the reference that they must agree with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import strategies as st

from tests import reference
from tests.tiers import some

NUMBERS = st.sampled_from([1.0, 0.3, 0.7, -0.5, 0.0])
FRACTIONS = st.sampled_from([0.2, 0.5, 0.05, 1.0, 0.0])
RATES = st.sampled_from([0.5, 0.1, 0.9, 0.0])


@dataclass(frozen=True)
class Row:
    """How a method is tested.

    Attributes:
        reference: `(base, agents, dtype, real, **parameters)`, and importances for methods that take them.
        parameters: strategies by name; those in `each` may be drawn for every agent.
        each: names of parameters that may be given by agent.
        exact: whether the bytes must be the reference's; else numbers must be close.
    """

    reference: Callable[..., Any]
    parameters: Mapping[str, st.SearchStrategy[Any]]
    each: tuple[str, ...] = ()
    exact: bool = True


# One method of each kind: counted first, with thresholds, of one element, drawn, weighed by importances, of whole
# tensors, and of matrices. `make test` tries these with everything, and the other methods once.
REPRESENTATIVES = ("ram+", "ties", "linear", "dare", "fisher", "slerp", "tsvm")


def by_tier(methods: Iterable[str]) -> list[Any]:
    """The methods as parameters of a test, of which `make test` takes the representatives only."""
    return some(methods, fast=REPRESENTATIVES)


def one_of_each_kind(methods: Iterable[str]) -> list[Any]:
    """The methods as parameters of a test of code that does not know them; all but the representatives are nightly."""
    return some(methods, fast=REPRESENTATIVES, full=())


_EPSILON = st.sampled_from([1e-5, 0.0, 1e-3, {"relative": 0.5}])
_RAM = {
    "epsilon": _EPSILON,
    "shared": st.sampled_from(["mean", "mean", "agree_max", "ties"]),
    "density": st.sampled_from([0.1, 0.5, 1.0]),
    "trim": st.sampled_from(["tensor", "layer", "model"]),
}
_PLUS_S = {**_RAM, "r": st.sampled_from([0.0, 0.1, 0.37]), "scope": st.sampled_from(["model", "layer", "tensor"])}
_SUM = {"scale": NUMBERS, "weights": NUMBERS, "normalize": st.booleans()}
_TIES = {**_SUM, "density": FRACTIONS, "trim": st.sampled_from(["model", "tensor"])}
_SPECTRAL = {"scale": NUMBERS, "weights": NUMBERS}
_CORE = {"rank": st.sampled_from([16, 1, 3]), "power": st.sampled_from([0.75, 0.0, 1.0])}
_DROP = {"p": RATES, "seed": st.integers(-3, 3), "rescale": st.booleans()}
_CRUMBS = {**_SUM, "density": FRACTIONS, "gamma": st.sampled_from([0.01, 0.2, 0.0, 1.0])}
_DELLA = {
    **_SUM,
    "density": st.sampled_from([0.5, 0.2, 1.0, 0.0]),
    "epsilon": st.sampled_from([0.15, 0.0, 0.4]),
    "rescale": st.sampled_from(["l1", "probability", "none"]),
    "seed": st.integers(-3, 3),
}

ROWS: dict[str, Row] = {
    "ram": Row(partial(reference.ram_family, method="ram"), _RAM),
    "ram+": Row(partial(reference.ram_family, method="ram+"), {**_PLUS_S, "alpha": st.sampled_from([2.0, 0.0, 0.3])}),
    "ram+s": Row(partial(reference.ram_family, method="ram+s"), _PLUS_S),
    "task_arithmetic": Row(reference.task_arithmetic, _SUM, each=("weights",)),
    "linear": Row(reference.linear, {"weights": NUMBERS, "normalize": st.booleans()}, each=("weights",)),
    "uniform": Row(reference.uniform, {}),
    "ema": Row(reference.ema, {"decay": st.sampled_from([0.9, 0.0, 0.5])}),
    "scored": Row(reference.scored, {"temperature": st.sampled_from([0.01, 1.0])}),
    "extrapolate": Row(reference.extrapolate, {"alpha": st.sampled_from([0.3, 0.0, -0.5, 2.0])}),
    "relex": Row(reference.relex, {"at": st.sampled_from([None, 2.0, 30.0, -1.0])}, exact=False),
    "fisher": Row(reference.fisher, {"scale": NUMBERS, "weights": st.sampled_from([1.0, 0.5])}, each=("weights",)),
    "regmean": Row(
        reference.regmean,
        {
            "towards": st.sampled_from(["sum", "mean", "zero", "ties", "ram+", "tsvm"]),
            "share": st.sampled_from([1.0, 0.5, 0.0]),
            "ridge": st.sampled_from([0.01, 1.0, 30.0]),
            "shrink": st.sampled_from([1.0, 0.9, 0.0]),
        },
        exact=False,
    ),
    "aim": Row(reference.aim, {"scale": NUMBERS, "keep": st.sampled_from([0.2, 0.0, 1.0])}, exact=False),
    "svc": Row(
        reference.svc,
        {"scale": NUMBERS, "alpha": st.sampled_from([1.0, 0.1]), "start": st.sampled_from(["sum", "mean", "ram+"])},
        exact=False,
    ),
    "ties": Row(reference.ties, _TIES, each=("weights", "density")),
    "dare": Row(reference.dare, {**_SUM, **_DROP}, each=("weights", "p")),
    "isolate": Row(
        reference.isolate,
        {
            "agent": st.sampled_from(["a0", None]),
            "region": st.sampled_from(["unique", "shared", "active"]),
            "scale": NUMBERS,
            "epsilon": _EPSILON,
        },
    ),
    "passthrough": Row(reference.passthrough, {"agent": st.sampled_from(["a0", None]), "scale": NUMBERS}),
    "della": Row(reference.della, _DELLA, each=("weights", "density", "epsilon"), exact=False),
    "della_linear": Row(reference.della_linear, _DELLA, each=("weights", "density", "epsilon"), exact=False),
    "breadcrumbs": Row(reference.breadcrumbs, _CRUMBS, each=("weights", "density", "gamma")),
    "breadcrumbs_ties": Row(reference.breadcrumbs_ties, _CRUMBS, each=("weights", "density", "gamma")),
    "sce": Row(reference.sce, {"select_topk": FRACTIONS}, exact=False),
    "arcee_fusion": Row(reference.arcee_fusion, {}, exact=False),
    "slerp": Row(reference.slerp, {"t": st.sampled_from([0.5, 0.0, 0.3, 1.0])}, exact=False),
    "nuslerp": Row(
        reference.nuslerp,
        {"weights": NUMBERS, "per": st.sampled_from(["tensor", "row", "column"])},
        each=("weights",),
        exact=False,
    ),
    "multislerp": Row(
        reference.multislerp,
        {"weights": st.sampled_from([1.0, 0.3, 0.7]), "normalize": st.booleans()},
        each=("weights",),
        exact=False,
    ),
    "karcher": Row(
        reference.karcher, {"max_iter": st.sampled_from([10, 0, 1]), "tol": st.sampled_from([1e-5, 1e-3])}, exact=False
    ),
    "model_stock": Row(reference.model_stock, {"per": st.sampled_from(["tensor", "row"])}, exact=False),
    "wudi": Row(
        reference.wudi,
        {
            "proximity": st.sampled_from([1e-10, 1e-5, 1e-2]),
            "scale": NUMBERS,
        },
        exact=False,
    ),
    "tsvm": Row(reference.tsvm, _SPECTRAL, each=("weights",), exact=False),
    "iso_c": Row(reference.iso_c, _SPECTRAL, each=("weights",), exact=False),
    "iso_cts": Row(
        reference.iso_cts,
        {**_SPECTRAL, "common_space_fraction": st.sampled_from([0.8, 0.0, 1.0])},
        each=("weights",),
        exact=False,
    ),
    "core": Row(reference.core, {**_CORE, "scale": NUMBERS}, exact=False),
    "core+": Row(
        partial(reference.core, time=1.0),
        {**_CORE, "scale": NUMBERS, "time": st.sampled_from([1.0, 0.1, 30.0])},
        exact=False,
    ),
    "swudi": Row(
        reference.swudi,
        {
            "scale": NUMBERS,
            "filter_type": st.sampled_from(["exponential", "none"]),
            "exp_time": st.sampled_from([300.0, 0.0, 3.0]),
            "truncate_rank_ratio": st.sampled_from([0.65, 0.1, 1.0]),
            "init_mode": st.sampled_from(["sum", "mean", "zero", "core"]),
        },
        exact=False,
    ),
    "aswudi": Row(
        reference.aswudi,
        {
            "scale": NUMBERS,
            "auto_rank_method": st.sampled_from(["participation_sqrt", "entropy", "gavish_donoho", "cumvar_0.9"]),
            "rank_scale": st.sampled_from([1.0, 0.5]),
            "init_mode": st.sampled_from(["sum", "mean", "zero", "core"]),
        },
        exact=False,
    ),
    "resmerge": Row(
        reference.resmerge,
        {
            "scale": NUMBERS,
            "rank_topk": st.sampled_from([1, 2, 100]),
            "src_beta_max": st.sampled_from([1.0, 0.8]),
            "head_ratio_budget": st.sampled_from([0.2, 0.0]),
        },
        exact=False,
    ),
    "psa": Row(
        reference.psa, {**_SPECTRAL, "energy": st.sampled_from([0.9, 0.5, 1.0])}, each=("weights",), exact=False
    ),
    "knots": Row(
        reference.knots, {**_SPECTRAL, "density": st.sampled_from([1.0, 0.4, 0.0])}, each=("weights",), exact=False
    ),
    "dare_ties": Row(reference.dare_ties, {**_TIES, **_DROP}, each=("weights", "density", "p")),
}
