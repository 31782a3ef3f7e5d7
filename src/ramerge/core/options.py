"""Options of a run, declared once for the API, the command line and the reference.

Each field declares its help text, its command-line option, and the group under which `--help` lists it. Nothing slow is
imported, because `ramerge --help` reads this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Setting(NamedTuple):
    """Metadata of a field of `Options` or another class of settings.

    Attributes:
        flag: the command-line option.
        group: the group under which `--help` lists the option, one of `cli.options.GROUPS`.
        help: the help text.
        metavar: the placeholder of the value in `--help`; by default the choices; None for an option without a value.
        repeats: whether the option may be repeated, once for each entry.
        kind: the type of the value on the command line.
        choices: the allowed values, if there are only a few.
    """

    flag: str
    group: str
    help: str
    metavar: str | None = None
    repeats: bool = False
    kind: type = str
    choices: tuple[str, ...] = ()


_DECLARED: set[str] = set()
"""The flags of all settings so far, without dashes."""


def about(*values: Any, **more: Any) -> dict[str, Setting]:
    """Return metadata that makes a field a setting, as in `field(default=16, metadata=about("--limit", ...))`.

    Args:
        values, more: arguments of `Setting`: flag, group, help, metavar and so on.
    """
    setting = Setting(*values, **more)
    _DECLARED.add(setting.flag.partition("/")[0].removeprefix("--"))
    return {"setting": setting._replace(metavar=setting.metavar or "|".join(setting.choices) or None)}


DEVICE = about(
    "--device",
    "run",
    "Device for models and matrix algebra: cpu, cuda, cuda:N, mps, or auto (a GPU where it is faster).",
    "DEVICE",
)
"""The setting `device`, for merges and for commands that run models."""


def settings_of(cls: type) -> Iterator[tuple[str, Any, Setting]]:
    """Yield name, default and setting of each field that is a setting."""
    for each in fields(cls):
        if "setting" in each.metadata:
            yield each.name, each.default, each.metadata["setting"]


def _first_line(each: Field[Any]) -> str:
    """Return a field's help text; for a field that is a group of settings, the first line of the group's docstring."""
    if "setting" in each.metadata:
        return str(each.metadata["setting"].help)
    if "help" in each.metadata:
        return str(each.metadata["help"])
    group = each.default if each.default_factory is MISSING else each.default_factory
    return (group.__doc__ or "").partition("\n")[0]


def documented(cls: type[T]) -> type[T]:
    """Document the fields of a dataclass in its docstring, before the example, with their help texts.

    A field that is a group of settings gets the first line of the group's docstring.
    """
    lines = "".join(f"        {each.name}: {_first_line(each)}\n" for each in fields(cls))  # type: ignore[arg-type]
    text, example, rest = (cls.__doc__ or "").partition("    Example:\n")
    cls.__doc__ = f"{text.rstrip()}\n\n    Attributes:\n{lines}\n{example}{rest}"
    return cls


@documented
@dataclass(frozen=True, kw_only=True)
class Upload:
    """Options for uploading a remote output.

    Example:
        >>> ramerge.Options(upload=ramerge.Upload(staging_dir="/scratch/me")).upload.public
        False
    """

    staging_dir: str | Path | None = field(
        default=None,
        metadata=about(
            "--staging-dir",
            "remote",
            "Local folder for the files of a remote output until they are uploaded; default: in the user's cache "
            "folder. "
            "On a Ray cluster, all nodes must see it.",
            "FOLDER",
        ),
    )
    public: bool = field(
        default=False,
        metadata=about("--public", "remote", "Make a new Hub repository public; default: private."),
    )


@documented
@dataclass(frozen=True, kw_only=True)
class Ray:
    """The Ray cluster that does the work. Its nodes must see inputs and output under the same paths.

    `threads` and `max_memory` then limit each task. If the program is already connected to a cluster, that cluster is
    used.

    Example:
        >>> ramerge.Options(ray=ramerge.Ray(address="auto", init={"namespace": "mine"})).ray.address
        'auto'
    """

    address: str | None = field(
        default=None,
        metadata=about(
            "--ray-address",
            "remote",
            "Address of the cluster; `auto`: the cluster of this machine. Default: the cluster that `ray.init` finds, "
            "or a new one. Implies --ray.",
            "HOST:PORT",
        ),
    )
    init: Mapping[str, Any] | None = field(
        default=None,
        metadata=about(
            "--ray-init",
            "remote",
            "Further arguments of `ray.init`, such as runtime_env.env_vars.NAME=1; repeatable. Implies --ray.",
            "KEY=VALUE",
            repeats=True,
        ),
    )


@documented
@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a run. They do not affect the output's bytes, except for `allow_outside_links` and `device`.

    `device` changes the last digits of matrices that are solved for as a whole, as another processor does.

    Functions ignore options that do not apply to them: `plan` writes nothing, so it ignores `fresh`.

    Example:
        >>> options = ramerge.Options(max_memory="2GB", strict=True)
        >>> plan = ramerge.plan("recipe.yaml", "merged", options=options)
        >>> plan.options.max_memory
        '2GB'
    """

    allow_outside_links: bool = field(
        default=False,
        metadata=about(
            "--allow-outside-links", "models", "Follow symbolic links to files outside of a model's folder."
        ),
    )
    overwrite: bool = field(
        default=False,
        metadata=about(
            "--overwrite",
            "output",
            "Replace an existing output once the new one is complete.",
        ),
    )
    threads: int | None = field(
        default=None,
        metadata=about(
            "--threads", "run", "Worker threads; default: the number of processors plus two.", "N", kind=int
        ),
    )
    max_memory: int | str | None = field(
        default=None,
        metadata=about("--max-memory", "run", "Memory limit of the process: bytes, or a size such as 2GB.", "SIZE"),
    )
    device: str = field(default="auto", metadata=DEVICE)
    cache: bool = field(
        default=True,
        metadata=about(
            "--cache/--no-cache",
            "run",
            "Cache statistics of input files; on by default.",
        ),
    )
    fresh: bool = field(
        default=False,
        metadata=about("--fresh", "run", "Restart from scratch, even if an interrupted run could be resumed."),
    )
    strict: bool = field(default=False, metadata=about("--strict", "run", "Treat every warning as an error."))
    upload: Upload = Upload()
    ray: Ray | None = field(
        default=None,
        metadata=about("--ray", "remote", "Run on the nodes of a Ray cluster; default: threads of this process."),
    )


_OWN = {
    each.flag.partition("/")[0]: (form, name, isinstance(default, bool))
    for cls, form in ((Options, "{}"), (Upload, "upload=Upload({})"), (Ray, "ray=Ray({})"))
    for name, default, each in settings_of(cls)
}
_OTHERS = {
    **{name: name for name in ("base", "method", "dtype", "rounding", "prompts", "importance", "inputs", "vary")},
    **{name: name for name in ("space", "score", "compression", "endpoint", "serve")},
    **{"agent": "agents", "teacher": "teachers", "for": "trainer"},
    **{"prompt-count": "count", "model-dtype": "dtype", "as-delta": 'kind="delta"', "as-adapter": 'kind="adapter"'},
}
"""Keywords of functions and settings by flag, where the flag is declared by no `Setting` or has another name."""
_VALUE = (
    r"(?:b?float\d+|stochastic)\b"
    r"|[\w.]+=[^\s,;)`]*[^\s,;:.)`]"  # a pair
    r"|[\w./-]+\.py:\w+"  # a function
    r"|[A-Z][A-Z_]*(?![\w:=.])"  # a placeholder
    r"|\d[\d.]*(?!\w)"
    r"|\w+(?=`)"  # the last word of a quotation
)
"""Values that follow a flag in messages."""
_FLAG = re.compile(
    rf"\bramerge [a-z]+ [^`;,)]*|(?<![\w-])--(?P<no>no-)?(?P<flag>[a-z][a-z-]*)(?:[ =](?P<value>{_VALUE}))?"
)
"""A command line of `ramerge`, or a flag."""


def in_python(message: str) -> str:
    """Replace flags in a message by keywords of the Python API; command lines of `ramerge` are not changed.

    >>> in_python("merged: exists; pass --overwrite, lower --threads, or give --prompts code=FILE")
    'merged: exists; pass Options(overwrite=True), lower options.threads, or give prompts={"code": FILE}'
    """
    return _FLAG.sub(_keyword, message).replace("} prompts={", ", ") if "--" in message else message


def _keyword(match: re.Match[str]) -> str:
    flag, value = match["flag"], match["value"]
    if flag == "set" and value and not match.string.startswith(":", match.end()):  # before ": " it is what was typed
        return "{}: {} in the recipe".format(*value.split("=", 1))
    if f"--{flag}" in _OWN:
        form, name, is_switch = _OWN[f"--{flag}"]
        if value or is_switch:
            text = _literal(value) if value else str(not match["no"])
            return f"Options({form.format(f'{name}={text}')})"
        group = form.partition("=")[0]
        return f"options.{name}" if form == "{}" else f"options.{group}.{name}"
    if flag not in _OTHERS and flag not in _DECLARED:
        return match[0]
    keyword = _OTHERS.get(flag, str(flag).replace("-", "_"))
    if value:
        return f"{keyword}={_literal(value)}"
    return f"{keyword}=False" if match["no"] else keyword


def _literal(value: str) -> str:
    """Return a flag's value as Python writes it; placeholders such as FILE stay."""
    if "=" in value:
        return "{{{}: {}}}".format(*map(_literal, value.split("=", 1)))
    return value if value.isupper() or value.removeprefix("-").replace(".", "").isdigit() else f'"{value}"'
