"""The format of SkyRL's deltas: folders `delta-00000001/` with a manifest.

Written and applied by `skyrl/backends/skyrl_train/weight_sync/delta_checkpoint.py` of NovaSky-AI/SkyRL at a9564572.
Each record of the manifest is a tensor: a zstd frame of the xor with the previous tensor, as bytes in a safetensors
file, and the checksum of its new bytes. Version 0 is the model that training started from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ramerge import CheckpointError
from ramerge.core.foundation.dtypes import TORCH_NAMES
from ramerge.core.tensors.header import HeaderEntry, read_header
from ramerge.core.tensors.paths import is_too_long
from ramerge.deltas.trainers import digests
from ramerge.deltas.trainers.chain import TrainerLayout, count_of
from ramerge.deltas.trainers.frames import Frame
from ramerge.deltas.trainers.link import Link
from ramerge.deltas.trainers.slime import DeltaOfPayloads, Payload
from ramerge.deltas.trainers.unpack import format_of
from ramerge.sdk.formats import Opening, read_json
from ramerge.sdk.storage import Location
from ramerge.sdk.tensors import identify
from ramerge.sdk.text import quantity, quoted

MANIFEST = "manifest.json"
_CHECKSUMS = ("xxh3-128", "sha256")
_DTYPES = {name: dtype for dtype, name in TORCH_NAMES.items()}
_MOST_FILES = 10_000


def _find_manifest(folder: Location) -> str | None:
    """Return the folder itself if it has a manifest, and a name or file that is specific to SkyRL."""
    if not (folder / MANIFEST).is_file():
        return None
    ours = LAYOUT.number(folder) is not None or any(folder.glob("delta-rank*.safetensors"))
    return "" if ours else None


def read(folder: Path, opening: Opening) -> Link:
    """Read the small files of SkyRL's delta in a folder."""
    path = folder / MANIFEST
    opening.check_files(folder, [MANIFEST], in_index=False)
    files = identify([path])
    manifest = read_json(path)
    version, before = (count_of(manifest, key, path) for key in ("version", "base_version"))
    records, names = manifest.get("tensors", []), manifest.get("payload_files", [])
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise CheckpointError(f"{path}: tensors must be a list of records")
    if not isinstance(names, list) or len(names) > _MOST_FILES or len(set(map(str, names))) < len(names):
        raise CheckpointError(f"{path}: payload_files must be a list of different names")
    wrong = [
        name
        for name in names
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+\.safetensors", name) or is_too_long(name)
    ]
    if wrong:
        raise CheckpointError(
            f"{path}: {quoted(name)} is no name of a safetensors file in this folder" for name in wrong
        )
    opening.check_files(folder, names, in_index=True)
    files |= identify(folder / name for name in names)
    entries = {(name, entry.name): entry for name in names for entry in read_header(folder / name).entries}
    payloads: dict[str, Payload] = {}
    kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
    problems = []
    for place, record in enumerate(records):
        try:
            name, payload, kind = _parse_record(folder, record, entries)
            if name in payloads:
                raise ValueError(f"{quoted(name)} is there twice")
            payloads[name], kinds[name] = payload, kind
        except ValueError as error:
            problems.append(f"{path}: tensor {place}: {error}")
    payload_places = {(payload.frame.path.name, payload.frame.offset) for payload in payloads.values()}
    if not problems and (len(payload_places) < len(records) or len(records) < len(entries)):
        problems.append(f"{path}: has {quantity(len(records), 'tensor')}, but the files hold {len(entries):,}")
    if problems:
        raise CheckpointError(problems)
    return DeltaOfPayloads(folder, version, before, files, payloads, kinds)


def _parse_record(
    folder: Path, record: Mapping[str, object], entries: Mapping[tuple[str, str], HeaderEntry]
) -> tuple[str, Payload, tuple[str, tuple[int, ...]]]:
    """Return a tensor's name, payload, dtype and shape from SkyRL's manifest."""
    name, dtype, shape = (record.get(key) for key in ("name", "dtype", "shape"))
    if not isinstance(name, str) or not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ValueError(f"its name is {quoted(name)}, its dtype {quoted(dtype)}")
    if not isinstance(shape, list) or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in shape):
        raise ValueError(f"{quoted(name)} has the shape {quoted(shape)}")
    algorithm = record.get("checksum_algorithm", "xxh3-128" if "checksum" in record else "sha256")
    checksum = record.get("checksum", record.get("sha256"))
    if wrong := digests.problem(algorithm, _CHECKSUMS):
        raise ValueError(f"{quoted(name)} {wrong}")
    if not digests.is_written(str(algorithm), checksum):
        raise ValueError(f"{quoted(name)} has no checksum ({algorithm})")
    file, key = record.get("payload_file"), record.get("payload_key")
    entry = entries.get((file, key)) if isinstance(file, str) and isinstance(key, str) else None
    if entry is None or entry.dtype != "U8" or len(entry.shape) != 1:
        raise ValueError(f"{quoted(name)}: {quoted(file)} does not hold its compressed bytes as {quoted(key)}")
    nbytes = entry.end - entry.begin
    if record.get("compressed_num_bytes") != nbytes:
        raise ValueError(
            f"{quoted(name)}: has {nbytes:,} compressed bytes, but the manifest says "
            f"{quoted(record.get('compressed_num_bytes'))}"
        )
    frame = Frame(folder / str(file), entry.begin, nbytes, quoted(name))
    return name, Payload(frame, str(checksum), str(algorithm)), (_DTYPES[dtype], tuple(shape))


def version_of(folder: Location) -> int | None:
    """The SkyRL version of a model, from its folder's name, or from the state file of the engine that patches it."""
    if (number := LAYOUT.number(folder)) is not None:
        return number
    state = folder.parent / ".skyrl_weight_sync" / "state.json"
    return count_of(read_json(state), "version", state) if folder.name == "weights" and state.is_file() else None


# In the folder that engines download to, a digest of the place it came from is added to the name.
LAYOUT = TrainerLayout(
    "skyrl", "deltas of SkyRL", re.compile(r"delta-([0-9]{8,15})(?:_[0-9a-f]{16})?"), _find_manifest, read, version_of
)
FORMAT = format_of(LAYOUT)
