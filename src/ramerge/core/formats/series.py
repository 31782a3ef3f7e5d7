"""Finds the model's files in a folder: one file, the files of an index, or a complete numbered series."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import islice
from typing import TypeVar

import numpy as np

from ramerge.core.formats.files import check_index, opened_each, read_config, read_index
from ramerge.core.formats.format import Opening
from ramerge.core.foundation.errors import CheckpointError, collect
from ramerge.core.foundation.text import MOST_NAMES, brief_list, few_quoted, quoted
from ramerge.core.storage.location import Location, is_far
from ramerge.core.tensors.checkpoint import Contents
from ramerge.core.tensors.identity import identify
from ramerge.core.tensors.reader import Files, Wanted
from ramerge.core.tensors.tensor import Stored, Tensor

_OF = re.compile(r"(\d{1,9})-of-(\d{1,9})")
_NUMBER = re.compile(r"\d{1,9}")
_MOST_TWICE = 100
_COMPARED_BYTES = 1 << 22
_ADAPTERS = "adapter_model.*"
STEMS = ("model", "diffusion_pytorch_model", "consolidated")
"""Stems of safetensors file names: of transformers, diffusers, and Mistral's own code."""
File = TypeVar("File")


def stem_of(names: Iterable[str], stems: Sequence[str] = STEMS) -> str:
    """Return the common stem of file names, by which libraries find them; the first stem if there is none.

    Example:
        >>> stem_of(["diffusion_pytorch_model-00001-of-00002.safetensors"])
        'diffusion_pytorch_model'
    """
    common_stems = {next((stem for stem in stems if re.match(rf"{stem}[-.]", name)), stems[0]) for name in names}
    return common_stems.pop() if len(common_stems) == 1 else stems[0]


@dataclass(frozen=True)
class Naming:
    """The names of a format's weight files.

    Attributes:
        stems: beginnings of the names, the most common first.
        suffix: the end of the names.
        several: the pattern of all names.
        others: patterns of files that do not hold the model's plain tensors.
        again: a pattern of files that may duplicate the model in other files.
    """

    stems: tuple[str, ...]
    suffix: str
    several: str
    others: tuple[str, ...] = ()
    again: str = ""

    @property
    def one_file(self) -> str:
        """The name of a model in a single file."""
        return f"{self.stems[0]}{self.suffix}"

    @property
    def index(self) -> str:
        """The name of the index of a model in several files."""
        return f"{self.one_file}.index.json"

    def naming_of_folder(self, folder: Location) -> Naming:
        """Return the naming with the single stem that the files of a folder have."""
        namings = [replace(self, stems=(stem,)) for stem in self.stems]
        if namings[0].is_listed(folder):
            return namings[0]
        present = {stem_of([name], self.stems) for name in self.files_in(folder)}
        others = (each for each in namings if each.stems[0] in present and each.is_listed(folder))
        return next(others, namings[0])

    def is_listed(self, folder: Location) -> bool:
        """Whether a folder has the single file or an index."""
        return any((folder / name).exists() for name in (self.one_file, self.index))

    def files_in(self, folder: Location) -> list[str]:
        """Return the names of all weight files in a folder, sorted."""
        names = sorted(path.name for path in folder.glob(self.several))
        weights = [name for name in names if not any(fnmatch(name, pattern) for pattern in self.others)]
        return [name for name in weights if not fnmatch(name, self.again)] or weights

    def find(self, folder: Location) -> Location | None:
        """Return the folder if it has such files, otherwise None. Only looks at names."""
        return folder if self.is_listed(folder) or self.files_in(folder) else None


def _choose_files(
    folder: Location, naming: Naming
) -> tuple[list[str], Mapping[str, str] | None, tuple[str, ...], tuple[str, ...]]:
    """Choose the files of a model as transformers does, and check that they are complete.

    Returns:
        The names of the files; the index's map of tensors to files (None if there is no index); notes about files that
        are not read; warnings about files that look like another model.
    """
    files, index, suffix = naming.files_in(folder), None, naming.suffix
    if (folder / naming.one_file).exists():
        names = [naming.one_file]
    elif (folder / naming.index).exists():
        names, index = read_index(folder / naming.index, suffix)
    else:
        names = files
    if problems := list(_missing_file_problems(folder, naming, names, files, in_index=index is not None)):
        raise CheckpointError(problems)
    left = [name for name in files if name not in names]
    series = [name for name in left if _OF.search(name)]
    others = [name for name in left if name not in series]
    notes = (f"{folder}: {few_quoted(others)}: not read: the model is in {few_quoted(names)}",) if others else ()
    # unread files that look like a model, which other programs may read instead
    warnings: tuple[str, ...] = ()
    if series:
        state = "an incomplete model" if any(gaps(series)) else "a complete model, too"
        warnings = (
            f"{folder}: reads {few_quoted(names)} and ignores {few_quoted(series)} ({state}); remove the files of the "
            "earlier save",
        )
    if names == [naming.one_file] and (folder / naming.index).exists():
        indexed: list[str] = []
        with suppress(CheckpointError):
            indexed, _ = read_index(folder / naming.index, suffix)
        if indexed != names:
            warnings = (
                f"{folder}: {naming.index} names other files than {naming.one_file}. ramerge and transformers read "
                f"{naming.one_file}, vLLM reads the others; remove the files of the earlier save",
            )
    return names, index, notes, warnings


def open_files(
    folder: Location, naming: Naming, tensors_of: Callable[[Location], list[Tensor]], opening: Opening
) -> Contents:
    """Open a model in one or several files. `tensors_of` returns the tensors of a file."""
    naming = naming.naming_of_folder(folder)
    files, index, notes, warnings = _choose_files(folder, naming)
    adapters: Iterator[Location] = folder.glob(_ADAPTERS)
    if adapter := next(iter(sorted(adapters, key=str)), None):
        text = (
            f"{folder}: holds a whole model, which is read, and an adapter, which is not: {adapter.name}; if it was "
            f"not merged into the model, move it to a folder of its own with its configuration, and give "
            f"{folder}+ADAPTER"
        )
        notes, warnings = (notes, (*warnings, text)) if opening.base is not None else ((*notes, text), warnings)
    identities = identify(path for path in (folder / naming.index, folder / "config.json") if path.is_file())
    whole = _advice_to_remove_index(folder, naming) if index is not None else ""
    if whole and not all((folder / name).exists() for name in files):
        raise CheckpointError(f"{folder / naming.index}: names files that are not there; {whole}")
    opening.check_files(folder, files, in_index=index is not None)
    identities |= identify(folder / name for name in files)
    tensors: dict[str, Tensor] = {}
    shards: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    overridden: list[tuple[Tensor, str]] = []  # copies in other files than the index names
    for name, tensors_of_file in zip(files, opened_each([folder / name for name in files], tensors_of), strict=True):
        if isinstance(tensors_of_file, CheckpointError):
            problems.extend(tensors_of_file.problems)
            continue
        own_tensors = tensors_of_file
        if index is not None:
            own_tensors = [tensor for tensor in tensors_of_file if index.get(tensor.name, name) == name]
            overridden += [(tensor, name) for tensor in tensors_of_file if index.get(tensor.name, name) != name]
        twice = [tensor.name for tensor in own_tensors if tensor.name in tensors]
        problems += [
            f"{folder / name}: tensor {quoted(each)} is also in {tensors[each].path.name}"
            for each in twice[:_MOST_TWICE]
        ]
        if len(twice) > _MOST_TWICE:  # checking further files would take minutes, with the same result
            problems.append(f"{folder / name}: {len(twice) - _MOST_TWICE:,} more of its tensors are in other files too")
            break
        if own_tensors or not tensors_of_file:
            shards[name] = tuple(tensor.name for tensor in own_tensors)
        tensors.update({tensor.name: tensor for tensor in own_tensors})
    if index is not None and not problems:
        problems += [
            f"{folder}: the index lists {quoted(tensor.name)} for {index[tensor.name]}, but it is in {name}"
            for tensor, name in overridden
            if tensor.name not in tensors
        ]
        overridden_names = {tensor.name for tensor, _ in overridden if tensor.name not in tensors}
        present = {name: shard for name, shard in index.items() if name not in overridden_names}
        if disagreements := check_index(folder, present, shards):
            problems += [
                *disagreements,
                *([f"{folder / naming.index}: does not fit its files; {whole}"] if whole else []),
            ]
        notes += tuple(_override_notes(folder / naming.index, overridden, tensors)) if not problems else ()
    with collect(problems):
        config = read_config(folder)
    if problems:
        raise CheckpointError(problems)
    return Contents(tensors, identities, config, folder, shards, notes, warnings)


def _override_notes(
    index: Location, overridden: Iterable[tuple[Tensor, str]], tensors: Mapping[str, Tensor]
) -> list[str]:
    """Return a note about tensors with different copies in other files than the index names."""
    older = [(tensor, file) for tensor, file in overridden if not _are_equal(tensor, tensors[tensor.name])]
    if not older:
        return []
    copies = [f"{quoted(tensor.name)} of {tensor.path.name}" for tensor, _ in older]
    files = few_quoted(sorted({tensors[tensor.name].path.name for tensor, _ in older}))
    return [
        f"{index}: names {files} for tensors of which other files hold other values or copies that were not compared, "
        f"and these copies are not read: {brief_list(copies)}"
    ]


def _are_equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors in local files hold the same bytes. Remote tensors are not read and count as different."""
    left, right = one.origin, other.origin
    if (one.dtype, one.shape) != (other.dtype, other.shape) or is_far(one.path) or is_far(other.path):
        return False
    if not isinstance(left, Stored) or not isinstance(right, Stored):
        return False
    with Files() as files:
        for start in range(0, left.nbytes, _COMPARED_BYTES):
            blocks = np.empty((2, min(_COMPARED_BYTES, left.nbytes - start)), np.uint8)
            files.fill_all(
                [
                    Wanted(origin.path, origin.offset + start, block)
                    for origin, block in zip((left, right), blocks, strict=True)
                ]
            )
            if not np.array_equal(*blocks):
                return False
    return True


def _advice_to_remove_index(folder: Location, naming: Naming) -> str:
    """Return advice to remove an index if the files are complete by their numbers; otherwise empty."""
    names = naming.files_in(folder)
    totals = {match[2] for name in names if (match := _OF.search(name))}
    if len(totals) != 1 or len(names) != int(next(iter(totals))) or any(gaps(names, counted_only=True)):
        return ""
    return (
        f"if it is the index of another save, remove it: {few_quoted(names)} are complete without it, as the numbers "
        "in their names say"
    )


def _missing_file_problems(
    folder: Location, naming: Naming, names: Sequence[str], files: Sequence[str], *, in_index: bool
) -> Iterator[str]:
    """Yield problems of numbered series with missing files or inconsistent numbers."""
    for absent, count in gaps(names, counted_only=in_index):
        some = few_quoted(absent, count)
        if not in_index:
            yield (
                f"{folder}: is incomplete: by the numbers in their names, its files lack {some}; copy the missing "
                "files, "
                "or save the model again"
            )
        elif any(name in files for name in absent):
            yield (
                f"{folder / naming.index}: does not list {some}, which are in the folder, so it belongs to another "
                "save; "
                "remove the index to read all files, or save the model again"
            )
        elif whole := _advice_to_remove_index(folder, naming):
            yield f"{folder / naming.index}: names files that are not in the folder; {whole}"
        else:
            yield (
                f"{folder / naming.index}: the model is incomplete: neither the index nor the folder has {some}; copy "
                "the missing files with their index, or save the model again"
            )
    totals: dict[str, set[int]] = defaultdict(set)
    for name in names:
        if (match := _OF.search(name)) is None:
            continue
        number, total = int(match[1]), int(match[2])
        totals[f"{name[: match.start()]}*{name[match.end() :]}"].add(total)
        if number > total:
            yield f"{folder / name}: there is no file {number} of {total}; remove what is left over"
    for stem, several in totals.items():
        if len(several) > 1:
            yield (
                f"{folder}: the files {quoted(stem)} are numbered as parts of {' and '.join(map(str, sorted(several)))}"
                "; remove those that are left from an earlier save"
            )


def gaps(names: Iterable[str], *, counted_only: bool = False) -> Iterator[tuple[list[str], int]]:
    """Yield, for each series of numbered names with gaps, the first missing names and the number of missing names.

    Args:
        names: the names.
        counted_only: whether to ignore numbers without a total, because an index lists the files.

    Example:
        >>> list(gaps(["model-1-of-3.bin", "model-3-of-3.bin"]))
        [(['model-2-of-3.bin'], 1)]
    """
    series: dict[tuple[str, str, int | None], dict[int, int]] = defaultdict(dict)
    for name in names:
        match = _OF.search(name)
        total = int(match[2]) if match else None
        spans = [match.span(1)] if match else [] if counted_only else [one.span() for one in _NUMBER.finditer(name)]
        for start, end in spans:
            series[name[:start], name[end:], total][int(name[start:end])] = end - start
    for (before, after, total), present in series.items():
        if total is None and len(present) == 1:
            continue  # the number is a version or a model's size
        first = min(1, *present)
        last = max(present) if total is None else first + total - 1
        count = last + 1 - first - sum(number <= last for number in present)
        width = min(present.values())
        absent = (f"{before}{n:0{width}}{after}" for n in range(first, last + 1) if n not in present)
        if count > 0:
            yield list(islice(absent, MOST_NAMES)), count


def with_usual_names(files: Sequence[File], stem: str) -> dict[str, File]:
    """Return files under the usual names of safetensors files: a single name or a series."""
    if len(files) == 1:
        return {f"{stem}.safetensors": files[0]}
    return {f"{stem}-{number:05}-of-{len(files):05}.safetensors": file for number, file in enumerate(files, 1)}


def renumbered(files: Mapping[str, File]) -> Mapping[str, File]:
    """Return files by name, renumbered if their numbers have gaps because some were left out."""
    return with_usual_names(list(files.values()), stem_of(files)) if any(gaps(files, counted_only=True)) else files
