"""The reference of commands and public names, in Markdown: every flag, signature, type and default.

Help texts and docstrings are the only source. Pages get it by `docs.tables`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from ramerge.cli.options import GroupedOption

_WIDTH = 100
_NO_DEFAULT = inspect.Parameter.empty


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table of Markdown."""
    rule = tuple("---" for _ in head)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def cell(text: str) -> str:
    """Return a text as it may stand in a table."""
    return text.replace("|", "\\|")


# --- commands -------------------------------------------------------------------------------------------------------


def command(name: str, shown: click.Command) -> str:
    """A command: its usage, its help, and a table of flags for each group of them."""
    context = click.Context(shown, info_name=name)
    usage = " ".join(["ramerge", name, *shown.collect_usage_pieces(context)])
    parts = [f"## ramerge {name}", _fence("text", usage), *_help(shown.help or "")]
    groups: dict[str, list[tuple[str, ...]]] = {}
    for option in shown.params:
        if isinstance(option, click.Option):
            group = option.group if isinstance(option, GroupedOption) else "Help"
            groups.setdefault(group, []).append(_flag(option, context))
    for group, rows in groups.items():
        parts.append(f"**{group}**\n\n{table(('flag', 'value', 'default', 'meaning'), rows)}")
    return "\n\n".join(parts)


def _help(text: str) -> Iterator[str]:
    r"""Paragraphs of a help text; those that begin with `\b` are lines to type."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.splitlines()
        yield _fence("text", "\n".join(lines[1:])) if lines[0] == "\b" else _prose(" ".join(lines))


def _flag(option: click.Option, context: click.Context) -> tuple[str, ...]:
    names = "/".join(filter(None, (", ".join(option.opts), ", ".join(option.secondary_opts))))
    value = "" if option.is_flag or option.count else f"`{_value(option, context)}`"
    help_text = _prose((option.help or "").replace("\b", ""))
    return f"`{names}`", cell(value), _flag_default(option, context), cell(help_text)


def _value(option: click.Option, context: click.Context) -> str:
    """A word for the value of a flag and, where that says more, its kind."""
    kind = option.type
    if isinstance(kind, click.Choice):
        return " | ".join(map(str, kind.choices))
    ranged = isinstance(kind, click.IntRange | click.FloatRange)
    limits = f" {kind.min:g} to {'any' if kind.max is None else f'{kind.max:g}'}" if ranged else ""
    number = {"integer": " (integer)", "float": " (number)"}.get(kind.name.removesuffix(" range"), "")
    word = option.metavar or ("N" if number else option.make_metavar(context))
    return f"{word}{' ...' if option.multiple else ''}{number}{limits}"


def _flag_default(option: click.Option, context: click.Context) -> str:
    """The default, where the flag declares one; of others the help says what happens without them."""
    if option.required:
        return "required"
    default = option.get_default(context, call=True)
    if option.secondary_opts:
        return "" if not isinstance(default, bool) else f"`{(option.opts if default else option.secondary_opts)[0]}`"
    return f"`{default}`" if isinstance(default, str | int | float) and default not in (False, "") else ""


# --- public names ---------------------------------------------------------------------------------------------------


def function(module: str, value: Any) -> str:
    """A public function: its signature and its docstring."""
    name = value.__name__
    return "\n\n".join([f"### {name}", _signature(f"{module}.{name}", value), *_documented(value)])


def public_class(cls: type) -> str:
    """A public class: what it is, its attributes with types and defaults, and its methods."""
    name = cls.__name__
    parts = [f"### class {name}", *_documented(cls, fields(cls))]
    for member, value in vars(cls).items():
        function_itself = getattr(value, "__func__", value)
        if member.startswith("_") or not (inspect.isfunction(function_itself) or isinstance(value, property)):
            continue
        if isinstance(value, property):
            head = f"{name}.{member}: {_type(inspect.get_annotations(value.fget).get('return', Any))}"  # type: ignore[arg-type]
            parts += [_fence("py", head), *_documented(value)]
        else:
            parts += [_signature(f"{name}.{member}", function_itself, of_class=True), *_documented(function_itself)]
    return "\n\n".join(parts)


def fields(cls: type) -> Mapping[str, tuple[str, str]]:
    """Public attributes of a class with their types and defaults."""
    if issubclass(cls, BaseModel):
        return {
            name: (_type(field.annotation), _default(_made(field.default, field.default_factory)))
            for name, field in cls.model_fields.items()
        }
    if dataclasses.is_dataclass(cls):
        declared = [field for field in dataclasses.fields(cls) if not field.name.startswith("_")]
        return {
            field.name: (_type(field.type), _default(_made(field.default, field.default_factory))) for field in declared
        }
    bases = reversed(cls.__mro__) if not typing.is_typeddict(cls) else [cls]
    declared_in = [inspect.get_annotations(base) for base in bases if base.__module__.startswith("ramerge")]
    return {name: (_type(kind), "") for each in declared_in for name, kind in each.items() if not name.startswith("_")}


def _made(default: Any, factory: Any) -> Any:
    if default is not dataclasses.MISSING and default is not PydanticUndefined and default is not None:
        return default
    if factory is not dataclasses.MISSING and factory is not None:
        return factory()
    return None if default is None else _NO_DEFAULT


def _signature(name: str, value: Any, of_class: bool = False) -> str:
    """A signature: on one line if it fits, else one line for each parameter."""
    signature = inspect.signature(value)
    shown, kind = [], None
    for parameter in list(signature.parameters.values())[of_class:]:
        if parameter.kind is parameter.KEYWORD_ONLY and kind not in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL):
            shown.append("*")
        kind = parameter.kind
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(kind, "")
        default = _default(parameter.default)
        equals = f" = {default}" if default else ""
        shown.append(f"{stars}{parameter.name}: {_type(parameter.annotation)}{equals}")
    result = f" -> {_type(signature.return_annotation)}"
    line = f"{name}({', '.join(shown)}){result}"
    if len(line) > _WIDTH:
        line = "\n".join([f"{name}(", *(f"    {each}," for each in shown), f"){result}"])
    return _fence("py", line)


def _type(annotation: Any) -> str:
    """A type as one writes it, without what only checks it."""
    if isinstance(annotation, str):
        return re.sub(r"Annotated\[(.+?)(?:, \w+\(\w+\))+\]", r"\1", annotation)
    if annotation is None or annotation is type(None):
        return "None"
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(parts[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(map(_type, parts)))
    if origin is typing.Literal:
        return " | ".join(f'"{part}"' if isinstance(part, str) else str(part) for part in parts)
    if origin is not None and parts:
        return f"{origin.__name__}[{', '.join('...' if part is ... else _type(part) for part in parts)}]"
    return getattr(annotation, "__name__", str(annotation))


def _default(value: Any) -> str:
    """A default as one writes it, or nothing where there is none."""
    if value is _NO_DEFAULT:
        return ""
    if (dataclasses.is_dataclass(value) or isinstance(value, BaseModel)) and value == type(value)():
        return f"{type(value).__name__}()"
    return f'"{value}"' if isinstance(value, str) else repr(value)


# --- docstrings -----------------------------------------------------------------------------------------------------

_TITLES = {"Args": "Arguments", "Raises": "Errors"}


def _documented(value: Any, attributes: Mapping[str, tuple[str, str]] = types.MappingProxyType({})) -> Iterator[str]:
    """A docstring in Google's form as Markdown; attributes stand in a table with types and defaults."""
    for title, lines in _sections(inspect.getdoc(value) or ""):
        if title == "Attributes":
            each = [(name, text) for names, text in _items(lines) for name in names.split(", ")]
            rows = [(f"`{name}`", *_attribute(attributes.get(name)), cell(text)) for name, text in each]
            yield table(("attribute", "type", "default", "meaning"), rows)
        elif title == "Example":
            yield _fence("pycon", "\n".join(lines))
        elif title in ("Returns", "Yields"):
            yield f"**{title}:** {_prose(' '.join(lines))}"
        elif title:
            items = "\n".join(f"- `{name}`: {text}" for name, text in _items(lines))
            yield f"**{_TITLES.get(title, title)}:**\n\n{items}"
        else:
            yield _prose(" ".join(lines))


def _attribute(declared: tuple[str, str] | None) -> tuple[str, str]:
    kind, default = declared or ("", "")
    return (f"`{cell(kind)}`" if kind else ""), (f"`{cell(default)}`" if default else "")


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Paragraphs, without title, and sections: a line that ends in a colon, and the indented lines below it."""
    for part in re.split(r"\n\n(?! )", text):
        lines = part.splitlines()
        indented = [line for line in lines[1:] if line.startswith("    ") or not line]
        if len(lines) > 1 and len(indented) == len(lines) - 1 and lines[0].endswith(":"):
            yield lines[0][:-1], [line[4:] for line in indented]
        else:
            yield "", [line.strip() for line in lines]


def _items(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Names with their descriptions, which may go on in indented lines."""
    found: list[tuple[str, str]] = []
    for line in lines:
        if line.startswith(" ") and found:
            found[-1] = found[-1][0], f"{found[-1][1]} {line.strip()}"
        elif line:
            name, _, text = line.partition(": ")
            found.append((name, text))
    return [(name, _prose(text)) for name, text in found]


def _prose(text: str) -> str:
    """A plain text, in which only backticks mean something, as Markdown."""
    return re.sub(r"(`[^`]*`)|([*<$])", lambda found: found[1] or f"\\{found[2]}", text)


def _fence(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"
