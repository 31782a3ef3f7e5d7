"""Import every public name, in an environment without extras: none may need what its user has not asked for.

Public are the names of `ramerge`, the modules that plug-ins use, and everything that is found by entry point.
"""

import sys
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules

import ramerge.sdk

MODULES = ("ramerge", "ramerge.testing", *(f"ramerge.sdk.{each.name}" for each in iter_modules(ramerge.sdk.__path__)))
GROUPS = ("console_scripts", "ramerge.commands", "ramerge.methods", "ramerge.formats", "ramerge.outputs")


def public() -> list[EntryPoint]:
    """All of them, as something that can be loaded."""
    modules = [EntryPoint(name, name, "modules") for name in MODULES]
    names = [
        EntryPoint(name, f"{module}:{name}", "names")
        for module in MODULES
        for name in getattr(import_module(module), "__all__", ())
    ]
    found = [point for group in GROUPS for point in entry_points(group=group) if point.value.startswith("ramerge.")]
    return modules + names + found


def problem(point: EntryPoint) -> str | None:
    """The error of its import, if any."""
    try:
        point.load()
    except Exception as error:
        return f"{point.value}: {type(error).__name__}: {error}"
    return None


def main() -> int:
    """Import all, and print what cannot be imported."""
    points = public()
    problems = [found for point in points if (found := problem(point))]
    print(*problems, f"{len(points)} names, of which {len(problems)} cannot be imported", sep="\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
