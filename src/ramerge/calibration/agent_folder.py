"""The folder of an agent: its replies, recorded inputs, importances and record, written complete or not at all.

OUT/NAME/replies.jsonl        each prompt and the reply to it, as token ids
OUT/NAME/inputs.safetensors   the recorded inputs
OUT/NAME/inputs.json          which weights they belong to (`formats.recorded`)
OUT/NAME/importance/          importances in a safetensors file: float32, with the model's names and shapes
OUT/NAME/calibration.json     the record: what was done, and the fingerprint of model, prompts and settings
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramerge.calibration.exchanges import REPLIES, Exchange, to_lines
from ramerge.calibration.record import CalibrationRecord
from ramerge.core.formats.recorded import CALIBRATION, IMPORTANCES, MODEL, PLACES
from ramerge.core.formats.safetensors import ONE_FILE
from ramerge.core.foundation.jsontext import RECORD
from ramerge.sdk.outputs import Writer, build_output, lay_out
from ramerge.sdk.records import to_model
from ramerge.sdk.tensors import Tensor
from ramerge.sdk.text import dumped, read_object

if TYPE_CHECKING:
    from ramerge.calibration.inputs import RecordedInputs

_INPUTS_FILE = "inputs.safetensors"
_DIGESTS = "digests.json"
"""SHA-256 digests for the folder of importances, stored in it."""
_FILES = {REPLIES, _INPUTS_FILE, PLACES, MODEL, f"{IMPORTANCES}/{MODEL}", f"{IMPORTANCES}/{ONE_FILE}"}
"""All files that have a digest."""


def read_record(folder: Path) -> CalibrationRecord | None:
    """Read the record in the folder of an agent; None if there is none, or if it has another version."""
    try:
        return to_model(read_object(folder / CALIBRATION, RECORD), CalibrationRecord)
    except (OSError, ValueError):
        return None


def is_whole(folder: Path, record: CalibrationRecord) -> bool:
    """Whether the files in the folder of an agent are unchanged since they were written."""
    try:
        digests = dict(record.digests)
        if record.importances:
            within = read_object(folder / IMPORTANCES / _DIGESTS, RECORD)
            digests |= {f"{IMPORTANCES}/{name}": str(digest) for name, digest in within.items()}
        if not digests or not digests.keys() <= _FILES:  # a name may lead anywhere
            return False
        return all(_digest_of(folder / name) == digest for name, digest in digests.items())
    except (OSError, ValueError):
        return False


def _digest_of(path: Path) -> str:
    """Compute the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def write_folder(
    folder: Path,
    model: Mapping[str, str],
    record: CalibrationRecord,
    replies: Sequence[Exchange],
    inputs: RecordedInputs | None,
    *,
    overwrite: bool,
) -> CalibrationRecord:
    """Write the folder of an agent without its importances; return the record with the files' digests."""
    with build_output(folder, overwrite=overwrite) as staging:
        if inputs is not None:
            tensors: dict[str, Any] = {
                **{name: rows.view(import_module("torch").int16).numpy() for name, rows in inputs.rows.items()},
                **inputs.weights,
            }
            dtypes = {**dict.fromkeys(inputs.rows, "BF16"), **dict.fromkeys(inputs.weights, "F32")}
            entries = [(name, dtypes[name], each.shape, each.nbytes) for name, each in tensors.items()]
            shard = lay_out(_INPUTS_FILE, entries)
            with closing(Writer(staging, [shard])) as writer:
                for name, each in tensors.items():
                    if each.size:
                        writer.write(shard.name, shard.offsets[name], each.reshape(-1).view("uint8"))
                writer.finish()
            staging.write(PLACES, dumped({"inputs": dict(inputs.places), "transposed": list(inputs.transposed)}))
            staging.write(MODEL, dumped({"digests": dict(model)}))
        staging.write(REPLIES, to_lines(replies))
        names = [REPLIES, *([_INPUTS_FILE, PLACES, MODEL] if inputs is not None else [])]
        digests = {name: _digest_of(staging.folder / name) for name in names}
        record = replace(record, digests=digests)
        staging.write(CALIBRATION, record.to_json())
    return record


def write_importances(
    folder: Path, model: Mapping[str, str], tensors: Sequence[Tensor], importances: Mapping[str, Any]
) -> None:
    """Write importances: float32 for each floating-point tensor; 0 for tensors that training never moves."""
    floats = [tensor for tensor in tensors if tensor.is_float]
    shard = lay_out(ONE_FILE, [(tensor.name, "F32", tensor.shape, 4 * tensor.elements) for tensor in floats])
    with build_output(folder, overwrite=True) as staging:
        with closing(Writer(staging, [shard])) as writer:
            for name, start in shard.offsets.items():
                if name in importances and importances[name].numel():
                    values = importances[name].cpu().contiguous().numpy()
                    writer.write(shard.name, start, values.reshape(-1).view("uint8"))
            writer.finish()
        staging.write(MODEL, dumped({"digests": dict(model)}))
        digests = {name: _digest_of(staging.folder / name) for name in (MODEL, ONE_FILE)}
        staging.write(_DIGESTS, dumped(digests))
