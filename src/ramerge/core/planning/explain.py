"""A plan as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ramerge.core.foundation.text import brief
from ramerge.core.planning.model import MergePlan
from ramerge.core.recipe.other_method import DEFAULT_METHOD

_FEW = 8
_BY_DEFAULT = (
    f"Using the default, {DEFAULT_METHOD.upper()}. Other methods often score higher; compare with `ramerge recommend`."
)


def dtypes_of(inputs: Mapping[str, str], output: str) -> str:
    """The dtypes of all inputs and of the output; of many inputs, how many have which."""
    if len(inputs) > _FEW:
        counts = Counter(inputs.values()).items()
        return ", ".join([*[f"{count} inputs {dtype}" for dtype, count in counts], f"output {output}"])
    return ", ".join([*[f"{name} {dtype}" for name, dtype in inputs.items()], f"output {output}"])


def explain(made: MergePlan) -> list[str]:
    """A plan as lines of text."""
    values = made.to_dict()

    def place(name: str, folder: str) -> str:
        return f"{folder} ({values['formats'][name]})" if name in values["formats"] else folder

    default = "" if "method" in made.recipe.model_fields_set else ", the default"
    settings = ", ".join(f"{k} = {v}" for k, v in values["parameters"].items())
    rows = [
        *([("method", f"{values['method']}{default} ({settings})")] if made.method.combines else []),
        *([("base", place("base", values["base"]))] if made.recipe.base is not None else []),
        *([("base", "none needed")] if made.recipe.base is None and made.method.combines else []),
        *[
            (f"agent {name}" if made.method.combines else name, place(name, folder))
            for name, folder in values["agents"].items()
        ],
    ]
    if made.tensors:
        largest = " x ".join(f"{side:,}" for side in values["largest_matrix"])
        dtypes = ", ".join(f"{count} {dtype}" for dtype, count in values["dtypes"].items())
        shards = values["shards"]
        rows += [
            ("dtypes", dtypes_of(values["input_dtypes"], made.dtype)),
            *([("rounding", f"stochastic, seed {made.recipe.seed}")] if made.recipe.seed is not None else []),
            ("tensors", f"{values['tensors']:,} ({dtypes}), {values['parameters_count']:,} parameters"),
            *([("whole matrices", f"{values['whole_matrices']:,}, the largest {largest}")] if largest else []),
            ("shards", f"{len(shards)} ({shards[0]}{', ...' if len(shards) > 1 else ''})"),
            ("other files", brief(", ".join(values["companions"]), 500) or "none"),
            ("read", f"{_bytes(values['bytes_read'])} in {_many(values['passes'], 'pass', 'es')}"),
            ("write", made.kind.written(made, _bytes(values["bytes_written"]))),
            *([("counts", "from an earlier read of the same files")] if values["counts"] != "read" else []),
            *([("device", values["device"])] if values["device"] != "cpu" else []),
            ("peak memory", f"at most {_bytes(values['peak_memory_bytes'])}, {_many(values['workers'], 'thread')}"),
        ]
    if made.disk_free is not None:
        rows += [("output", str(made.out)), ("free disk", _bytes(made.disk_free))]
    width = max(len(label) for label, _ in rows)
    lines = [f"{label:<{width}}  {text}" for label, text in rows]
    notes = [*([_BY_DEFAULT] if default and len(values["agents"]) > 1 else []), *made.notes]
    lines += [f"note: {note}" for note in notes]
    lines.append(
        f"problems: {len(made.objections)}"
        if made.objections
        else f"ready to {'merge' if made.method.combines else 'convert'}"
    )
    return lines


def _many(count: int, what: str, ending: str = "s") -> str:
    return f"{count} {what}{'' if count == 1 else ending}"


def _bytes(size: int) -> str:
    from rich.filesize import decimal

    return f"{decimal(size)} ({size:,} bytes)" if size >= 1000 else f"{size} bytes"
