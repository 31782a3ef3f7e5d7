"""Finds methods, formats, commands and kinds of output of this package and of plug-ins by entry point.

It also finds functions of features for rooms below them. Each kind has a group of entry points, which name objects:

    [project.entry-points."ramerge.methods"]
    my_method = "my_package.methods:my_method"

Names come from the metadata of installed distributions; an object is only imported when it is looked up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from ramerge.core.foundation.errors import PluginError, PluginWarning
from ramerge.core.foundation.text import unknown

INTERFACE = 1
"""The version of the plug-in interface; it changes when methods and formats of plug-ins must be adapted."""

_OWN = "ramerge."
"""The prefix of this package's own objects. Reading an entry point's distribution instead costs a millisecond."""

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """The objects of a group of entry points, by name. An object is imported when it is looked up.

    `registry[name]` raises KeyError if no distribution defines the name, and PluginError if several define it, or if
    the object cannot be imported, is not a `kind`, or is written for another version of the interface.
    """

    def __init__(self, group: str, kind: type[Any], *, versioned: bool = True) -> None:
        """Create the registry of a group.

        Args:
            group: the group of entry points, such as `ramerge.methods`.
            kind: the class of the objects, which may be abstract.
            versioned: whether objects of plug-ins must declare the version of the interface that they are written for.
        """
        self._group, self._kind, self._versioned = group, kind, versioned
        self._objects: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._objects:
            self._objects[name] = self._load_entry(name)
        return self._objects[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def usable(self) -> dict[str, T]:
        """Return every object that can be loaded, by name.

        Warns:
            PluginWarning: an object cannot be loaded; one warning for each.
        """
        usable: dict[str, T] = {}
        for name in self:
            try:
                usable[name] = self[name]
            except PluginError as error:
                for problem in error.messages:
                    warnings.warn(problem, PluginWarning, stacklevel=2)
        return usable

    @cached_property
    def _rows(self) -> Mapping[str, tuple[EntryPoint, ...]]:
        """The entry points by name: this package's first, then those of plug-ins in alphabetical order."""
        rows: dict[str, tuple[EntryPoint, ...]] = {}
        entry_points = _entry_points().select(group=self._group)
        for row in sorted(entry_points, key=lambda row: (not row.value.startswith(_OWN), row.name)):
            rows[row.name] = (*rows.get(row.name, ()), row)
        return rows

    def _load_entry(self, name: str) -> T:
        kind = self._group.rpartition(".")[2].rstrip("s")
        if name not in self._rows:
            raise KeyError(unknown(kind, str(name), list(self)))
        row, *others = self._rows[name]
        what = f"{kind} {name!r}"
        if others:
            owners = " and ".join(_versioned_name(each) for each in (row, *others))
            raise PluginError(f"{what}: is defined by {owners}; uninstall one of them (pip uninstall)")
        try:
            row_object: Any = row.load()
        except Exception as error:  # whatever the plug-in's modules raise
            text = f"{type(error).__name__}: {error}"
            raise PluginError(f"{what} of {_versioned_name(row)}: cannot be imported: {text}") from error
        if not isinstance(row_object, self._kind):
            expected = f"{self._kind.__module__}.{self._kind.__qualname__}"
            raise PluginError(
                f"{what} of {_versioned_name(row)}: {row.value} is a {type(row_object).__name__}, not a {expected}"
            )
        if self._versioned and not row.value.startswith(_OWN):
            self._check_interface(what, row, getattr(row_object, "interface", None))
        checked_object: T = row_object
        return checked_object

    def _check_interface(self, what: str, row: EntryPoint, version: Any) -> None:
        if version is None:
            raise PluginError(
                f"{what} of {_versioned_name(row)}: does not say which version of the plug-in interface it is written "
                f"for; give interface={INTERFACE}"
            )
        if version != INTERFACE:
            raise PluginError(
                f"{what} of {_versioned_name(row)}: is written for version {version} of the plug-in interface, and "
                f"this ramerge has version {INTERFACE}; install versions of both that fit each other"
            )


FEATURES: Registry[Callable[..., Any]] = Registry("ramerge.features", Callable, versioned=False)  # type: ignore[arg-type]  # an abstract class that `isinstance` takes
"""Functions of features that lower rooms call, such as `recommend` for the method `auto`."""


@cache
def _entry_points() -> Any:
    """Return the entry points of all installed distributions; cached, because reading them takes milliseconds.

    Typed as Any, because the type has different names in Python 3.10 and 3.11.
    """
    return entry_points()


def plugin_of(module: str) -> str | None:
    """Return name and version of the plug-in's distribution that a module belongs to; None for other modules.

    Args:
        module: the module's dotted name.
    """
    rows = [
        row for group in _entry_points().groups if group.startswith(_OWN) for row in _entry_points().select(group=group)
    ]
    package = module.partition(".")[0]
    return next((_versioned_name(row) for row in rows if row.module.partition(".")[0] == package != "ramerge"), None)


def _versioned_name(row: EntryPoint) -> str:
    return f"{row.dist.name} {row.dist.version}" if row.dist is not None else row.value
