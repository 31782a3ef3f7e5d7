"""Kinds of output: ways to write a merge other than as a checkpoint, into a folder that appears in one step.

An `OutputKind` is found by its entry point in the group `ramerge.outputs`. It lists the files that it will build
(`spec`), runs the passes of a plan and writes the files (`write`); journal, resuming and commit are the same for all
kinds.

>>> from ramerge.sdk.outputs import OUTPUT_KINDS
>>> sorted(OUTPUT_KINDS)
['adapter', 'checkpoint', 'delta']
"""

from ramerge.core.engine.fingerprint import fingerprint_of
from ramerge.core.engine.outputs import CHECKPOINT, OUTPUT_KINDS, OpenOutput, OutputKind, OutputSpec
from ramerge.core.engine.sidecars import records_of
from ramerge.core.output.lifecycle import build_output
from ramerge.core.output.targets import claim_files, claim_folder, path_of
from ramerge.core.output.write import Shard, Writer, lay_out

__all__ = [
    "CHECKPOINT",
    "OUTPUT_KINDS",
    "OpenOutput",
    "OutputKind",
    "OutputSpec",
    "Shard",
    "Writer",
    "build_output",
    "claim_files",
    "claim_folder",
    "fingerprint_of",
    "lay_out",
    "path_of",
    "records_of",
]
