"""A merge as a folder of NumPy files in float32, which the format of this package reads: `ramerge merge --as-npy`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ramerge import Record
from ramerge.sdk.outputs import OpenOutput, OutputKind, OutputSpec, Shard, Writer, fingerprint_of, records_of
from ramerge.sdk.passes import Passes
from ramerge.sdk.plans import Block, MergePlan, OpenedInputs, PlanFinding, TensorPlan, requirements
from ramerge.sdk.recipes import Point
from ramerge.sdk.text import dumped


@dataclass(frozen=True)
class AsNumpy(OutputKind):
    """A file `NAME.npy` for each tensor, and the base's `config.json`; its details are that config."""

    help: ClassVar[str] = "Write a folder of NumPy files in float32."
    has_companions: ClassVar[bool] = False
    flag: ClassVar[str] = "--as-npy"
    requires: ClassVar[tuple[requirements.Requirement, ...]] = (requirements.one_merge,)

    def points(self, points: Sequence[Point]) -> Sequence[Point]:
        """The merges in float32, because NumPy has no bfloat16."""
        return [replace(each, recipe=each.recipe.model_copy(update={"dtype": "float32"})) for each in points]

    def details(
        self, points: Sequence[Point], inputs: OpenedInputs, tensors: Sequence[TensorPlan]
    ) -> tuple[Any, Sequence[PlanFinding]]:
        """The base's `config.json`."""
        return inputs.opened_base.config if inputs.opened_base is not None else {}, ()

    def spec(self, plan: MergePlan) -> OutputSpec:
        """One file a tensor; the journal keeps what is complete of them if the run is stopped."""
        assert plan.output.target is not None
        sizes = {file.name: file.file_bytes for file in map(file_of, plan.tensors)}
        return OutputSpec(plan.output.target, plan.output.overwrite, fingerprint_of(plan), plan.bytes_read, sizes)

    def write(
        self, plan: MergePlan, passes: Passes, output: OpenOutput, seen: Sequence[str], began: float
    ) -> tuple[Record, ...]:
        """Merge block by block into the files."""
        files = [file_of(tensor) for tensor in plan.tensors]
        with closing(NumpyFiles(plan, Writer(output.staging, files, output.journal.before_sync))) as sink:
            passes.count()
            passes.merge(sink)
            sink.finish()
        (record,) = records_of(plan, passes, sum(file.file_bytes for file in files), seen, began)
        output.staging.write("config.json", dumped(plan.output.details))
        output.staging.write("ramerge.json", record.to_json())
        return (record,)


def file_of(tensor: TensorPlan) -> Shard:
    """The file of a tensor: NumPy's header, and after it the elements."""
    header = io.BytesIO()
    dtype = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8"}[tensor.dtype]
    form = {"descr": dtype, "fortran_order": False, "shape": tuple(tensor.base.shape)}
    np.lib.format.write_array_header_1_0(header, form)
    size = len(header.getvalue())
    return Shard(f"{tensor.name}.npy", header.getvalue(), {tensor.name: size}, size + tensor.bytes_written)


class NumpyFiles:
    """Takes merged bytes, in any order and from any thread."""

    in_order = False

    def __init__(self, plan: MergePlan, writer: Writer) -> None:
        self._files = [file_of(tensor) for tensor in plan.tensors]
        self._plan, self._writer = plan, writer

    def write(self, point: int, tensor: int, part: int, start: int, data: NDArray[np.uint8]) -> None:
        """Bytes of a part of a tensor, from `start` on."""
        file, planned = self._files[tensor], self._plan.tensors[tensor]
        self._writer.write(file.name, file.offsets[planned.name] + planned.parts[part].begin + start, data)

    def advance(self, block: Block) -> None:
        """Nothing to do: blocks come in any order."""

    def sync(self) -> None:
        """Bring what was written to the disk."""
        self._writer.sync()

    def finish(self) -> None:
        """Wait until all of it is there."""
        self._writer.finish()

    def close(self) -> None:
        """Close the files."""
        self._writer.close()


NPY = AsNumpy()
