"""Writes a merge as a LoRA adapter of PEFT, `ramerge merge --as-adapter`: its sink, then its files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ramerge import Progress, Record, WeightsError
from ramerge.core.engine.card import model_card
from ramerge.core.engine.sidecars import resolved_recipe
from ramerge.core.engine.worker import Sink
from ramerge.core.formats.adapter_model import PREFIX
from ramerge.core.formats.peft import CONFIG
from ramerge.core.foundation.dtypes import itemsize
from ramerge.core.foundation.files import write_all
from ramerge.core.foundation.text import brief_list, without_secrets
from ramerge.core.foundation.threads import map_in_threads, one_blas_thread
from ramerge.core.kernels.convert import convert
from ramerge.core.kernels.element_formats import FORMATS
from ramerge.core.output.staging import StagingDir
from ramerge.core.storage.own_files import BLOCK
from ramerge.deltas.adapter_plan import (
    AdaptedMatrix,
    AdapterPlan,
    planned_rank_for_vllm,
    required_tensors,
    said_of_vllm,
)
from ramerge.deltas.factors import Factors, Matrix, Update, concatenated, decomposed, overall
from ramerge.deltas.spool import Spool, SpooledTensor, SpoolSlots, spool_of
from ramerge.sdk.outputs import OpenOutput, lay_out, records_of
from ramerge.sdk.passes import Passes
from ramerge.sdk.plans import Block, MergePlan
from ramerge.sdk.tensors import Files, Reader, Tensor
from ramerge.sdk.text import dumped, quantity, quoted

WEIGHTS = "adapter_model.safetensors"
_PIECE = 1 << 22
_MUCH = 0.1
"""A larger lost share of the updates' norm causes a warning; the default energy loses at most this much."""


class MergedTensors(Sink):
    """Sink of a merge as an adapter: stores the merged tensors that it needs in a spool, and drops others. Can be
    pickled.
    """

    in_order = False

    def __init__(self, plan: MergePlan, spool: Spool) -> None:
        self._entries = {number: entry for entry, number in enumerate(_tensors_on_disk(plan))}
        self.spool = spool

    def write(self, point: int, tensor: int, part: int, start: int, data: NDArray[np.uint8]) -> None:
        if tensor in self._entries:
            self.spool.put_bytes(self._entries[tensor], start, data)

    def advance(self, block: Block) -> None:
        """Ignore the end of a block: the spool needs no order."""

    def sync(self) -> None:
        self.spool.sync()

    def close(self) -> None:
        self.spool.close()


def _plan_adapter(plan: MergePlan) -> AdapterPlan:
    details = plan.output.details
    assert isinstance(details, AdapterPlan)
    return details


def _tensors_on_disk(plan: MergePlan) -> list[int]:
    return required_tensors(_plan_adapter(plan))


def slots_of(plan: MergePlan) -> SpoolSlots:
    """Return the slots of the spool, for the merged tensors that are compared with the base's."""
    tensors = [plan.tensors[number] for number in _tensors_on_disk(plan)]
    return SpoolSlots([SpooledTensor(one.name, one.dtype, one.base.shape, "whole") for one in tensors])


def write(
    plan: MergePlan, passes: Passes, output: OpenOutput, warnings: Sequence[str], start: float
) -> tuple[Record, ...]:
    spool = spool_of(slots_of(plan), output.spool_folder, output.journal.before_sync)
    with closing(MergedTensors(plan, spool)) as tensors:
        passes.count()
        passes.merge(tensors)
        spool.begin_reading()
        with Files(plan.inputs.files) as files, _SpooledTensors(output.spool_folder) as entries:
            adapter = _AdapterBuilder(plan, passes, spool, files, entries)
            others = adapter.changed_non_matrices()
            adapter.factor()
            adapter.save(others)
            if not entries.entries:
                raise WeightsError("--as-adapter: the merge changes nothing of the base, so there is no adapter")
            size = entries.copy_to(output.staging)
    (record,) = records_of(plan, passes, size, [*warnings, *adapter.warnings], start)
    record = replace(record, adapter=adapter.figures, notes=(*record.notes, adapter.description))
    output.staging.write(CONFIG, dumped(adapter.config))
    output.staging.write(
        "README.md", model_card(plan, plan.points[0], record, _usage_text(plan, adapter.config), adapts=True)
    )
    output.staging.write("ramerge.yaml", resolved_recipe(plan, plan.points[0]).to_yaml())
    output.staging.write("ramerge.json", record.to_json())
    return (record,)


def _usage_text(plan: MergePlan, config: Mapping[str, object]) -> str:
    assert plan.output.target is not None
    base, folder = (dumped(each).strip() for each in (config["base_model_name_or_path"], plan.output.target.name))
    revision = f", revision={dumped(config['revision']).strip()}" if config["revision"] else ""
    return f"""This folder is a LoRA adapter of PEFT:

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained({base}{revision})
model = PeftModel.from_pretrained(base, {folder})
```
"""


class _AdapterBuilder:
    """The tensors of an adapter, made one after another, and sentences about them."""

    def __init__(self, plan: MergePlan, passes: Passes, spool: Spool, files: Files, entries: _SpooledTensors) -> None:
        self._plan, self._adapter = plan, _plan_adapter(plan)
        self._passes, self._spool, self._files, self._entries = passes, spool, files, entries
        self._slots = {number: entry for entry, number in enumerate(_tensors_on_disk(plan))}
        self._factors_by_module: dict[str, Factors] = {}
        self._saved_modules: dict[str, list[str]] = {}
        self.figures: dict[str, dict[str, object]] = {}

    # --- factors -----------------------------------------------------------------------------------------------------

    def factor(self) -> None:
        """Append the factors of each changed matrix to the adapter."""
        matrices, nonfinite_names = self._adapter.matrices, []
        elements, total = 0, sum(self._plan.tensors[matrix.tensor].base.elements for matrix in matrices)
        self._passes.listen(Progress("factoring", elements, total, "parameters"))
        # as many matrices at a time as fit the memory of the workers that merged
        resources = self._plan.resources
        fitting = resources.workers * resources.worker_bytes // max(self._adapter.peak_bytes, 1)
        workers = max(1, min(resources.workers, fitting))
        results = map_in_threads(workers, lambda: Reader(self._files), self._factors, matrices)
        for matrix, factors in zip(matrices, results, strict=True):
            if factors is not None and not factors.is_finite:
                nonfinite_names.append(self._plan.tensors[matrix.tensor].name)
            elif factors is not None:
                transposed = factors.right.T, factors.left.T
                left, right = transposed if matrix.transposed else (factors.left, factors.right)
                embedding = ("lora_embedding_A", "lora_embedding_B")
                ends = embedding if matrix.is_embedding else ("lora_A.weight", "lora_B.weight")
                for end, factor in zip(ends, (right, left), strict=True):
                    self._entries.append(f"{PREFIX}{matrix.module}.{end}", np.ascontiguousarray(factor))
                self._factors_by_module[matrix.module] = factors._replace(left=_NOTHING, right=right[:, :0])
                self.figures[matrix.module] = {"rank": factors.rank, "exact": factors.is_exact, "error": factors.error}
            elements += self._plan.tensors[matrix.tensor].base.elements
            self._passes.listen(Progress("factoring", elements, total, "parameters"))
        if nonfinite_names:
            one, more = ("update of this matrix holds", "it has"), ("updates of these matrices hold", "they have")
            holds, has = one if len(nonfinite_names) == 1 else more
            raise WeightsError(
                f"--as-adapter: allow.non_finite: true does not help: the {holds} NaN or Inf, so {has} no "
                f"factors: {brief_list(list(map(quoted, nonfinite_names)))}; use another checkpoint of that training, "
                "keep the base's with a rule (keep: base), or write the model or a delta (--as-delta)"
            )

    @one_blas_thread()
    def _factors(self, reader: Reader, matrix: AdaptedMatrix) -> Factors | None:
        plan_of_tensor, settings = self._plan.tensors[matrix.tensor], self._adapter.settings
        m, n = plan_of_tensor.base.shape
        if matrix.terms is not None and all(
            self._is_equal(reader, plan_of_tensor.base, copy) for copy in matrix.copies
        ):
            parts = []
            for factor, product in matrix.terms:
                assert product.left is not None  # no term else
                ranks = product.ranks
                with reader.arena.scratch():
                    left = product.left.read(reader, 0, ranks, 0, m, ranks_first=False).astype(np.float64)
                with reader.arena.scratch():
                    right = product.right.read(reader, 0, ranks, 0, n, ranks_first=True).astype(np.float64)
                parts.append((factor * product.scaling, left.reshape(m, ranks), right.reshape(ranks, n)))
            return concatenated(parts, settings)

        def rows(start: int, stop: int) -> Matrix:
            return self._merged_difference(reader, matrix.tensor, start * n, stop * n).reshape(stop - start, n)

        return decomposed(Update((m, n), rows), plan_of_tensor.name, settings)

    @staticmethod
    def _is_equal(reader: Reader, base: Tensor, copy: Tensor) -> bool:
        return all(
            np.array_equal(_read_float64(reader, base, *span), _read_float64(reader, copy, *span))
            for span in _block_bounds(base)
        )

    def _merged_difference(self, reader: Reader, number: int, start: int, stop: int) -> NDArray[np.float64]:
        """Return the merged task vector for some elements of a tensor."""
        with np.errstate(invalid="ignore"):  # Inf less Inf, if allow.non_finite accepts them
            return self._merged_numbers(number, start, stop) - _read_float64(
                reader, self._plan.tensors[number].base, start, stop
            )

    def _merged_numbers(self, number: int, start: int, stop: int) -> NDArray[np.float64]:
        assert self._plan.tensors[number].dtype == "F32"  # so `points_in_float32` plans it
        return self._spool.read_bytes(self._slots[number], start, stop).view(np.float32).astype(np.float64)

    # --- tensors that are no matrices --------------------------------------------------------------------------------

    def changed_non_matrices(self) -> list[str]:
        """Return the names of changed tensors that are not matrices.

        Raises:
            WeightsError: there are such tensors, and `save_modules` is off.
        """
        reader = Reader(self._files)
        changes = [
            number
            for number in self._adapter.others
            if any(
                self._merged_difference(reader, number, *span).any()
                for span in _block_bounds(self._plan.tensors[number].base)
            )
        ]
        names = [self._plan.tensors[number].name for number in changes]
        if changes and not self._adapter.settings.save_modules:
            one, more = ("is a norm, bias or embedding", "it"), ("are norms, biases or embeddings", "them")
            are, them = one if len(names) == 1 else more
            raise WeightsError(
                f"--as-adapter: the merge changes {brief_list(list(map(quoted, names)))}, which {are} and cannot be "
                f"factored; --save-modules saves {them} as modules_to_save, and a rule (keep: base) keeps the base's"
            )
        return names

    def save(self, names: Iterable[str]) -> None:
        """Append the whole modules of these tensors to the adapter."""
        reader = Reader(self._files)
        numbers = {tensor.name: number for number, tensor in enumerate(self._plan.tensors)}
        for name in names:
            module, _, last = name.rpartition(".")
            if module in self._factors_by_module:  # the bias of a layer that has factors
                self._save_whole(reader, numbers[name], f"{PREFIX}{module}.base_layer.{last}")
            elif module not in self._saved_modules:
                self._saved_modules[module] = [
                    f"{module}.{end}" for end in ("weight", "bias") if f"{module}.{end}" in numbers
                ]
                for part in self._saved_modules[module] or [name]:
                    # PEFT expects tied tensors under both names
                    for each in self._adapter.tied_names if part in self._adapter.tied_names else (part,):
                        self._save_whole(reader, numbers[part], f"{PREFIX}{each}")

    def _save_whole(self, reader: Reader, number: int, name: str) -> None:
        tensor = self._plan.tensors[number].base

        def pieces() -> Iterator[NDArray[np.float32]]:
            for span in _block_bounds(tensor):
                numbers = (
                    self._merged_numbers(number, *span)
                    if number in self._slots
                    else _read_float64(reader, tensor, *span)
                )
                yield numbers.astype(np.float32)

        self._entries.append_all(name, tensor.shape, pieces())

    # --- messages ----------------------------------------------------------------------------------------------------

    @property
    def config(self) -> dict[str, object]:
        """`adapter_config.json`. Its alpha / rank is 1 for every product, also for programs that ignore patterns."""
        ranks = {module: factors.rank for module, factors in self._factors_by_module.items()}
        rank = max(ranks.values(), default=1)
        others = {f"^{module}": own for module, own in ranks.items() if own != rank}
        config, base = self._adapter.config, self._plan.inputs.base
        # published files do not show paths of this machine
        folder = base.folder.resolve() if ".." in str(base.folder) else base.folder
        place = folder.name if getattr(self._plan.output.target, "is_published", False) else folder
        is_causal = any(str(name).endswith("ForCausalLM") for name in config.get("architectures") or ())
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM" if is_causal else None,
            "base_model_name_or_path": without_secrets(base.hub_id or str(place)),
            "revision": base.revision if base.hub_id else None,
            "inference_mode": True,
            "r": rank,
            "lora_alpha": rank,
            "rank_pattern": others,
            "alpha_pattern": others,
            "use_rslora": False,
            "use_dora": False,
            "bias": "none",
            "lora_dropout": 0.0,
            "init_lora_weights": True,
            "fan_in_fan_out": any(matrix.transposed for matrix in self._adapter.matrices),
            "target_modules": sorted(ranks) or None,
            "modules_to_save": sorted(self._saved_modules) or None,
            "ensure_weight_tying": any(
                name.rpartition(".")[0] in self._saved_modules for name in self._adapter.tied_names
            ),
        }

    @property
    def description(self) -> str:
        """Return the ranks of the adapter and its error, in one line."""
        factors_by_module = self._factors_by_module
        ranks = [each.rank for each in factors_by_module.values()]
        low, high = min(ranks, default=0), max(ranks, default=0)
        of = f"rank {low}" if low == high else f"ranks {low} to {high}"
        text = f"written as a LoRA adapter of {of} on {quantity(len(factors_by_module), 'matrix', 'matrices')}"
        text += f" and {len(self._saved_modules):,} modules_to_save" if self._saved_modules else ""
        if all(each.is_exact for each in factors_by_module.values()):
            text += "; it is the exact sum, up to the rounding of its float32 factors"
        elif not self.warnings:
            text += f"; it {self._loss_text}"
        adapter = self._adapter
        if planned_rank_for_vllm(adapter.settings, adapter.matrices, adapter.others) is None:
            text += f"; {said_of_vllm(high, saves=bool(self._saved_modules))}"
        return text  # else the plan has said how vLLM serves it

    @property
    def warnings(self) -> list[str]:
        """Return a warning if the factors lack much of the updates."""
        if overall(list(self._factors_by_module.values())) <= _MUCH:
            return []
        advice = "give a larger --rank, or --energy in place of it, or write the model or a delta (--as-delta)"
        return [f"--as-adapter: the adapter {self._loss_text}; {advice}"]

    @property
    def _loss_text(self) -> str:
        errors = {module: each.error for module, each in self._factors_by_module.items() if not each.is_exact}
        worst = max(errors, key=errors.__getitem__)
        share = overall(list(self._factors_by_module.values()))
        return f"lacks {share:.2%} of the updates' norm, most in {quoted(worst)}: {errors[worst]:.2%}"


_NOTHING = np.empty((0, 0), np.float32)


def _block_bounds(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """Yield the bounds of a tensor's blocks of elements."""
    return ((start, min(start + BLOCK, tensor.elements)) for start in range(0, tensor.elements, BLOCK))


def _read_float64(reader: Reader, tensor: Tensor, start: int, stop: int) -> NDArray[np.float64]:
    """Read elements of a tensor as float64."""
    width, count = itemsize(tensor.dtype), stop - start
    data = np.zeros(-(-count * width // 4) * 4, np.uint8)
    reader.read(tensor, start, stop, data[: count * width])
    wide = np.empty(count, np.uint64)
    convert(tensor.dtype, data.view(FORMATS[tensor.dtype].word), "F64", wide, count)
    return wide.view(np.float64)


class _SpooledTensors:
    """The tensors of the adapter's file, in a temporary file, because their ranks are unknown until they are made.

    Attributes:
        entries: names, shapes and sizes in bytes; all tensors are float32.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "factors"
        self.entries: list[tuple[str, str, Sequence[int], int]] = []

    def __enter__(self) -> _SpooledTensors:
        self._file = self._path.open("w+b")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def append(self, name: str, values: NDArray[np.float32]) -> None:
        self.append_all(name, values.shape, [values])

    def append_all(self, name: str, shape: Sequence[int], pieces: Iterable[NDArray[np.float32]]) -> None:
        size = 0
        for piece in pieces:
            self._file.write(piece.data)
            size += piece.nbytes
        self.entries.append((name, "F32", list(shape), size))

    def copy_to(self, staging: StagingDir) -> int:
        """Write the file of the adapter; return its size in bytes."""
        shard = lay_out(WEIGHTS, self.entries)
        descriptor = staging.create(WEIGHTS)
        try:
            write_all(descriptor, memoryview(shard.header), 0)
            position = len(shard.header)
            self._file.seek(0)
            while piece := self._file.read(_PIECE):
                write_all(descriptor, memoryview(piece), position)
                position += len(piece)
            staging.finish(WEIGHTS, descriptor, position)
        finally:
            os.close(descriptor)
        return position
