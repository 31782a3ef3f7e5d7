"""Targets of outputs, local or remote: conflicts with other files, permissions, free disk space."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from ramerge.core.foundation import store
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.files import STANDARD_OUTPUT, check_can_create, check_file
from ramerge.core.foundation.jsontext import RECORD, read_object
from ramerge.core.foundation.text import NOT_UTF8, is_unicode, literal
from ramerge.core.storage.location import Location, PathStyle, here
from ramerge.core.storage.own_files import DELTA_INDEX, SWEEP, holds_another, model_inside
from ramerge.core.storage.schemes import UploadTarget, is_remote, open_upload

ALREADY_THERE = "exists; choose another folder, or pass --overwrite"
"""The message about an output folder that exists already."""

OWN_RECIPE = "ramerge.yaml"
"""The name of the recipe file in the output of a merge."""
STAGING = "ramerge-partial"
"""The suffix of the hidden folder in which an output is built."""
# Marks of ramerge's own pages (report/frame.html) and JSON files (analysis/results.py).
_OWN_MARKS = (b'<meta name="generator" content="ramerge', b'"schema":"ramerge.', b'"schema": "ramerge.')
_TABLES_AND_FIGURES = (".csv", ".png", ".svg")

OutputTarget: TypeAlias = Path | UploadTarget


def output_target(path: str | Path, staging: str | Path | None = None, *, public: bool = False) -> OutputTarget:
    """The target for a path or an address such as `s3://bucket/model`: a local folder, or an upload.

    Args:
        staging: local folder for files of a remote output until they are uploaded; by default in the user's cache
            folder.
        public: whether a new repository on the hub is public.
    """
    if not isinstance(path, str | os.PathLike):
        raise RecipeError(f'out: must be a path, such as "merged", not {literal(path)}')
    text = os.fspath(path)
    if not text:
        raise RecipeError("OUT: must not be empty; name a folder, or a place such as s3://bucket/model")
    if is_remote(text):
        if staging is None:
            if (folder := store.folder("outputs")) is None:
                raise RecipeError(
                    f"{text}: there is no home folder for files that wait for their upload; name one with "
                    f"--staging-dir FOLDER"
                )
            return open_upload(text, folder, public=public)
        if not os.fspath(staging):
            raise RecipeError("--staging-dir: is empty; name a folder for files until they are uploaded")
        folder = path_of(staging, "a staging directory")  # it may not exist yet
        ancestor = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        if not ancestor.is_dir():
            raise RecipeError(
                f"--staging-dir {staging}: {ancestor} is no folder; name a folder for files until they are uploaded"
            )
        return open_upload(text, folder, public=public)
    if staging is not None or public:
        raise RecipeError(f"{'--staging-dir' if staging is not None else '--public'}: applies to remote outputs only")
    return path_of(path)


def path_style(target: OutputTarget | None, folder: str) -> PathStyle:
    """How files in a subfolder of an output write local paths."""
    if isinstance(target, Path):
        return PathStyle(target / folder)
    return PathStyle(names_only=target is not None and target.is_published)


def path_of(path: str | Path, what: str = "an output folder") -> Path:
    """Return a local path with `~` expanded. For a link, return its target, because that would be replaced.

    Args:
        path: the path that the user has given.
        what: what the path is used for, for the message.

    Raises:
        RecipeError: the path is invalid or remote.
    """
    if is_remote(text := os.fspath(path)):
        text = re.sub(":/(?!/)", "://", text, count=1)  # of which `Path` makes one slash
        raise RecipeError(f"{text}: cannot be {what}: it must be on this machine; write to a folder here and upload it")
    try:
        location = Path(path).expanduser()
        if not is_unicode(str(location)):
            raise RecipeError(f"{os.fspath(path)!r}: {NOT_UTF8}")
        with suppress(FileNotFoundError, NotADirectoryError):
            location.stat()  # refuses invalid paths, and links that form a loop
        target = location.resolve()
        return target if location.is_symlink() else location
    except FileNotFoundError:
        raise  # the working folder was removed, so it is not the path's fault
    except (ValueError, RuntimeError, OSError) as error:
        raise RecipeError(f"{os.fspath(path)!r}: cannot be {what}: {error}") from error


def folder_problems(out: Path, inputs: Sequence[Location], size: int, *, overwrite: bool) -> list[str]:
    """All problems with an output folder at `out`; the arguments are those of `OutputDir.problems`."""
    text = _folder_conflict(out, inputs, overwrite=overwrite)
    problems = [f"{out}: {text}"] if text is not None else []
    ancestor = _existing_ancestor(out)
    if not ancestor.is_dir():
        problems.append(f"{out}: {ancestor} is a file; choose another folder")
    elif not os.access(ancestor, os.W_OK | os.X_OK):
        problems.append(f"{out}: no permission to write in {ancestor}; choose another folder")
    disk = shutil.disk_usage(ancestor)
    if not disk.total:
        problems.append(f"{out}: {ancestor} is of a file system that stores no files; choose another folder")
    elif size > disk.free:
        problems.append(f"{out}: needs {size:,} bytes of disk, but only {disk.free:,} are free")
    return problems


def free_bytes(out: Path) -> int:
    """Free bytes on the disk where `out` would be."""
    return shutil.disk_usage(_existing_ancestor(out)).free


def _existing_ancestor(out: Path) -> Path:
    parent = out.resolve().parent
    return next(folder for folder in (parent, *parent.parents) if folder.exists())


def _folder_conflict(out: Path, inputs: Sequence[Location], *, overwrite: bool) -> str | None:
    """Why an output folder cannot be made at `out`, because of existing files or the inputs; None if it can."""
    real_path = out.resolve()
    if Path.cwd().is_relative_to(real_path):
        return "is the working folder, or holds it; choose another folder"
    if real_path.is_mount():
        return "is a mount point, which cannot be replaced; choose a folder inside it"
    own = real_path / OWN_RECIPE  # a merge may repeat the recipe in the output that it replaces
    if text := _input_overlap(out, [path for path in _local_paths(inputs) if path.resolve() != own], holds=True):
        return text
    if not os.path.lexists(out):
        return None
    if not out.is_dir():
        return "is a file; choose a folder"
    if not is_replaceable(out):
        return (
            "exists and may hold more than a model: ramerge did not write it, and it has subfolders or no weights. It "
            "is never replaced, to protect your files; choose another folder, or remove it yourself"
        )
    names = [path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()]
    if inside := model_inside(names, _read_record(out / SWEEP)):
        return holds_another(out / inside)
    return None if overwrite else ALREADY_THERE


def claim_folder(out: Path, inputs: Sequence[Location], what: str = "") -> None:
    """Refuse a folder for files that a command writes and reads again, if it overlaps the run's inputs.

    Args:
        out: the folder, which may exist.
        inputs: all files and folders that the run reads.
        what: the option with the folder, for the message.

    Raises:
        RecipeError: the folder is one of the inputs, contains one, or lies in one.
    """
    if text := _input_overlap(out, _local_paths(inputs), holds=True):
        raise RecipeError(f"{f'{what} ' if what else ''}{out}: {text}")


def claim_files(
    inputs: Sequence[Location],
    files: Mapping[str, Path],
    folders: Mapping[str, Path] = MappingProxyType({}),
    *,
    overwrite: bool = False,
) -> None:
    """Check the paths in options for files to write, before the run begins. Leaves no files behind.

    Args:
        inputs: all files and folders that the run reads.
        files: the path in each option, such as `--json-file`; `-` is standard output.
        folders: folders in options, in which the run writes tables or figures under names of its own.
        overwrite: whether existing files that ramerge did not write may be replaced.

    Raises:
        RecipeError: a file exists and may not be replaced; a path is an input, or lies in an input or in a folder that
            another run is building; two options have the same path; or as for `check_file`.
        OutputError: the disk fails.
    """
    flags_of_stdout = [flag for flag, path in files.items() if path == STANDARD_OUTPUT]
    if len(flags_of_stdout) > 1:
        raise RecipeError(f"{' and '.join(flags_of_stdout)}: both name -, which is standard output; give one a file")
    files = {flag: path for flag, path in files.items() if flag not in flags_of_stdout}
    if any(path == STANDARD_OUTPUT for path in folders.values()):
        raise RecipeError("-: standard output takes one text, not a folder of files; name a folder")
    for path in files.values():
        check_file(path)
    for path in folders.values():
        check_can_create(path / "file", path)
    read = _local_paths(inputs)
    for flag, path in {**files, **folders}.items():
        if text := _input_overlap(path, read, holds=False):
            raise RecipeError(f"{flag} {path}: {text}")
        if any(part.endswith(f".{STAGING}") for part in path.resolve().parts):
            raise RecipeError(f"{flag} {path}: is in the staging directory of a merge; choose another place")
    for (one, first), (other, second) in combinations({**files, **folders}.items(), 2):
        if first.resolve() == second.resolve() and not (one in folders and other in folders):
            raise RecipeError(f"{one} and {other}: both name {first}")
        for flag, inner, outer in ((one, first, second), (other, second, first)):
            if outer in files.values() and outer.resolve() in inner.resolve().parents:
                raise RecipeError(f"{flag} {inner}: needs the folder {outer}, which another option makes a file")
    if not overwrite and (others := [flag for flag, path in files.items() if path.exists() and not _is_own_file(path)]):
        text = "exists, and ramerge did not write it; choose another name, or replace it: --overwrite"
        raise RecipeError(f"{flag} {files[flag]}: {text}" for flag in others)
    parents = {folder.resolve() for folder in folders.values()}
    for name, path in [*files.items(), *(("the input", path) for path in read)]:
        if path.suffix in _TABLES_AND_FIGURES and path.resolve().parent in parents:
            raise RecipeError(
                f"{name} {path}: may be a file that {' or '.join(folders)} writes; choose another place for one"
            )


def _is_own_file(path: Path) -> bool:
    """Whether a file begins like a page or JSON file of ramerge, or is empty."""
    with path.open("rb") as file:
        begin = file.read(4096)
    return not begin or any(mark in begin for mark in _OWN_MARKS)


def _local_paths(inputs: Sequence[Location]) -> list[Path]:
    return [path for path in map(here, inputs) if path is not None]


def _input_overlap(out: Path, inputs: Sequence[Path], *, holds: bool) -> str | None:
    """Why nothing may be written to `out` because it overlaps the inputs, even through links; None if it does not.

    With `holds`, everything in `out` may be replaced, so no input may lie in it.
    """
    real_path = out.resolve()
    for path in inputs:
        whole = path.resolve()
        if real_path == whole or (out.exists() and path.exists() and out.samefile(path)):
            return f"is one of the inputs; choose another {'folder' if holds else 'place'}"
        if whole.is_dir() and real_path.is_relative_to(whole):
            return f"is inside the input {_short_path(path)}; choose a place outside of it"
        if holds and whole.is_relative_to(real_path):
            return f"holds the input {_short_path(whole)}; choose another folder"
    return None


def _short_path(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def is_replaceable(folder: Path) -> bool:
    """Whether `--overwrite` may replace a folder: if it is empty, made by a merge, a delta, or a model without folders.

    This protects home folders, project folders, and folders such as `~/.ssh`, if they are given by mistake.
    """
    if not folder.is_dir():
        return False
    records = (folder / name for name in ("ramerge.json", SWEEP))
    if (folder / DELTA_INDEX).is_file() or any("ramerge_version" in _read_record(record) for record in records):
        return True
    entries = list(folder.iterdir())
    is_flat = not any(entry.is_dir() for entry in entries)
    is_model = any(entry.name == "config.json" or entry.suffix == ".safetensors" for entry in entries)
    return not entries or (is_flat and is_model)


def _read_record(path: Path) -> dict[str, object]:
    try:
        return read_object(path, RECORD)
    except (OSError, ValueError):
        return {}
