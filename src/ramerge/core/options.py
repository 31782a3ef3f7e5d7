"""Options of a run, declared once for the API, the command line and the reference.

Each field declares its help text, its command-line option, and the group under which `--help` lists it. Nothing slow is
imported, because `ramerge --help` reads this module.
"""

from __future__ import annotations

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


def about(*values: Any, **more: Any) -> dict[str, Setting]:
    """Return metadata that makes a field a setting, as in `field(default=16, metadata=about("--limit", ...))`.

    Args:
        values, more: arguments of `Setting`: flag, group, help, metavar and so on.
    """
    setting = Setting(*values, **more)
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


def flag_and_keyword(name: str) -> str:
    """Return how to give a setting of `Options` or `Upload` on the command line and in Python, for messages."""
    settings = {key: (cls, setting) for cls in (Options, Upload) for key, _, setting in settings_of(cls)}
    cls, setting = settings[name]
    keyword = f"{name}={'...' if setting.metavar else True}"
    in_python = keyword if cls is Options else f"upload=Upload({keyword})"
    return f"{setting.flag}{f' {setting.metavar}' if setting.metavar else ''} (in Python Options({in_python}))"
