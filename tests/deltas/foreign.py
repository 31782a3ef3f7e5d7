"""Deltas as trainers write them, in numpy: written after the projects' sources, and not with the code under test.

slime     THUDM/slime at 624b824a, slime/utils/disk_delta.py (overwrite_encode, checksum) and
          slime/backends/megatron_utils/update_weight/update_weight_from_disk_delta.py (_encode_delta,
          _write_delta_files); update_weight_from_distributed/delta.py of radixark/miles at 31f1ca96 writes the same
skyrl     NovaSky-AI/SkyRL at a9564572, skyrl/backends/skyrl_train/weight_sync/delta_checkpoint.py (DeltaTensorRecord,
          DeltaManifest, create_delta_files, publish) and delta_payload.py
grail     one-covenant/grail at 54d6342, grail/infrastructure/sparse_codec.py (encode_sparse_delta_v2, _v3, _v3_1),
          delta_checkpoint.py (compute_sparse_delta, compute_weights_hash; sha256 as before fe5e1a4) and
          grail/trainer/checkpoint_publisher.py (upload_delta)
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import xxhash
import zstandard

from tests.reference import NUMBERS, Stored

Tensors = Mapping[str, Stored]

CHECKSUMS: dict[str, Callable[[bytes], str]] = {
    "xxh3-128": lambda data: xxhash.xxh3_128(data).hexdigest(),
    "adler32": lambda data: f"{zlib.adler32(data):08x}",
    "sha256": lambda data: hashlib.sha256(data).hexdigest(),
}
TORCH = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64", "I64": "int64", "U8": "uint8"}


def packed(data: bytes) -> np.ndarray:
    """A zstd frame as a tensor."""
    return np.frombuffer(zstandard.ZstdCompressor(level=1).compress(data), np.uint8)


def _bytes(tensor: Stored) -> np.ndarray:
    return np.frombuffer(tensor.bits.tobytes(), np.uint8)


def slime_payload(old: Stored, new: Stored, encoding: str) -> bytes | None:
    """What is to be done to a tensor's bytes; None if nothing is."""
    before, after = _bytes(old), _bytes(new)
    mask = before != after
    if not mask.any():
        return None
    if encoding == "xor":
        return (before ^ after).tobytes()
    positions = np.flatnonzero(mask).astype("<u4")
    return np.array([positions.size], "<u4").tobytes() + positions.tobytes() + after[mask].tobytes()


def write_slime(
    parent: Path,
    version: int,
    before: Tensors,
    after: Tensors,
    *,
    encoding: str = "xor",
    checksum: str = "xxh3-128",
    ranks: int = 2,
    twice: Sequence[str] = (),
) -> Path:
    """A version of slime or miles. `twice` are written by the last rank too, as slime does with tied embeddings."""
    folder = parent / f"weight_v{version:06d}"
    folder.mkdir(parents=True)
    payloads = {name: slime_payload(before[name], after[name], encoding) for name in after}
    changed = {name: packed(payload) for name, payload in payloads.items() if payload is not None}
    deltas = [
        {name: changed[name] for place, name in enumerate(changed) if place % ranks == rank} for rank in range(ranks)
    ]
    deltas[-1] |= {name: changed[name] for name in twice}
    deltas = [delta for delta in deltas if delta]
    weight_map = {}
    for place, delta in enumerate(deltas):
        file = f"model-{place:05d}-of-{len(deltas):05d}.safetensors"
        digests = {name: CHECKSUMS[checksum](after[name].bits.tobytes()) for name in delta}
        (folder / file).write_bytes(safetensors.numpy.save(delta, metadata=digests))
        weight_map |= dict.fromkeys(delta, file)
    index = {
        "metadata": {
            "version": f"{version:06d}",
            "base_version": f"{version - 1:06d}",
            "delta_encoding": encoding,
            "compression_format": "zstd",
            "checksum_format": checksum,
        },
        "weight_map": weight_map,
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_skyrl(
    parent: Path, version: int, before: Tensors, after: Tensors, *, checksum: str = "xxh3-128", per_file: int = 2
) -> Path:
    """A version of SkyRL, with so many tensors a file. Checksums of sha256 are written as they were before xxh3-128."""
    folder = parent / f"delta-{version:08d}"
    folder.mkdir(parents=True)
    payloads = {name: slime_payload(before[name], after[name], "xor") for name in after}
    changed = {name: packed(payload) for name, payload in payloads.items() if payload is not None}
    names, records, files = list(changed), [], []
    for first in range(0, len(names), per_file):
        file = f"delta-rank00000-file{len(files):06d}.safetensors"
        part = {name: changed[name] for name in names[first : first + per_file]}
        (folder / file).write_bytes(safetensors.numpy.save(part))
        files.append(file)
        for name, frame in part.items():
            found = CHECKSUMS[checksum](after[name].bits.tobytes())
            known = {"sha256": found} if checksum == "sha256" else {"checksum": found, "checksum_algorithm": checksum}
            records.append(
                {
                    "name": name,
                    "dtype": TORCH[after[name].dtype],
                    "shape": list(after[name].bits.shape),
                    "uncompressed_num_bytes": after[name].bits.nbytes,
                    "compressed_num_bytes": frame.size,
                    "payload_file": file,
                    "payload_key": name,
                    **known,
                }
            )
    manifest = {
        "version": version,
        "base_version": version - 1,
        "tensors": records,
        "total_uncompressed_num_bytes": sum(record["uncompressed_num_bytes"] for record in records),
        "total_compressed_num_bytes": sum(record["compressed_num_bytes"] for record in records),
        "payload_files": files,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def grail_hash(tensors: Tensors, *, old: bool = False) -> str:
    """`compute_weights_hash`, and that before fe5e1a4."""
    hasher = hashlib.sha256() if old else xxhash.xxh3_128()
    for name in sorted(tensors):
        tensor = tensors[name]
        if old:
            hasher.update(f"{name}torch.{TORCH[tensor.dtype]}{tensor.bits.shape}".encode())
        hasher.update(tensor.bits.tobytes())
    return hasher.hexdigest()


def grail_data(before: Tensors, after: Tensors, version: int) -> bytes:
    """What is compressed: header, and for each changed tensor rows, columns and values."""
    tensors: list[dict[str, Any]] = []
    chunks: list[bytes] = []
    offset = 0
    for name in sorted(after):
        old, new = before[name], after[name]
        kind = NUMBERS.get(new.dtype)
        shape = list(new.bits.shape)
        rows, columns = shape[0], int(np.prod(shape[1:]))
        mask = old.bits.view(kind) != new.bits.view(kind) if kind else old.bits != new.bits
        row, column = np.nonzero(np.asarray(mask).reshape(rows, columns))
        if not row.size:
            continue
        record: dict[str, Any] = {
            "name": name,
            "shape": shape,
            "num_nonzero": int(row.size),
            "value_dtype": TORCH[new.dtype],
        }
        values = new.bits.reshape(rows, columns)[row, column].tobytes()
        if version == 2:
            indices = [np.diff(row * columns + column, prepend=0).astype("<i4").tobytes()]
            more = {}
        else:
            gaps = np.diff(row, prepend=0)
            begins = np.concatenate([[True], gaps[1:] != 0])
            across = np.where(begins, column, np.diff(column, prepend=0))
            dtypes = (_index_dtype(gaps, 8), _index_dtype(across, 16)) if version == 31 else ("int32", "int32")
            indices = [gaps.astype(dtypes[0]).tobytes(), across.astype(dtypes[1]).tobytes()]
            more = {"rows_size": len(indices[0]), "cols_size": len(indices[1])}
            if version == 31:
                record |= {"row_dtype": dtypes[0], "col_dtype": dtypes[1]}
        size = sum(map(len, indices))
        record |= {"indices_offset": offset, "indices_size": size, **more}
        record |= {"values_offset": offset + size, "values_size": len(values)}
        tensors.append(record)
        chunks += [*indices, values]
        offset += size + len(values)
    header = json.dumps({"version": version, "tensors": tensors}, separators=(",", ":")).encode()
    return struct.pack("<I", len(header)) + header + b"".join(chunks)


def _index_dtype(numbers: np.ndarray, smallest: int) -> str:
    """`_select_index_dtype`."""
    for bits in (8, 16):
        if bits >= smallest and numbers.max() < 1 << bits:
            return f"uint{bits}"
    return "int32"


def write_grail(
    parent: Path,
    window: int,
    before: Tensors,
    after: Tensors,
    *,
    previous: int = 0,
    anchor: int = 0,
    version: int = 31,
    old_hash: bool = False,
) -> Path:
    """A window of grail."""
    folder = parent / f"checkpoint-{window}" / "DELTA"
    folder.mkdir(parents=True)
    data = grail_data(before, after, version)
    (folder / "delta_sparse.bin.zst").write_bytes(packed(data).tobytes())
    about = {
        "format": {2: "sparse_codec_v2", 3: "sparse_codec_v3", 31: "sparse_codec_v3.1"}[version],
        "threshold": 0.0,
        "prev_window": previous,
        "anchor_window": anchor,
        "shapes": {name: list(tensor.bits.shape) for name, tensor in after.items()},
    }
    (folder / "delta_metadata.json").write_text(json.dumps(about, indent=2))
    files = ("delta_sparse.bin.zst", "delta_metadata.json")
    metadata = {
        "window": window,
        "file_manifest": {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files},
        "checkpoint_type": "DELTA",
        "prev_window": previous,
        "anchor_window": anchor,
        "weights_hash": grail_hash(after, old=old_hash),
    }
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=2))
    (folder / "manifest.sig").write_text("00")
    (folder / "DELTA").write_text("")
    return folder
