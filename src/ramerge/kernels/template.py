"""Source of loops from templates."""

from __future__ import annotations

from collections.abc import Sequence


def filled(template: str, /, **parts: str | float | Sequence[str]) -> str:
    """A template with values for `{name}`: a line that is nothing else becomes lines at its indent, or none.

    Args:
        template: source.
        parts: a sequence of lines for a line of its own, and text or numbers for what stands inside of a line.
    """
    lines: list[str] = []
    for line in template.strip("\n").splitlines():
        part = parts.get(line.strip()[1:-1])
        if line.lstrip().startswith("{") and isinstance(part, Sequence) and not isinstance(part, str):
            indent = line[: len(line) - len(line.lstrip())]
            lines += [indent + each for each in part]
        else:
            lines.append(line.format(**parts))
    return "\n".join(lines)
