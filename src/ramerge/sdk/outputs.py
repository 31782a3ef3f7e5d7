"""outputs."""

from ramerge.core.engine import fingerprint
from ramerge.core.engine.card import effective_means, erased_means, model_card
from ramerge.core.engine.fingerprint import fingerprint_of
from ramerge.core.engine.outputs import OpenOutput, OutputKind, OutputSpec, open_output
from ramerge.core.engine.sidecars import files_of, records_of, resolved
from ramerge.core.output import remote_output
from ramerge.core.output.build import build_output, tidy
from ramerge.core.output.staging import StagingDir
from ramerge.core.output.targets import OutputTarget, output_target, path_of, problems_of
from ramerge.core.output.write import Shard, Writer, lay_out

__all__ = [
    "OpenOutput",
    "OutputKind",
    "OutputSpec",
    "OutputTarget",
    "Shard",
    "StagingDir",
    "Writer",
    "build_output",
    "effective_means",
    "erased_means",
    "files_of",
    "fingerprint",
    "fingerprint_of",
    "lay_out",
    "model_card",
    "open_output",
    "output_target",
    "path_of",
    "problems_of",
    "records_of",
    "remote_output",
    "resolved",
    "tidy",
]
