"""What a delta holds beside changes: the headers of the agent's files, and the files beside its weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ramerge.checkpoint.delta.layout import INDEX, read_index
from ramerge.checkpoint.delta.write import DeltaWriter
from ramerge.checkpoint.formats.delta import files_beside, stored_header
from ramerge.checkpoint.formats.safetensors import NAME as SAFETENSORS
from ramerge.checkpoint.header import header_bytes
from ramerge.checkpoint.model import Checkpoint


def write_files(base: Checkpoint, agent: Checkpoint, writer: DeltaWriter, *, allow_outside_links: bool) -> None:
    """Write them.

    Args:
        base: the model that the delta is for.
        agent: the model that it gives; the base itself if only weights have changed.
        writer: of the delta.
        allow_outside_links: whether files beside the weights may be links that lead out of their folder.

    Raises:
        CheckpointError: a file cannot be read, or is a link that leads out.
        OSError: the disk is full or fails.
    """
    for file, names, header in _headers(agent):
        writer.header(file, names, header)
    theirs, ours = (files_beside(model, allow_outside_links=allow_outside_links) for model in (base, agent))
    for name, path in ours.items():
        writer.companion(name, path, theirs.get(name))


def _headers(agent: Checkpoint) -> Iterator[tuple[str, Sequence[str], bytes]]:
    """The agent's files with their tensors and their first bytes, which are empty if it has no such files."""
    index = read_index(agent.delta / INDEX) if agent.delta is not None else None
    for file, names in agent.shards.items():
        if index is not None and agent.delta is not None:
            yield file, names, stored_header(agent.delta, index, file)
        else:
            yield file, names, header_bytes(agent.beside / file) if agent.format == SAFETENSORS else b""
