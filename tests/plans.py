"""Plans down to their tensors, of which tests change blocks and threads."""

from __future__ import annotations

from typing import Any

import ramerge
from ramerge.core.planning.model import MergePlan


def planned(source: Any, out: Any = None, *, vary: Any = None, kind: Any = "checkpoint", **options: Any) -> MergePlan:
    """The plan of a merge, with fields of `Options` and `Upload`."""
    upload = ramerge.Upload(**{key: options.pop(key) for key in ("staging_dir", "public") if key in options})
    chosen: Any = ramerge.Options(upload=upload, **options)
    return ramerge.plan(source, out, vary=vary, kind=kind, options=chosen).details
