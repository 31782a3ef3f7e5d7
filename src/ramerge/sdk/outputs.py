"""Kinds of output: how a merge is written other than as a checkpoint, and the folder that appears in one step.

An `OutputKind` is found by its entry point in the group `ramerge.outputs`. It says which files it will build (`spec`),
runs the passes of a plan and writes them (`write`); journal, resuming and commit are the same for all kinds.

>>> from ramerge.sdk.outputs import OUTPUT_KINDS
>>> sorted(OUTPUT_KINDS)
['adapter', 'checkpoint', 'delta']
"""

from ramerge.core.engine import fingerprint
from ramerge.core.engine.card import model_card
from ramerge.core.engine.columns import effective_means, erased_means
from ramerge.core.engine.fingerprint import fingerprint_of
from ramerge.core.engine.outputs import CHECKPOINT, OUTPUT_KINDS, OpenOutput, OutputKind, OutputSpec, open_output
from ramerge.core.engine.sidecars import model_sidecars, records_of, resolved_recipe
from ramerge.core.output.lifecycle import build_output, output_dir, tidy
from ramerge.core.output.staging import StagingDir
from ramerge.core.output.targets import OutputTarget, claim_files, claim_folder, output_target, path_of
from ramerge.core.output.write import Shard, Writer, lay_out

__all__ = [
    "CHECKPOINT",
    "OUTPUT_KINDS",
    "OpenOutput",
    "OutputKind",
    "OutputSpec",
    "OutputTarget",
    "Shard",
    "StagingDir",
    "Writer",
    "build_output",
    "claim_files",
    "claim_folder",
    "effective_means",
    "erased_means",
    "fingerprint",
    "fingerprint_of",
    "lay_out",
    "model_card",
    "model_sidecars",
    "open_output",
    "output_dir",
    "output_target",
    "path_of",
    "records_of",
    "resolved_recipe",
    "tidy",
]
