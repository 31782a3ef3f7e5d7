"""Named things by entry point: methods, formats, commands and kinds of output, of this distribution and of plug-ins
alike; and functions of features, for rooms below them.

A row is an entry point of the group of its kind, and names an object:

    [project.entry-points."ramerge.methods"]
    my_method = "my_package.methods:my_method"

Names are known from the metadata of installed distributions; an object is imported when it is asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from ramerge.core.foundation.errors import PluginError, PluginWarning

INTERFACE = 1
"""The version of what methods and formats of plug-ins are written for; it changes when they must be changed."""

_OWN = "ramerge."
"""How the objects of our own rows begin. The name of a row's distribution would say it too, but costs a millisecond."""

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """The objects of a group, by name. Nothing is imported before it is asked for.

    `registry[name]` raises KeyError for a name that no distribution has, and PluginError if several have it, if its
    object cannot be imported, is no `kind`, or is written for another version of the interface.
    """

    def __init__(self, group: str, kind: type[Any], *, versioned: bool = True) -> None:
        """Make the registry of a group.

        Args:
            group: of entry points, such as `ramerge.methods`.
            kind: the class of its objects, which may be abstract.
            versioned: whether objects of plug-ins name the version of the interface that they are written for.
        """
        self._group, self._kind, self._versioned = group, kind, versioned
        self._objects: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._objects:
            self._objects[name] = self._load(name)
        return self._objects[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def usable(self) -> dict[str, T]:
        """Every object that can be loaded, by name.

        Warns:
            PluginWarning: once for each that cannot.
        """
        usable: dict[str, T] = {}
        for name in self:
            try:
                usable[name] = self[name]
            except PluginError as error:
                for problem in error.problems:
                    warnings.warn(problem, PluginWarning, stacklevel=2)
        return usable

    @cached_property
    def _rows(self) -> Mapping[str, tuple[EntryPoint, ...]]:
        """The entry points of each name: own ones first, then those of plug-ins by name."""
        rows: dict[str, tuple[EntryPoint, ...]] = {}
        entry_points = _entry_points().select(group=self._group)
        for row in sorted(entry_points, key=lambda row: (not row.value.startswith(_OWN), row.name)):
            rows[row.name] = (*rows.get(row.name, ()), row)
        return rows

    def _load(self, name: str) -> T:
        row, *others = self._rows[name]
        what = f"{self._group.rpartition('.')[2].rstrip('s')} {name!r}"
        if others:
            owners = " and ".join(_versioned(each) for each in (row, *others))
            raise PluginError(f"{what}: is defined by {owners}; uninstall one of them (pip uninstall)")
        try:
            row_object: Any = row.load()
        except Exception as error:  # whatever the plug-in's modules raise
            text = f"{type(error).__name__}: {error}"
            raise PluginError(f"{what} of {_versioned(row)}: cannot be imported: {text}") from error
        if not isinstance(row_object, self._kind):
            kind = f"{self._kind.__module__}.{self._kind.__qualname__}"
            raise PluginError(
                f"{what} of {_versioned(row)}: {row.value} is a {type(row_object).__name__}, not a {kind}"
            )
        if self._versioned and not row.value.startswith(_OWN):
            self._check_interface(what, row, getattr(row_object, "interface", None))
        checked_object: T = row_object
        return checked_object

    def _check_interface(self, what: str, row: EntryPoint, version: Any) -> None:
        if version is None:
            raise PluginError(
                f"{what} of {_versioned(row)}: does not say which version of the plug-in interface it is written for; "
                f"give interface={INTERFACE}"
            )
        if version != INTERFACE:
            raise PluginError(
                f"{what} of {_versioned(row)}: is written for version {version} of the plug-in interface, and this "
                f"ramerge has version {INTERFACE}; install versions of both that fit each other"
            )


FEATURES: Registry[Callable[..., Any]] = Registry("ramerge.features", Callable, versioned=False)  # type: ignore[arg-type]  # an abstract class that `isinstance` takes
"""Functions of features that rooms below them call, such as `recommend` for the method `auto`."""


@cache
def _entry_points() -> Any:
    """The entry points of all installed distributions, which takes milliseconds to read.

    Their type has another name in Python 3.10 and 3.11.
    """
    return entry_points()


def plugin_of(module: str) -> str | None:
    """The distribution of the plug-in that a module belongs to, with its version; None for other modules.

    Args:
        module: the dotted name.
    """
    rows = [
        row for group in _entry_points().groups if group.startswith(_OWN) for row in _entry_points().select(group=group)
    ]
    package = module.partition(".")[0]
    return next((_versioned(row) for row in rows if row.module.partition(".")[0] == package != "ramerge"), None)


def _versioned(row: EntryPoint) -> str:
    return f"{row.dist.name} {row.dist.version}" if row.dist is not None else row.value
