"""Values of a command line, in YAML."""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError


def parse_scalar(text: str) -> Any:
    """The value of `--set key=text`: YAML, so `0.1` is a number and `[a, b]` a list; what is no YAML is the text."""
    try:
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return text
