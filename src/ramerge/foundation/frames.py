"""Tables as pandas data frames, which only those install who ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ramerge.foundation.errors import RecipeError


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas data frame.

    Raises:
        RecipeError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise RecipeError("data frames need pandas: pip install pandas") from error
    return pd.DataFrame(rows)
