"""Values on the command line, written in YAML."""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError


def parse_scalar(text: str) -> Any:
    """The value of `--set key=text`, as YAML: `0.1` is a number, `[a, b]` a list. Text that is not YAML stays text."""
    try:
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return text
