"""Promises of the classes of methods to those that ask."""

import numpy as np
import pytest

from ramerge.core.kernels.elementwise import Inputs
from ramerge.core.kernels.piece import Piece
from ramerge.core.methods.base import Layer, Method, RowMethod
from ramerge.core.methods.gram import CombinationMethod, Gram
from ramerge.core.methods.means import MeanMethod
from ramerge.core.methods.moved import RootMeanSquare
from ramerge.core.methods.registry import METHODS
from ramerge.sdk.methods import Parameters

LAYER = Layer("model.layers.0.mlp.up_proj.weight", (6, 4))


@pytest.mark.parametrize("name", list(METHODS))
def test_elementwise_methods_need_single_elements(name: str) -> None:
    method = METHODS[name]
    layer = Layer(LAYER.name, LAYER.shape, rows=(3, 3)) if method.side is not None else LAYER
    unit = method.unit(layer, method.parameters())
    assert unit == 1 if method.elementwise else unit > 1 or isinstance(method, CombinationMethod)
    assert unit % 4 == 0 or not isinstance(method, RowMethod)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if isinstance(method, MeanMethod)])
def test_the_weights_of_means_add_up_to_1(name: str) -> None:
    method, agents = METHODS[name], ("step-1", "step-2", "step-4")
    assert isinstance(method, MeanMethod)
    assert sum(method.weights(method.parameters(), agents)) == pytest.approx(1)


def test_a_method_that_lacks_something_cannot_be_made() -> None:
    class Rows(RowMethod[Parameters, None]):
        name = "rows"

    with pytest.raises(TypeError, match=r"abstract.*prepare.*rows"):
        Rows()
    with pytest.raises(TypeError, match="abstract"):
        Method()  # type: ignore[abstract]


@pytest.mark.parametrize("statistic", [Gram("tensor"), RootMeanSquare("model")])
@pytest.mark.parametrize("importances", [False, True])
def test_sums_count_agents_of_the_piece(statistic: Gram | RootMeanSquare, importances: bool) -> None:
    """With 3 agents, a base and importances there are as many inputs as for 6 agents without."""
    arrays = [np.full(8, value, np.float32) for value in (1, 2, 3, 5, *(1, 1, 1) * importances)]
    words = [array.view(np.uint32) for array in arrays]
    formats, none = ("F32",) * len(words), np.empty((0, 0), np.uint8)
    piece = Piece("w", (8,), 0, 8, Inputs(3, True, importances), formats, words, "F32", words[0].copy(), none)
    counts = statistic.blank(3)
    assert not statistic.count(piece, None, counts)
    result = np.asarray(statistic.finish(counts, 8, None))
    assert result.tolist() == ([1, 2, 4] if result.ndim == 1 else [[8, 16, 32], [16, 32, 64], [32, 64, 128]])
