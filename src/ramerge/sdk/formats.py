"""Formats of checkpoints: how a folder is recognized and opened, from headers alone.

>>> from ramerge.sdk.formats import by_priority
>>> "safetensors" in [format.name for format in by_priority()]
True
"""

from ramerge.core.formats import safetensors
from ramerge.core.formats.adapter_model import PREFIX, module_of
from ramerge.core.formats.files import check_index, indexed_files, opened_each, read_config, read_json
from ramerge.core.formats.format import Format, Opening, local
from ramerge.core.formats.peft import CONFIG
from ramerge.core.formats.recorded import CALIBRATION, IMPORTANCES, MODEL, PLACES, expert_of, name_of
from ramerge.core.formats.registry import by_priority
from ramerge.core.formats.safetensors import ONE_FILE, index_of
from ramerge.core.formats.sidecars import companion_files, companions_of
from ramerge.core.formats.torchfile.load import load_file

__all__ = [
    "CALIBRATION",
    "CONFIG",
    "IMPORTANCES",
    "MODEL",
    "ONE_FILE",
    "PLACES",
    "PREFIX",
    "Format",
    "Opening",
    "by_priority",
    "check_index",
    "companion_files",
    "companions_of",
    "expert_of",
    "index_of",
    "indexed_files",
    "load_file",
    "local",
    "module_of",
    "name_of",
    "opened_each",
    "read_config",
    "read_json",
    "safetensors",
]
