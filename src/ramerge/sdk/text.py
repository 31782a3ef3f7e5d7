"""Text from files and users: check it against limits, and make it safe to show.

>>> from ramerge.sdk.text import enumerated, page_styles, quantity, quoted
>>> enumerated(["code", "tool", "memory"]), quoted("my model")
('code, tool and memory', "'my model'")
>>> quantity(1, "tensor"), quantity(2, "matrix", "matrices")
('1 tensor', '2 matrices')
>>> "prefers-color-scheme" in page_styles()
True
"""

from ramerge.core.foundation.errors import reason
from ramerge.core.foundation.jsontext import JsonLimits, dumped, parse, read_object
from ramerge.core.foundation.styles import page_styles
from ramerge.core.foundation.text import (
    Displayed,
    brief,
    csv_cell,
    enumerated,
    first_of,
    is_unicode,
    markdown,
    one_line,
    quantity,
    quoted,
    shown,
    unknown,
)

__all__ = [
    "Displayed",
    "JsonLimits",
    "brief",
    "csv_cell",
    "dumped",
    "enumerated",
    "first_of",
    "is_unicode",
    "markdown",
    "one_line",
    "page_styles",
    "parse",
    "quantity",
    "quoted",
    "read_object",
    "reason",
    "shown",
    "unknown",
]
