"""Files of an agent that a delta has besides blocks: headers of its safetensors files, and its sidecar files."""

from __future__ import annotations

from ramerge.core.formats.sidecars import companions_of
from ramerge.core.storage.own_files import DELTA_INDEX
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.header import header_bytes
from ramerge.deltas.format import STORED_FORMATS, sidecar_files, stored_header
from ramerge.deltas.index import read_index
from ramerge.deltas.write import DeltaWriter


def write_headers_and_sidecars(base: Checkpoint, agent: Checkpoint, writer: DeltaWriter) -> None:
    """Give a writer of a delta the headers of the agent's files, and its sidecar files with the base's."""
    index = read_index(agent.delta / DELTA_INDEX) if agent.delta is not None else None
    for file, names in agent.shards.items():
        header = b""  # if the agent has no such files
        if index is not None and agent.delta is not None:
            header = stored_header(agent.delta, index, file)
        elif agent.format in STORED_FORMATS:
            header = header_bytes(agent.metadata_folder / file)
        writer.header(file, names, header)
    theirs, ours = (sidecar_files(model) for model in (base, agent))
    for name, content in companions_of(ours, None, vocabulary=agent.vocabulary, apart=agent.untied):
        writer.companion(name, content, theirs.get(name))
