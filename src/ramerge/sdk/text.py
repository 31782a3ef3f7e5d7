"""Text from files and users: checked against limits, and made safe to show.

>>> from ramerge.sdk.text import enumerated, page_styles, quoted
>>> enumerated(["code", "tool", "memory"]), quoted("my model")
('code, tool and memory', "'my model'")
>>> "prefers-color-scheme" in page_styles()
True
"""

from ramerge.core.foundation.jsontext import RECORD, JsonLimits, dumped, parse, read_object
from ramerge.core.foundation.styles import page_styles
from ramerge.core.foundation.text import (
    MOST_ALIKE,
    Displayed,
    brief,
    brief_list,
    csv_cell,
    decimals,
    enumerated,
    first_of,
    is_unicode,
    markdown,
    message,
    one_line,
    printable,
    quoted,
    shown,
    unknown,
    visible,
    without_secrets,
)

__all__ = [
    "MOST_ALIKE",
    "RECORD",
    "Displayed",
    "JsonLimits",
    "brief",
    "brief_list",
    "csv_cell",
    "decimals",
    "dumped",
    "enumerated",
    "first_of",
    "is_unicode",
    "markdown",
    "message",
    "one_line",
    "page_styles",
    "parse",
    "printable",
    "quoted",
    "read_object",
    "shown",
    "unknown",
    "visible",
    "without_secrets",
]
