"""Tables of pages that follow from the code and from measurements: `python -m docs.tables` writes them into the pages.

They stand between two comments, of which the first names the table: `<!-- method ram+: python -m docs.tables -->`. So
they can be read in a checkout as well as on the site, and a test holds them to what they are made from.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import methods as measured
from benchmarks.report import SMALL, load
from benchmarks.timing import ratios, spread

import ramerge
import ramerge_eval
from docs.signatures import cell, command, function, public_class, table
from ramerge.cli.main import COMMANDS
from ramerge.core.methods.matrices import MatrixMethod
from ramerge.core.methods.registry import METHODS, describe, listed
from ramerge.core.options import Options, Ray, Upload, settings_of
from ramerge.mergekit.translate import FLAGS
from ramerge.sdk.methods import merge_method
from ramerge.testing import check_bounds, check_layout, check_method, check_order, check_reference

DOCS = Path(__file__).parent
_LORA = DOCS.parent / "lab" / "results" / "lora.json"
_SERVERS = DOCS.parent / "lab" / "results" / "servers.json"
_CELLS = DOCS.parent / "tests" / "conformance" / "cells.json"
_TABLE = re.compile(r"(<!-- (\w+) ?(\S*): python -m docs\.tables -->\n).*?(<!-- end -->\n)", re.DOTALL)


def page(text: str) -> str:
    """Return a page with its tables as they are now.

    Raises:
        KeyError: a comment names a table that there is none of, or a method that there is none of.
    """
    return _TABLE.sub(lambda found: f"{found[1]}\n{_TABLES[found[2]](found[3])}\n\n{found[4]}", text)


def write() -> None:
    """Write the tables of all pages, and say which have changed."""
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if (now := page(text)) != text:
            path.write_text(now, encoding="utf-8")
            print(path.relative_to(DOCS.parent))


# --- methods --------------------------------------------------------------------------------------------------------


def _method(name: str) -> str:
    """A method as `ramerge methods NAME` shows it."""
    method = describe(METHODS[name])
    reads = f"{method['reads']} of all inputs, with default parameters"
    fingerprint = [("Formula", _code(method["formula"])), ("Source", _linked(method["source"])), ("Reads", reads)]
    wide = (
        "an input is float64, or its matrices need it"
        if isinstance(METHODS[name], MatrixMethod)
        else "an input is float64"
    )
    fingerprint.append(("Precision", f"computed in float32 (float64 if {wide}), rounded once, to the output's dtype"))
    if method["differs"]:
        fingerprint.append(("mergekit", method["differs"]))
    parts = ["\n".join(f"- **{name}:** {text}" for name, text in fingerprint)]
    if method["parameters"]:
        rows = [_parameter_row(name, field) for name, field in method["parameters"].items()]
        parts.append(table(("parameter", "default", "values", "meaning"), rows))
    if method["presets"]:
        presets = [
            (f"`{name}`", ", ".join(f"`{key}` = `{value}`" for key, value in values.items()))
            for name, values in method["presets"].items()
        ]
        parts.append(table(("preset", "parameters"), presets))
    return "\n\n".join(parts)


def _parameter_row(name: str, field: Mapping[str, Any]) -> tuple[str, ...]:
    default = field["default"] if isinstance(field["default"], str) else json.dumps(field["default"])
    only = "".join(f"Only with `{key}: {value}`: " for key, value in field["only"].items())
    return f"`{name}`", f"`{default}`", cell(field["range"]), only + cell(field["description"])


def all_methods() -> str:
    """All methods, each with a link to its page: the site's list, so that a new method changes no page but its own."""
    rows = [
        (f"[`{name}`]({page_of(name)})", cell(method.title), _code(method.formula), str(describe(method)["reads"]))
        for name, method in listed().items()
    ]
    return table(("method", "title", "merged task vector", "reads"), rows)


def _costs(_nothing: str) -> str:
    """Time over a file copy, and memory, as they were measured."""
    taken = load(measured.SECTION)[SMALL].data["taken"]
    rows = [(f"`{name}`", *_cost(taken, name)) for name in METHODS if name in taken]
    return table(("method", "over the copy", "peak memory, MB"), rows)


def _cost(taken: Mapping[str, Any], name: str) -> tuple[str, str]:
    floor = taken.get(f"floor of {name}", taken["floor"])
    over = ratios([one["seconds"] for one in taken[name]], [one["seconds"] for one in floor])
    return over.text(), spread([one["peak"] / 1e6 for one in taken[name]]).text(0)


def _adapters(_nothing: str) -> str:
    """Scores of merges of tiny LoRA agents, and how a time of 1 compares with the sum at all ranks."""
    stored = json.loads(_LORA.read_text(encoding="utf-8"))
    means = {column: {name: sum(each) / len(each) for name, each in rows.items()} for column, rows in stored.items()}
    shown = {column.partition(", ")[2]: rows for column, rows in means.items() if column.startswith("rank 8, ")}
    names = list(next(iter(shown.values())))
    rows = [
        (f"`{name}`" if place else name, *(f"{one[name]:.1f}" for one in shown.values()))
        for place, name in enumerate(names)
    ]
    apart = [one["swudi exp_time=1"] - one["task_arithmetic"] for one in means.values()]
    told = (
        f"At ranks 2, 8 and 32, `swudi` with `exp_time: 1` is {min(apart):+.1f} to {max(apart):+.1f} points from the "
        f"sum (`task_arithmetic`), in {sum(value > 0 for value in apart)} of {len(apart)} cases above it."
    )
    return f"{table(('merge', *shown), rows)}\n\n{told}"


def page_of(method: str) -> str:
    """The file of a method's page."""
    return f"{method.replace('+s', '-plus-s').replace('+', '-plus').replace('_', '-')}.md"


# --- servers --------------------------------------------------------------------------------------------------------


def _servers(part: str) -> str:
    """Replies of real servers, and of commands with one, compared with those of the model in memory."""
    stored = json.loads(_SERVERS.read_text(encoding="utf-8"))
    if part == "versions":
        return _versions(stored.values())
    rows = [(name, row) for name, each in stored.items() for row in each["rows"]]
    if part == "replies":
        head = ("served", "by", "computed in", "equal replies", "others: gap in logits", "ready after")
        return table(head, [_replies_row(row) for name, row in rows if name in ("merge", "adapter")])
    head = ("command", "equal to those in memory", "result", "took")
    return table(head, [_command_row(name, row) for name, row in rows if name in ("eval", "search")])


def _command_row(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    if name == "eval":
        what, result = "rewards", f"mean reward {row['mean']:.3f}, in memory {row['expected']:.3f}"
    else:
        what, result = "replies", f"the best merge is {'the same' if len({*row['best']}) == 1 else 'another'}"
    return f"`ramerge {name} --serve vllm`", f"{row['equal']} of {row['prompts']} {what}", result, f"{row['seconds']} s"


def _replies_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    names = {"merge": "merge", "adapter": "merge as adapter", "vllm": "vLLM", "transformers": "`transformers serve`"}
    gaps = ", ".join(f"{each['gap']:.3f}" for each in row["differences"])
    equal, ready = f"{row['equal']} of {row['prompts']}", f"{row['seconds to start']} s"
    return names[row["what"]], names[row["server"]], row["dtype"], equal, gaps, ready


def _versions(parts: Iterable[Mapping[str, Any]]) -> str:
    """When, and with which versions, parts were measured."""
    found = dict[str, dict[str, None]]()  # ordered sets
    for part in parts:
        served = [("vLLM", row["version"]) for row in part["rows"] if "version" in row]
        for name, each in [("measured on", part["date"]), *part["versions"].items(), *served]:
            found.setdefault(name, {})[each] = None
    return table(tuple(found), [tuple(" and ".join(each) for each in found.values())])


# --- commands and public names --------------------------------------------------------------------------------------


def _commands(_nothing: str) -> str:
    """The commands, as `ramerge --help` lists them."""
    rows = [
        (f"[`ramerge {name}`](#ramerge-{name})", cell(COMMANDS[name].short_help or "")) for name in sorted(COMMANDS)
    ]
    return table(("command", "what it does"), rows)


def _flags(_nothing: str) -> str:
    """Every command with all its flags."""
    return "\n\n".join(command(name, COMMANDS[name]) for name in sorted(COMMANDS))


def _names(kind: str) -> str:
    """Public names of a kind, each with the first sentence of its docstring."""
    anchors = {"functions": "[`{0}`](#{1})", "classes": "[`{0}`](#class-{1})", "errors": "`{0}`"}
    rows = [
        (anchors[kind].format(name, name.lower()), cell(_first_line(getattr(ramerge, name)))) for name in names_of(kind)
    ]
    return table(("name", "what it is"), rows)


def _signatures(kind: str) -> str:
    """Public names of a kind with types, defaults, errors and examples."""
    if kind == "plug-ins":
        checks = (check_method, check_layout, check_order, check_reference, check_bounds)
        shown = [function("ramerge.sdk.methods", merge_method), *(function("ramerge.testing", each) for each in checks)]
        return "\n\n".join(shown)
    if kind == "ramerge_eval":
        values = [getattr(ramerge_eval, name) for name in ramerge_eval.__all__]
        return "\n\n".join(public_class(each) if inspect.isclass(each) else function(kind, each) for each in values)
    show = {"functions": partial(function, "ramerge"), "classes": public_class}[kind]
    return "\n\n".join(show(getattr(ramerge, name)) for name in names_of(kind))


def _first_line(value: object) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]


def names_of(kind: str) -> list[str]:
    """Public names of the package that are `functions`, `classes` or `errors`."""
    return [name for name in ramerge.__all__ if not name.startswith("_") and kind_of(name) == kind]


def kind_of(name: str) -> str:
    """The kind of a public name."""
    value = getattr(ramerge, name)
    if not inspect.isclass(value):
        return "functions"
    return "errors" if issubclass(value, BaseException) else "classes"


# --- Markdown -------------------------------------------------------------------------------------------------------


def _code(text: str) -> str:
    return f"`{cell(text.replace('`', ''))}`"


def _linked(text: str) -> str:
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def _options(_name: str) -> str:
    """The fields of `Options` and of its parts."""
    rows = [
        (f"`{prefix}{name}`", f"`{setting.flag}`", cell(setting.help))
        for prefix, cls in (("", Options), ("upload.", Upload), ("ray.", Ray))
        for name, _, setting in settings_of(cls)
    ]
    return table(("field", "command line", "what it does"), rows)


_MARKS = {"applies": "yes", "ignored": "no", "-": ""}


def _consumers(_: str) -> str:
    """Each consumer and each key of a recipe: `tests/conformance/test_consumers.py` tries all of it."""
    rows = json.loads(_CELLS.read_text(encoding="utf-8"))
    names = list(next(iter(rows.values())))
    cells = [(f"`{key}`", *(_MARKS.get(row[name], row[name]) for name in names)) for key, row in rows.items()]
    return table(("key", *names), cells)


def _mergekit_flags(_nothing: str) -> str:
    """The flags of mergekit, each with its replacement."""
    return table(("mergekit", "ramerge"), [(f"`{flag}`", cell(instead)) for flag, instead in FLAGS.items()])


_TABLES: Mapping[str, Callable[[str], str]] = {
    "method": _method,
    "costs": _costs,
    "adapters": _adapters,
    "servers": _servers,
    "commands": _commands,
    "flags": _flags,
    "names": _names,
    "signatures": _signatures,
    "options": _options,
    "consumers": _consumers,
    "mergekit_flags": _mergekit_flags,
}

if __name__ == "__main__":
    write()
