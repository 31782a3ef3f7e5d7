"""mergekit's methods and their parameters, with their counterparts in ramerge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal


def _identity(value: Any) -> Any:
    return value


def _density(density: float) -> float:
    if not 0 <= density <= 1:
        raise ValueError(f"must be from 0 to 1, not {density:g}")
    return density


def _drop_rate(density: float) -> float:
    """Return 1 - density in decimal: 0.3 for 0.7, where the difference of floats is 0.30000000000000004."""
    rate = float(1 - Decimal(repr(_density(density))))
    if rate == 1:
        raise ValueError(f"must be above 0, not {density:g}: nothing would be left of the model")
    return rate


def _angle_parts(parameters: dict[str, object]) -> dict[str, object]:
    """Choose which parts have their own angle in `nuslerp`; mergekit's rows are ramerge's columns."""
    flatten, row_wise = parameters.pop("flatten"), parameters.pop("row_wise")
    return {**parameters, "per": "tensor" if flatten else "column" if row_wise else "row"}


def _refuse_rescaling(rescale: bool) -> bool:
    if rescale:
        raise ValueError("true is not supported for ties: ramerge does not rescale after trimming")
    return rescale


@dataclass(frozen=True)
class MergekitSetting:
    """A parameter of one of mergekit's methods.

    Attributes:
        ours: its name in ramerge; None if it has no effect in ramerge.
        default: mergekit's default; None if there is none, and the parameter is not written.
        each: whether every model may have its own value.
        is_shared: whether it is one value in ramerge nevertheless, because there is only one model.
        convert: converts mergekit's value to ramerge's; raises ValueError with the problem.
    """

    ours: str | None
    kind: type = float
    default: Any = None
    is_required: bool = False
    each: bool = False
    is_shared: bool = False
    convert: Callable[[Any], Any] = _identity


@dataclass(frozen=True)
class MergekitMethod:
    """One of mergekit's methods.

    Attributes:
        constants: parameters of ramerge that give mergekit's results.
        base: the role of the base: the `origin` of task vectors; the origin `if given`; one of the `models`; or the
            `first` of the models.
        only: the number of models that it takes, if that is not checked later.
        join: combines ramerge's parameters, one per setting, into equivalent ones.
        in_bfloat16: the share of elements that differ when mergekit computes in bfloat16, if it is large.
    """

    ours: str
    settings: Mapping[str, MergekitSetting]
    constants: Mapping[str, Any] = field(default_factory=dict)
    base: Literal["origin", "if given", "models", "first"] = "origin"
    only: int | None = None
    join: Callable[[dict[str, Any]], dict[str, Any]] = _identity
    in_bfloat16: str = ""


MERGEKITS_ALONE = ("nearswap",)
"""mergekit's methods that ramerge does not have."""

# the type of mergekit's masks, which changes no result
_MASK = {"int8_mask": MergekitSetting(None, bool, False)}
_WEIGHT = {"weight": MergekitSetting("weights", is_required=True, each=True)}
_ARITHMETIC = _MASK | _WEIGHT | {"lambda": MergekitSetting("scale", default=1.0)}


def _normalize_setting(default: bool) -> dict[str, MergekitSetting]:
    return {"normalize": MergekitSetting("normalize", bool, default)}


_DARE = (
    _ARITHMETIC
    | _normalize_setting(False)
    | {
        "density": MergekitSetting("p", default=1.0, each=True, convert=_drop_rate),
        "rescale": MergekitSetting("rescale", bool, True),
        # in mergekit the seed is only a flag
        "seed": MergekitSetting("seed", int),
    }
)
_SPARSE = _ARITHMETIC | {"density": MergekitSetting("density", default=1.0, each=True, convert=_density)}
_BREADCRUMBS = (
    _SPARSE
    | _normalize_setting(False)
    | {
        "gamma": MergekitSetting("gamma", default=0.01, each=True, convert=_density),
        "rescale": MergekitSetting("rescale", bool, False),
    }
)
_DELLA = _SPARSE | {
    "epsilon": MergekitSetting("epsilon", default=0.15, each=True, convert=_density),
    "rescale": MergekitSetting("rescale", bool, True, convert={True: "l1", False: "none"}.get),
    "seed": MergekitSetting("seed", int),
}
_EPSILON = _MASK | {"epsilon": MergekitSetting("epsilon", default=1e-5)}
_RESCALED = {"r": MergekitSetting("r", default=0.1), "alpha": MergekitSetting("alpha", default=0.2)}

METHODS: Mapping[str, MergekitMethod] = {
    "linear": MergekitMethod("linear", _MASK | _WEIGHT | _normalize_setting(True), base="models"),
    "task_arithmetic": MergekitMethod(
        "task_arithmetic",
        # mergekit accepts density and rescale here, but they have no effect
        _ARITHMETIC
        | _normalize_setting(False)
        | {"density": MergekitSetting(None, default=1.0, each=True), "rescale": MergekitSetting(None, bool, False)},
    ),
    "ties": MergekitMethod(
        "ties",
        _SPARSE | _normalize_setting(True) | {"rescale": MergekitSetting(None, bool, False, convert=_refuse_rescaling)},
        {"trim": "tensor"},
    ),
    "dare_linear": MergekitMethod("dare", _DARE),
    "dare_ties": MergekitMethod("dare_ties", _DARE, {"density": 1.0, "trim": "tensor"}),
    "ram": MergekitMethod("ram", _EPSILON),
    "ramplus_tl": MergekitMethod("ram+", _EPSILON | _RESCALED, {"scope": "tensor"}, in_bfloat16="about a third"),
    "breadcrumbs": MergekitMethod("breadcrumbs", _BREADCRUMBS),
    "breadcrumbs_ties": MergekitMethod("breadcrumbs_ties", _BREADCRUMBS),
    "della": MergekitMethod("della", _DELLA | _normalize_setting(True)),
    "della_linear": MergekitMethod("della_linear", _DELLA | _normalize_setting(False)),
    "sce": MergekitMethod(
        "sce", _MASK | {"select_topk": MergekitSetting("select_topk", default=1.0, convert=_density)}
    ),
    "slerp": MergekitMethod("slerp", {"t": MergekitSetting("t", is_required=True, convert=_density)}, base="first"),
    "nuslerp": MergekitMethod(
        "nuslerp",
        _WEIGHT
        | {
            "nuslerp_flatten": MergekitSetting("flatten", bool, True),
            "nuslerp_row_wise": MergekitSetting("row_wise", bool, False),
        },
        base="if given",
        join=_angle_parts,
    ),
    "multislerp": MergekitMethod(
        "multislerp",
        _WEIGHT
        | {"normalize_weights": MergekitSetting("normalize", bool, True), "eps": MergekitSetting("eps", default=1e-8)},
        base="if given",
    ),
    "karcher": MergekitMethod(
        "karcher",
        {"max_iter": MergekitSetting("max_iter", int, 10), "tol": MergekitSetting("tol", default=1e-5)},
        base="models",
        in_bfloat16="about a third",
    ),
    "model_stock": MergekitMethod(
        "model_stock",
        {"filter_wise": MergekitSetting("per", bool, False, convert={True: "row", False: "tensor"}.get)},
        in_bfloat16="about a quarter",
    ),
    "arcee_fusion": MergekitMethod("arcee_fusion", {}),
    "passthrough": MergekitMethod(
        "passthrough",
        {"scale": MergekitSetting("scale", default=1.0, each=True, is_shared=True)},
        base="models",
        only=1,
    ),
}
