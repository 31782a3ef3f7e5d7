"""How much each parameter matters to what an agent says: the diagonal of its Fisher information.

Source: Matena and Raffel, Merging Models with Fisher-Weighted Averaging, 2022, arXiv 2111.09832, section 3.

    F = mean over examples x of (d log p(y | x) / d theta)^2        element by element, one gradient an example

`log p(y | x)` is the sum over the tokens of `y`. Needs torch and transformers, which `estimate` imports.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from ramerge.calibration import jsonl
from ramerge.calibration.layout import shards_of, write_index, write_tensor
from ramerge.calibration.record import ExampleResult, FisherRecord, FisherSettings
from ramerge.deltas.rebuild import write_agent
from ramerge.formats.open import open_checkpoint, open_stacked
from ramerge.formats.sidecars import companion_files
from ramerge.foundation.dtypes import FLOATS, INTEGERS, full_dtype
from ramerge.foundation.errors import CheckpointError, PlanError, RecipeError
from ramerge.foundation.extras import install
from ramerge.foundation.limits import ResourceLimits, read_limits
from ramerge.foundation.progress import Listener, Progress, silence
from ramerge.foundation.text import without_secrets
from ramerge.foundation.version import __version__
from ramerge.options import Options
from ramerge.output.build import build_output, tidy
from ramerge.output.targets import path_of, problems_of
from ramerge.output.write import Shard, Writer
from ramerge.storage.models import FoundModel, on_this_machine, resolve
from ramerge.tensors.checkpoint import Checkpoint
from ramerge.tensors.identity import check_unchanged, identify

_SETTINGS, _OPTIONS = FisherSettings(), Options()


def fisher(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    settings: FisherSettings = _SETTINGS,
    options: Options = _OPTIONS,
    on_progress: Listener | None = None,
) -> FisherRecord:
    """Estimate the diagonal Fisher information of a causal language model and write it as a checkpoint.

    Each example contributes the square of its own gradient, taken and summed in float32; dropout is off. What counts as
    a label is in `FisherSettings`. Memory: the model, one float32 number a parameter, the gradient of one parameter,
    and the activations of one example. On a CPU the same seed, data and threads give the same bytes.

    Args:
        model: a folder, or a hub id; code of a model is never run. `BASE+DELTA` is written next to `out` meanwhile.
        data: JSON lines in UTF-8; see `jsonl.read`. The first `examples` lines are used, and no other is read.
        out: the folder to make: float32 safetensors with names and shapes of the model's floating-point tensors, in
            files of at most 5 GB, and `fisher.json`. Buffers that are not trained are zero.
        settings: examples, labels, device and so on.
        options: `overwrite`, `allow_outside_links`, `threads` (of torch; default: its own) and `max_memory` apply. What
            the examples' activations take is not known beforehand: `max_memory` only refuses what certainly needs more.
        on_progress: called with the number of examples done, as `fisher`.

    Returns:
        The record, which is also in `fisher.json`.

    Raises:
        RecipeError: an argument is wrong, torch or transformers is missing, or the device is not there.
        InputError: the data cannot be read or lines of it are bad; every one that would be used.
        CheckpointError: the model cannot be read or used as it is stored, or an input has changed meanwhile.
        PlanError: `out` cannot be written there, or the memory does not suffice.
        WeightsError: a likelihood or a gradient is NaN or Inf.
        OutputError: the output cannot be written.

    Example:
        >>> settings = ramerge.FisherSettings(examples=64)
        >>> ramerge.fisher("coder", "examples.jsonl", "coder-fisher", settings=settings).examples  # doctest: +SKIP
        64
    """
    settings = replace(settings, dtype=full_dtype(settings.dtype))
    if problems := settings.problems():
        raise RecipeError(problems)
    _require_extras()
    source, folder = path_of(data, "a data file"), path_of(out)
    limits = read_limits(options.threads, options.max_memory)
    found = resolve(os.fspath(model), Path.cwd())
    if problems := problems_of(folder, [*found.folders, source], 0, overwrite=options.overwrite):
        tidy(folder)
        raise PlanError(problems)
    with _one_model(found, folder) as directory:
        request = _Request(without_secrets(str(model)), str(data), source, folder, settings, options, limits)
        return _written(request, directory, on_progress or silence)


@dataclass(frozen=True)
class _Request:
    model: str
    data: str
    source: Path
    out: Path
    settings: FisherSettings
    options: Options
    limits: ResourceLimits

    @property
    def is_sampled(self) -> bool:
        return self.settings.labels == "sampled"


def _written(request: _Request, directory: Path, listen: Listener) -> FisherRecord:
    began = time.monotonic()
    identities = identify([request.source])
    lines = jsonl.check(request.source, request.settings.examples, sampled=request.is_sampled)
    checkpoint = open_checkpoint(directory, allow_outside_links=request.options.allow_outside_links)
    _refuse_quantized(checkpoint)
    companions = companion_files((directory,), allow_outside_links=True)
    identities |= {**identify(companions.values()), **checkpoint.files}
    used = _fitted(request.settings, lines, checkpoint)
    shards = shards_of(checkpoint)
    with build_output(request.out, overwrite=request.options.overwrite) as staging:
        # made before the work and at their final size, so that a full disk shows now
        with closing(Writer(staging, shards)) as writer:
            result = _estimated(request, used, checkpoint, writer, shards, listen)
            writer.finish()
        write_index(staging, shards, checkpoint)
        record = FisherRecord(
            ramerge_version=__version__,
            model=request.model,
            data=request.data,
            examples=used.examples,
            examples_requested=request.settings.examples,
            labels=used.labels,
            max_length=used.max_length,
            dtype=used.dtype,
            seed=used.seed,
            tensors=sum(len(shard.offsets) for shard in shards),
            seconds=round(time.monotonic() - began, 3),
            **vars(result) | {"notes": (*_notes(request.settings, used, result), *result.notes)},
        )
        staging.write("fisher.json", record.to_json())
        check_unchanged(identities)
    return record


def _estimated(
    request: _Request,
    used: FisherSettings,
    checkpoint: Checkpoint,
    writer: Writer,
    shards: Sequence[Shard],
    listen: Listener,
) -> ExampleResult:
    worker = import_module("ramerge.calibration.worker")  # torch takes seconds
    result: ExampleResult = worker.run(
        checkpoint,
        request.data,
        partial(jsonl.read, request.source, used.examples, sampled=request.is_sampled),
        used,
        request.limits,
        lambda done: listen(Progress("fisher", done, used.examples, "examples")),
        partial(write_tensor, writer, {name: shard for shard in shards for name in shard.offsets}),
    )
    return result


@contextmanager
def _one_model(found: FoundModel, out: Path) -> Iterator[Path]:
    """The folder of a model. Of a model with deltas, a folder next to `out` that holds it until the block ends."""
    if not found.adapters:
        yield on_this_machine(found)
        return
    opened = open_stacked(found.folders)
    if opened.delta is None:
        raise RecipeError(f"{found.written}: is a model with adapters; write it as one first, with ramerge convert")
    with TemporaryDirectory(prefix=f".{out.name}.", suffix=".model", dir=out.resolve().parent) as parent:
        place = Path(parent) / "model"
        with build_output(place, overwrite=False) as staging:
            write_agent(opened, staging)
        yield place


def _require_extras() -> None:
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise RecipeError(
            f"the Fisher information needs libraries that are not here ({', '.join(missing)}): {install('torch')}"
        )


def _refuse_quantized(checkpoint: Checkpoint) -> None:
    declared = checkpoint.quantized.title if checkpoint.quantized else None
    unknown = sorted({tensor.dtype for tensor in checkpoint.tensors.values()} - FLOATS - INTEGERS)
    if declared or unknown:
        what = declared or f"tensors of dtype {', '.join(unknown)}"
        raise CheckpointError(
            f"{checkpoint.directory}: quantized weights ({what}) have no gradients; use the unquantized checkpoint"
        )
    if not any(tensor.is_float for tensor in checkpoint.tensors.values()):
        raise CheckpointError(f"{checkpoint.directory}: holds no floating-point tensors")


def _fitted(settings: FisherSettings, lines: int, checkpoint: Checkpoint) -> FisherSettings:
    """The settings that data and model allow for."""
    positions = checkpoint.config.get("max_position_embeddings", checkpoint.config.get("n_positions"))
    limit = positions if isinstance(positions, int) and positions >= 2 else settings.max_length
    return replace(settings, examples=lines, max_length=min(settings.max_length, limit))


def _notes(asked: FisherSettings, used: FisherSettings, result: ExampleResult) -> Iterator[str]:
    if used.examples < asked.examples:
        yield f"the data has {used.examples:,} lines, fewer than the {asked.examples:,} examples requested"
    if used.max_length < asked.max_length and result.truncated:
        yield (
            f"{result.truncated:,} examples were cut because the model has {used.max_length:,} positions, fewer than "
            f"max_length {asked.max_length:,}"
        )
