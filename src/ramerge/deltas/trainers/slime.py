"""The format of slime's and miles' deltas: folders `weight_v000001/` that look like checkpoints.

Written by `slime/backends/megatron_utils/update_weight/update_weight_from_disk_delta.py` and applied by
`docker/patch/latest/sglang-pull_weights.patch` of THUDM/slime at 624b824a; miles (radixark/miles at 31f1ca96) writes
the same. The index's metadata identify the delta; each tensor in the files is a zstd frame with the change of the
tensor's bytes, and a file's own metadata hold the checksum of each tensor's new bytes. Version 0 is the
model that training started from. A version that is a whole model begins a new chain.
`skyrl` reads its own files into the same `DeltaOfPayloads`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ramerge import CheckpointError
from ramerge.core.formats import safetensors
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.header import Header, read_header
from ramerge.core.tensors.paths import climbs_out, is_too_long
from ramerge.deltas.trainers import digests
from ramerge.deltas.trainers.chain import TrainerLayout, count_of
from ramerge.deltas.trainers.frames import Frame
from ramerge.deltas.trainers.link import Link, LinkPass, WholeTensors, Xor, misfits
from ramerge.deltas.trainers.sparse import Scatter, overwritten
from ramerge.deltas.trainers.unpack import format_of
from ramerge.deltas.word_patches import Bytes
from ramerge.sdk.formats import Opening, read_json
from ramerge.sdk.storage import Location
from ramerge.sdk.tensors import Files, Tensor, identify
from ramerge.sdk.text import quoted

_INDEX = safetensors.INDEX
_ENCODINGS = ("xor", "overwrite")
_CHECKSUMS = ("xxh3-128", "blake3", "adler32")
_MOST_INDEX = 32_000_000
# Positions are 32 bits wide and wrap in larger tensors.
_MOST_OVERWRITTEN = 1 << 32


@dataclass(frozen=True)
class Payload:
    """The entry of a tensor in a delta of slime or SkyRL: a frame, and the checksum of the new bytes.

    Attributes:
        checksum: the checksum of the tensor's new bytes.
    """

    frame: Frame
    checksum: str
    algorithm: str
    encoding: str = "xor"

    def change(self, files: Files, tensor: Tensor) -> Xor | Scatter:
        """Return the change of this tensor that the frame holds."""
        if self.encoding == "xor":
            return Xor.from_frame(self.frame, files, tensor.nbytes)
        return overwritten(self.frame, files, tensor.nbytes)


class _PayloadPass(LinkPass):
    """The pass over separately changed tensors, each with its own checksum."""

    def __init__(self, payloads: Mapping[str, Payload], files: Files) -> None:
        self._payloads, self._files = payloads, files
        self._payload: Payload | None = None
        self._change: Xor | Scatter | None = None

    def begin(self, tensor: Tensor) -> bool:
        self._payload = payload = self._payloads.get(tensor.name)
        if payload is not None:
            self._change = payload.change(self._files, tensor)
            self._digest = digests.digest(payload.algorithm)
        return payload is not None

    def change(self, block: Bytes, start: int) -> None:
        assert self._change is not None
        self._change.apply(block, start)
        self._digest.update(block.data)

    def end(self) -> None:
        if self._payload is None or self._change is None:
            return
        self._change.end()
        checksum, algorithm = self._payload.checksum, self._payload.algorithm
        if self._digest.hexdigest() != checksum:
            raise self._payload.frame.wrong(
                f"the resulting tensor does not have the checksum {checksum} ({algorithm}); the file is damaged, or "
                "the "
                "delta belongs to another base"
            )

    def finish(self) -> None:
        """Do nothing: each tensor has been checked."""


@dataclass(frozen=True)
class DeltaOfPayloads(Link):
    """A delta of slime or SkyRL, which changes some tensors, each by a payload.

    Attributes:
        kinds: dtype and shape of each of these tensors; None if the trainer does not store them.
    """

    payloads: Mapping[str, Payload]
    kinds: Mapping[str, tuple[str, tuple[int, ...]] | None]

    def check(self, base: Checkpoint) -> None:
        problems = misfits(self.folder, base, self.kinds)
        problems += [
            f"{self.folder}: {quoted(name)} has {tensor.nbytes:,} bytes; positions of the encoding overwrite wrap at "
            f"{_MOST_OVERWRITTEN:,}, so it is unknown which bytes changed"
            for name, payload in self.payloads.items()
            if payload.encoding == "overwrite"
            and (tensor := base.tensors.get(name)) is not None
            and tensor.nbytes > _MOST_OVERWRITTEN
        ]
        if problems:
            raise CheckpointError(problems)

    def pass_over(self, base: Checkpoint, files: Files) -> LinkPass:
        return _PayloadPass(self.payloads, files)


def _is_delta(folder: Location) -> bool:
    """Whether a folder that looks like a checkpoint holds slime's delta."""
    path = folder / _INDEX
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_INDEX + 1)
    except OSError:
        return False
    if b"delta_encoding" not in text and b"\\u" not in text:  # without parsing the index of every checkpoint
        return False
    try:
        metadata = read_json(path).get("metadata")
    except CheckpointError:
        return b"delta_encoding" in text
    return isinstance(metadata, dict) and "delta_encoding" in metadata


def read(folder: Path, opening: Opening) -> Link:
    """Read the small files of slime's delta, or whole model, in a version's folder."""
    if not _is_delta(folder):  # but a whole model, whose version is in its name only
        number = LAYOUT.number(folder)
        if number is None or safetensors.find(folder) is None:
            raise CheckpointError(f"{folder}: is neither a delta nor a whole model")
        contents = safetensors.open_folder(folder, opening)
        return WholeTensors(folder, number, number, contents.files, contents.tensors)
    path = folder / _INDEX
    opening.check_files(folder, [_INDEX], in_index=False)
    files = identify([path])
    document = read_json(path)
    metadata, weight_map = document.get("metadata"), document.get("weight_map")
    if not isinstance(metadata, dict) or not isinstance(weight_map, dict):
        raise CheckpointError(f"{path}: must have metadata and weight_map")
    version, before = (count_of(metadata, key, path, "metadata: ") for key in ("version", "base_version"))
    encoding, algorithm = metadata["delta_encoding"], metadata.get("checksum_format")
    problems = []
    if encoding not in _ENCODINGS:
        problems.append(f"{path}: the encoding {encoding!r:.100} is not known ({', '.join(_ENCODINGS)})")
    if metadata.get("compression_format") != "zstd":
        problems.append(f"{path}: the compression {metadata.get('compression_format')!r:.100} is not zstd")
    if wrong := digests.problem(algorithm, _CHECKSUMS):
        problems.append(f"{path}: {wrong}")
    names = list(dict.fromkeys(weight_map.values())) if all(isinstance(n, str) for n in weight_map.values()) else [""]
    problems += [
        f"{path}: {quoted(name)} is no name of a safetensors file in this folder"
        for name in names
        if climbs_out(name) or is_too_long(name) or not name.endswith(".safetensors")
    ]
    if problems:
        raise CheckpointError(problems)
    opening.check_files(folder, names, in_index=True)
    files |= identify(folder / name for name in names)
    headers = {name: read_header(folder / name) for name in names}
    payloads = _read_payloads(folder, weight_map, headers, str(encoding), str(algorithm))
    return DeltaOfPayloads(folder, version, before, files, payloads, dict.fromkeys(payloads))


def _read_payloads(
    folder: Path, weight_map: Mapping[str, str], headers: Mapping[str, Header], encoding: str, algorithm: str
) -> dict[str, Payload]:
    """Return the payloads in slime's files, for each tensor in the index.

    slime writes a tensor that several pipeline stages share once per stage. The index names one of the copies; applying
    a xor twice would undo it.
    """
    problems: list[str] = []
    payloads: dict[str, Payload] = {}
    copies: dict[str, set[str | None]] = {}
    for file, header in headers.items():
        for entry in header.entries:
            copies.setdefault(entry.name, set()).add(header.metadata.get(entry.name))
            where = f"{folder / file}: {quoted(entry.name)}"
            if entry.name not in weight_map:
                problems.append(f"{where} is not in the index")
            elif weight_map[entry.name] == file:
                checksum = header.metadata.get(entry.name)
                if entry.dtype != "U8" or len(entry.shape) != 1:
                    problems.append(f"{where} is {entry.dtype} {list(entry.shape)}, not compressed bytes")
                elif not digests.is_written(algorithm, checksum):
                    problems.append(f"{where} has no checksum ({algorithm})")
                else:
                    frame = Frame(folder / file, entry.begin, entry.end - entry.begin, quoted(entry.name))
                    payloads[entry.name] = Payload(frame, str(checksum), algorithm, encoding)
    places = {(entry.name, file) for file, header in headers.items() for entry in header.entries}
    problems += [
        f"{folder / file}: lacks {quoted(name)}, which the index lists for it"
        for name, file in weight_map.items()
        if (name, file) not in places
    ]
    problems += [
        f"{folder}: {quoted(name)} is in several files, which disagree about its checksum"
        for name, checksums in copies.items()
        if len(checksums) > 1
    ]
    if problems:
        raise CheckpointError(problems)
    return payloads


def version_of(folder: Location) -> int | None:
    """Return the slime version of a model, from its folder's name, or from the notes of the engine that patches it."""
    if (number := LAYOUT.number(folder)) is not None:
        return number
    state = folder / ".weight_sync" / "state.json"
    return count_of(read_json(state), "version", state) if state.is_file() else None


LAYOUT = TrainerLayout(
    "slime",
    "deltas of slime or miles",
    re.compile(r"weight_v([0-9]{6,15})"),
    lambda folder: "" if _is_delta(folder) else None,
    read,
    version_of,
)
FORMAT = format_of(LAYOUT)
