"""Reads rows of a Parquet file: prompts with their answers, and the items of benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ramerge import EvaluationError, RamergeError
from ramerge.sdk.text import reason, shown


def parquet_rows(path: Path, problem: type[RamergeError] = EvaluationError) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read the rows of a Parquet file in batches; yield each row's place in the file, and its values by column.

    Args:
        problem: the type of error to raise if the file cannot be read, or pyarrow is missing.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise problem(f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or give JSON Lines") from error
    try:
        with path.open("rb") as file:
            batches = ParquetFile(file).iter_batches(batch_size=256)
            rows = (row for batch in batches for row in batch.to_pylist())
            yield from ((f"record {number}", row) for number, row in enumerate(rows, 1))
    except ArrowException as error:
        raise problem(f"{path}: is no Parquet file that pyarrow reads ({shown(error)})") from error
    except OSError as error:
        raise problem(f"{path}: {reason(error)}") from error
