"""Selects and prepares the files next to the weights: configuration, tokenizer, chat template and others."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from fnmatch import fnmatch
from itertools import chain
from pathlib import PurePosixPath

from ramerge.core.formats.encodings.decode import KEYS, without_declaration
from ramerge.core.formats.files import read_json
from ramerge.core.formats.series import gaps
from ramerge.core.foundation.dtypes import full_name
from ramerge.core.foundation.errors import CheckpointError, collect, readable
from ramerge.core.foundation.jsontext import JsonLimits, dumped, parse
from ramerge.core.foundation.text import quoted
from ramerge.core.storage.location import Location, relative
from ramerge.core.tensors.access import access
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.embeddings import untie
from ramerge.core.tensors.header import LFS_POINTER
from ramerge.core.tensors.paths import linked_out
from ramerge.core.tensors.text_config import set_vocabulary

# Weights in any format. Files that are read are merged, files of a module are copied with it, others are left out.
_WEIGHTS = (
    "*.safetensors",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.gguf",
    "*.h5",
    "*.msgpack",
    "*.onnx",
    "*.onnx_data",
    "*.pkl",
    "*.distcp",
    "*.npz",
    "*.npy",
    "*.nemo",
    "*.pdparams",
)

# Indices, and files of trainers and of ramerge: they do not belong to the merged model, and are not mentioned.
_NOT_COMPANIONS = (
    "*.index.json",
    "*.log",
    "events.out.*",
    "zero_to_fp32.py",
    "latest",
    "latest_*",
    "README.md",
    "ramerge.json",
    "ramerge.yaml",
    "trainer_state.json",
    "training_args.bin",
    "optim*.pt",
    "optim*.bin",
    "scheduler*.pt",
    "extra_state*.pt",
    "rng_state*.pth",
    "random_states*.pkl",
    "*.distcp",
    "*_states.pt",
    ".*",
)

# Configurations of other weights than those that are read: an adapter's, or Mistral's own.
_OF_OTHER_WEIGHTS = {"adapter_config.json": "adapter_model*", "params.json": "consolidated*"}

# The file of sentence-transformers that lists a model's modules and their folders.
_MODULES = "modules.json"
_MODULE_LIMITS = JsonLimits(size=1_000_000, signs=50_000, depth=8)

# JSON files that name other files: code in `auto_map`, and states of a processor's steps.
_PROCESSORS = "*processor*.json"
_NAMING_FILES = ("config.json", "tokenizer_config.json", _PROCESSORS)

_LARGEST_POINTER = 1024

# Folders within a model's folder with other models or a trainer's state.
_NOT_COMPANION_FOLDERS = (
    "checkpoint-*",
    "global_step*",
    "iter_*",
    "lora_adapter",
    "optimizer*",
    "pytorch_model_fsdp*",
    "runs",
    "wandb",
)

# Names that only files should have, not folders.
_NAMES_OF_FILES = ("*.json", "*.jinja", "*.tiktoken", "*.txt", "tokenizer.model")

# The files that `companions: AGENT` takes from the agent, not from the base.
_TOKENIZER_FILES = (
    "tokenizer*",
    "*.tiktoken",
    "vocab.*",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
    "chat_templates/*",
    "additional_chat_templates/*",
    "generation_config.json",
)

# The files of which a tokenizer must have one.
_VOCABULARIES = ("tokenizer.json", "*.model", "*.tiktoken", "vocab.*", "tekken.json")

_DTYPE_KEYS = ("dtype", "torch_dtype")


def companion_files(base: Checkpoint, tokenizer_from: Checkpoint | None = None) -> dict[str, Location]:
    """Return the files next to the weights that are copied, by relative name.

    Args:
        base: the base checkpoint.
        tokenizer_from: the checkpoint from which tokenizer, chat template and generation config are taken; None for the
            base.

    Raises:
        CheckpointError: a link leads out of its checkpoint, a file is not regular or is a Git LFS pointer, or a module
            lacks weight files.
    """
    first, *others = base.companion_folders
    companions, _ = _companions_and_others(first, base.files)
    if tokenizer_from is not None:
        companions = {name: path for name, path in companions.items() if not is_tokenizer(name)}
        others = [*tokenizer_from.companion_folders]
    for folder in others:
        companions |= {name: path for name, path in _companions_and_others(folder)[0].items() if is_tokenizer(name)}
    models = [base, *([tokenizer_from] if tokenizer_from is not None else [])]
    roots = [folder for model in models for folder in model.companion_folders]
    outside = [path for path in companions.values() if all(map(access(path).leads_outside, roots))]
    if outside and not all(model.outside_links for model in models):
        raise CheckpointError(linked_out(*outside))
    return companions


def left_out(directory: Location, read: Container[Location]) -> list[str]:
    """Return relative names of files that are neither merged nor copied; names of folders end with a slash."""
    return [name for name in _companions_and_others(directory, read)[1] if directory / name not in read]


def named_files(companions: Mapping[str, Location]) -> dict[str, list[str]]:
    """Return the files that JSON companions name, by companion, in order; the names are not checked.

    These are code files in `auto_map`, except from other repositories, and states of a processor's steps, such as the
    statistics of a robot's policy. Damaged JSON files are skipped.
    """
    files_by_name: dict[str, list[str]] = {}
    for name, path in companions.items():
        if not _matches(name, _NAMING_FILES) or not path.is_file():
            continue
        with suppress(CheckpointError):
            config = read_json(path)
            if files := [*_code_of(config.get("auto_map")), *_states_of(config.get("steps"))]:
                files_by_name[name] = list(dict.fromkeys(files))
    return files_by_name


def _code_of(auto_map: object) -> Iterator[str]:
    values = auto_map.values() if isinstance(auto_map, dict) else ()
    for one in chain.from_iterable(value if isinstance(value, list) else [value] for value in values):
        if isinstance(one, str) and (match := re.fullmatch(r"(\w[\w.]*)\.\w+", one)):
            yield f"{match[1].replace('.', '/')}.py"


def _states_of(steps: object) -> Iterator[str]:
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict) and isinstance(file := step.get("state_file"), str):
            yield file


def processor_files(directory: Location) -> dict[str, Location]:
    """Return a folder's JSON files that describe the processing of a model's inputs and outputs, by name."""
    paths: Iterator[Location] = directory.glob(_PROCESSORS)
    return {path.name: path for path in sorted(paths, key=str) if not access(path).leads_outside(directory)}


def is_weights(name: str) -> bool:
    """Whether a file's relative name is that of a weight file."""
    return _matches(PurePosixPath(name).name, _WEIGHTS)


def modules_with_weights(companions: Iterable[str]) -> list[str]:
    """Return the folders of modules that have weights among these files."""
    return sorted({PurePosixPath(name).parts[0] for name in companions if is_weights(name)})


def _companions_and_others(
    directory: Location, read: Container[Location] = ()
) -> tuple[dict[str, Location], list[str]]:
    """Return a folder's files to copy, by relative name, and the names of files that are left out."""
    paths = {PurePosixPath(relative(path, directory).as_posix()): path for path in directory.rglob("*")}
    foreign = {
        name
        for name in paths
        if any(part.startswith(".") for part in name.parts)
        or any(_matches(part, _NOT_COMPANION_FOLDERS) for part in name.parts[:-1])
        or _matches(name.name, _NOT_COMPANIONS)
    }
    paths = {name: paths[name] for name in sorted(paths.keys() - foreign, key=str)}
    modules = _modules_of(directory)
    states = _files_named_in_json(directory, paths, read)
    weights = {name for name in paths if _matches(name.name, _WEIGHTS)} - states
    others = {name.parent for name in weights if len(name.parts) > 1 and name.parts[0] not in modules}
    own = {name for name in weights if name.parts[0] in modules}
    # files that belong to other weights in the folder than those that are read
    present = [name.name for name in weights if len(name.parts) == 1]
    of_others = [
        name
        for name, pattern in _OF_OTHER_WEIGHTS.items()
        if {fnmatch(each, pattern) for each in present} == {False, True}
    ]
    problems = [
        f"{directory}: lacks {quoted(absent[0])}, so the module {PurePosixPath(absent[0]).parent} is not complete; "
        "download it again"
        for absent, _ in gaps(sorted(map(str, own)), counted_only=True)
    ]
    companions: dict[str, Location] = {}
    left: dict[str, None] = {}
    for name, path in paths.items():
        if apart := next((folder for folder in reversed((name, *name.parents)) if folder in others), None):
            left[f"{apart}/"] = None
        elif name in weights - own or name.as_posix() in of_others:
            left[name.as_posix()] = None
        elif path.is_symlink() and not path.exists():
            problems.append(f"{path}: is a broken link; download the file again, or remove the link")
        elif path.is_symlink() and path.is_dir():  # linked folders are not searched
            left[f"{name}/"] = None
        elif not path.is_file():
            if not path.is_dir() or _matches(name.name, _NAMES_OF_FILES):
                problems.append(f"{path}: is not a regular file; put the file in its place, or remove it")
        elif not access(path).is_readable():
            problems.append(f"{path}: no permission to read it; change its permissions, or remove it")
        else:
            with collect(problems):
                if access(path).leads_outside(directory) or not _is_pointer(path):
                    companions[name.as_posix()] = path
                elif (
                    name in states
                    or name.parts[0] in modules
                    or _matches(name.name, _NAMES_OF_FILES)
                    or is_tokenizer(str(name))
                ):
                    problems.append(f"{path}: is a Git LFS pointer, not the file; get it with `git lfs pull`")
                else:
                    left[name.as_posix()] = None
    if problems:
        raise CheckpointError(problems)
    return companions, [*left]


def _files_named_in_json(
    directory: Location, paths: Mapping[PurePosixPath, Location], read: Container[Location]
) -> set[PurePosixPath]:
    """Return a folder's files that its JSON files name, except weights that are read."""
    on_top = {
        name.name: path
        for name, path in paths.items()
        if len(name.parts) == 1 and not access(path).leads_outside(directory)
    }
    states = {PurePosixPath(file) for files in named_files(on_top).values() for file in files}
    return {name for name in states & paths.keys() if paths[name] not in read}


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _modules_of(directory: Location) -> set[str]:
    """Return the folders of a model's further modules; empty if unknown."""
    path = directory / _MODULES
    if not path.is_file():
        return set()
    try:
        with readable(path), path.open("rb") as file:
            modules = parse(file.read(_MODULE_LIMITS.size + 1), _MODULE_LIMITS)
    except (ValueError, CheckpointError):
        return set()
    places = [one.get("path") for one in modules if isinstance(one, dict)] if isinstance(modules, list) else [None]
    return {place for place in places if isinstance(place, str) and re.fullmatch(r"\w[\w.-]*", place)}


def _is_pointer(path: Location) -> bool:
    """Whether a file is a Git LFS pointer. Only small files are read."""
    if not len(LFS_POINTER) < path.stat().st_size < _LARGEST_POINTER:
        return False
    with readable(path), path.open("rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER


def is_tokenizer(name: str) -> bool:
    """Whether `companions: AGENT` takes the file with this relative name from the agent."""
    return _matches(name, _TOKENIZER_FILES)


def has_tokenizer(names: Iterable[str]) -> bool:
    """Whether these files include a tokenizer."""
    return any(fnmatch(name, pattern) for name in names for pattern in _VOCABULARIES)


def companions_of(
    files: Mapping[str, Location],
    dtype: str | None,
    *,
    dequantized: bool = False,
    vocabulary: int | None = None,
    apart: bool = False,
) -> Iterator[tuple[str, Location | str]]:
    """Yield the output's companions by relative name: a file to copy unchanged, or a text.

    `config.json` is changed only if it does not fit the output.

    Args:
        files: the source files by relative name.
        dtype: safetensors' name of the dtype to state; None to keep the base's.
        dequantized: whether the output is not quantized although the configuration may declare a quantization.
        vocabulary: the number of tokens to state; None to keep the base's.
        apart: whether input and output embeddings are two tensors although the configuration may tie them.
    """
    for name, source in files.items():
        if name != "config.json":
            yield name, source
            continue
        original = read_json(source)
        config = deepcopy(original)
        if dequantized:
            config = without_declaration(config)
        if dtype is not None and not _set_dtype(config, full_name(dtype)):
            config["torch_dtype"] = full_name(dtype)
        if vocabulary is not None:
            set_vocabulary(config, vocabulary)
        if apart:
            untie(config)
        yield name, dumped(config, constants=True) if config != original else source


def _set_dtype(config: dict[str, object], dtype: str) -> bool:
    has_dtype = False
    for key, value in config.items():
        if key in _DTYPE_KEYS and isinstance(value, str):
            config[key] = dtype
            has_dtype = True
        elif isinstance(value, dict) and key not in KEYS:
            has_dtype |= _set_dtype(value, dtype)
    return has_dtype
