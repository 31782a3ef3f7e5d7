"""What the standard library's `typing` has in later versions of Python only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import override
else:

    def override(method):
        """Marks a method that overrides one of a base class, whose docstring holds for it, too.

        Type checkers refuse it where no base class has such a method (PEP 698; `typing.override` from Python 3.12 on).
        """
        return method


__all__ = ["override"]
