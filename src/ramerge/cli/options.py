"""Options of commands, each defined once, and commands whose `--help` shows options in groups."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ramerge.cli.terminal import complain
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.options import Options, Ray, Setting, Upload, settings_of

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


# --- groups -----------------------------------------------------------------------------------------------------------

WORDS = "ramerge.words"
"""The key of a command's arguments in the `meta` of its context."""
_GROUPS = ("models", "prompts", "method", "search", "score", "output", "run", "remote")
"""The groups of options, in the order of `--help`; options without a group come last."""


class GroupedOption(click.Option):
    """An option that `--help` shows under a heading. It refuses an empty value, as from an unset shell variable.

    Args:
        may_be_empty: whether an empty value has a meaning.
    """

    def __init__(self, *words: Any, group: str, may_be_empty: bool = False, **more: Any) -> None:
        super().__init__(*words, **more)
        self.group = group
        self._may_be_empty = may_be_empty

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Refuse empty values. Defaults may be empty: they stand for no value."""
        is_explicit = self.name is not None and ctx.get_parameter_source(self.name) is not ParameterSource.DEFAULT
        if (
            is_explicit
            and not self._may_be_empty
            and (value == "" or (isinstance(value, list | tuple) and "" in value))
        ):
            raise click.BadParameter("is empty; give a value, or leave the option out", ctx, self)
        return super().type_cast_value(ctx, value)


class GroupedCommand(click.Command):
    """A command whose `--help` shows options in groups.

    Its function may have an attribute `late`, a function that returns parameters that are slow to find. It is called
    when the command is used, not when it is listed.
    """

    def __init__(self, *words: Any, **more: Any) -> None:
        self._late: Callable[[], list[click.Parameter]] | None = getattr(more.get("callback"), "late", None)
        self._params: list[click.Parameter] = []
        super().__init__(*words, **more)

    @property
    def params(self) -> list[click.Parameter]:
        """All parameters, including the late ones."""
        if self._late is not None:
            late, self._late = self._late(), None
            self._params = [*self._params, *late]
        return self._params

    @params.setter
    def params(self, params: list[click.Parameter]) -> None:
        self._params = params

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse an option that is given twice, or with its opposite: click would silently take the last."""
        ctx.meta[WORDS] = tuple(args)  # for messages about some that are wrong
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for each in {*order}:
            pair = [next((word for word in words if word in args), "") for words in (each.opts, each.secondary_opts)]
            if all(pair):
                raise click.UsageError(f"{' and '.join(pair)}: give one of them", ctx)
            if (
                isinstance(each, click.Option)
                and order.count(each) > 1
                and not (each.multiple or each.is_flag or each.count)
            ):
                raise click.UsageError(f"{each.opts[0]}: is given {order.count(each)} times; give it once", ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section of `--help` for each group."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option) and (row := each.get_help_record(ctx)) is not None:
                rows.setdefault(getattr(each, "group", "options"), []).append(row)
        for group in (*_GROUPS, "options"):
            if group in rows:
                with formatter.section(group.capitalize()):
                    formatter.write_dl(rows[group])


command = partial(click.command, cls=GroupedCommand)
"""Like `click.command`, for a `GroupedCommand`."""


def option(group: str, *words: str, **more: Any) -> Decorator:
    """Like `click.option`, for an option in a group."""
    return click.option(*words, cls=GroupedOption, group=group, **more)


# --- how a run is carried out -----------------------------------------------------------------------------------------


_PARTS = {"upload": Upload, "ray": Ray}
"""Fields of `Options` that are objects, each with its own options."""


def run_options(*names: str) -> Decorator:
    """Add the options for these fields of `Options`; the command gets all of them as one argument, `options`."""
    own = {key: tuple(about) for key, *about in settings_of(Options)}
    settings: dict[str, tuple[object, Setting]] = {}  # by keys such as `threads` or `upload.staging_dir`
    for name in names:
        if name in own:
            settings[name] = own[name]
        part, _, _ = name.partition(".")
        if part in _PARTS:
            about_part = {f"{part}.{key}": tuple(about) for key, *about in settings_of(_PARTS[part])}
            settings |= about_part if part == name else {name: about_part[name]}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def with_options(*args: Any, **flags: Any) -> None:
            values: dict[str, Any] = {}
            parts: dict[str, dict[str, Any]] = {name: {} for name in _PARTS}
            for key in settings:
                value = flags.pop(key.replace(".", "_"))
                name, _, field = key.partition(".")
                if field and not _is_left_out(value):
                    parts[name][field] = _read_ray_init(value) if field == "init" else value
                elif not field and value is not None:
                    values[key] = value
            asks_for_ray = values.pop("ray", False) or parts["ray"]
            ray = Ray(**parts["ray"]) if asks_for_ray else None
            function(*args, options=Options(**values, upload=Upload(**parts["upload"]), ray=ray), **flags)

        return options(*(_setting_option(key, *about) for key, about in settings.items()))(with_options)

    return decorate


def _setting_option(key: str, default: object, setting: Setting) -> Decorator:
    """Make the option of a setting."""
    words = (setting.flag, key.replace(".", "_"))
    more: dict[str, object] = {"help": setting.help}
    if setting.metavar is None:
        return option(setting.group, *words, is_flag=True, default=default, **more)
    kind = click.Choice(setting.choices) if setting.choices else setting.kind
    more |= {"metavar": setting.metavar, "multiple": setting.repeats, "type": kind}
    if not setting.repeats:
        more |= {"default": default, "show_default": default not in (None, "")}
    return option(setting.group, *words, **more)


def options_of(settings: type, argument: str, *, only: Sequence[str] = (), without: Sequence[str] = ()) -> Decorator:
    """Add options to a command for the fields of a class of settings.

    Args:
        settings: a dataclass whose fields `about` describes.
        argument: the command gets the settings under this name.
        only: names of the fields that become options; by default all. The others keep their defaults.
        without: names of fields that do not become options.
    """
    options_of_settings = [
        each for each in settings_of(settings) if each[0] in (only or (each[0],)) and each[0] not in without
    ]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def with_settings(*args: Any, **flags: Any) -> None:
            settings_object = settings(**{key: flags.pop(f"{argument}_{key}") for key, _, _ in options_of_settings})
            function(*args, **{argument: settings_object}, **flags)

        # under the class's own name: a recipe has a dtype, too, and click lets the later of two options win
        return options(*(_setting_option(f"{argument}_{key}", *about) for key, *about in options_of_settings))(
            with_settings
        )

    return decorate


def _is_left_out(value: object) -> bool:
    """Whether an option was not given: it has no value, or is an unset flag. 0 is a value, although it equals False."""
    return value is None or value is False or value == ()


def _read_ray_init(texts: Iterable[str]) -> dict[str, object]:
    """Parse the keywords of `ray.init` from `--ray-init KEY=VALUE`; dots lead into nested mappings."""
    from ramerge.cli.words import pairs, parse_scalar

    arguments: dict[str, object] = {}
    in_variables = "runtime_env.env_vars."  # these are text, whatever they look like
    for key, text in pairs("--ray-init", texts, "KEY=VALUE, such as --ray-init runtime_env.env_vars.NAME=1"):
        *parents, name = (
            ["runtime_env", "env_vars", key[len(in_variables) :]] if key.startswith(in_variables) else key.split(".")
        )
        mapping = arguments
        for parent in parents:
            inner = mapping.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise RecipeError(f"--ray-init {key}: {parent} is given as a value, too")
            mapping = inner
        mapping[name] = text if key.startswith(in_variables) else parse_scalar(text, f"--ray-init {key}")
    return arguments


# --- further options --------------------------------------------------------------------------------------------------


class _PathOrLocation(click.Path):
    """A local path, or as text also a remote location.

    An empty path is refused, because it would mean the working folder; so is a remote location as a `Path`, which would
    make it local.
    """

    def __init__(self, kind: type[Path] | type[str] = Path) -> None:
        super().__init__(path_type=kind)

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from ramerge.core.storage.schemes import is_remote

        text = os.fspath(value)
        if not text:
            self.fail("is empty; name a path", param, ctx)
        if self.type is Path and is_remote(text):
            self.fail(f"{text} is remote, and must be on this machine", param, ctx)
        return super().convert(value, param, ctx)


PATH = _PathOrLocation()

OUT: Decorator = click.argument("out", type=PATH)
OUT_ANYWHERE: Decorator = click.argument("out", type=_PathOrLocation(str))
BASE: Decorator = option(
    "models", "--base", metavar="MODEL", type=click.Path(), help="Folder or Hub id of the base model."
)
AGENT: Decorator = option(
    "models",
    "--agent",
    "agents",
    metavar="NAME=MODEL",
    multiple=True,
    help="An agent: any name, and its folder or Hub id; repeat for each agent.",
)
_QUIET: Decorator = option("run", "--quiet", is_flag=True, help="Show no progress and no report.")


@dataclass
class Session:
    """One run of the command line.

    Attributes:
        code: the exit code; 1 until a command succeeds.
    """

    debug: bool = False
    code: int = 1


def _set_debug(context: click.Context, _option: click.Parameter, value: bool) -> None:
    session = context.ensure_object(Session)
    if value and not session.debug:
        import logging  # here, because `--help` does without

        class TerminalHandler(logging.Handler):
            """Writes lines to standard error, with untrusted text escaped: seconds since the start, and the message."""

            def emit(self, record: logging.LogRecord) -> None:
                complain("debug", f"{record.relativeCreated / 1000:8.3f}  {record.getMessage()}")

        session.debug = True
        log = logging.getLogger("ramerge")
        log.setLevel(logging.DEBUG)
        log.addHandler(TerminalHandler())
        log.propagate = False


DEBUG: Decorator = option(
    "run",
    "--debug",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_set_debug,
    help="Show each step, and tracebacks.",
)


TALK: tuple[Decorator, ...] = (_QUIET, DEBUG)


def as_json(what: str) -> Decorator:
    """The option `--json`, which prints `what` instead of readable text."""
    return option("output", "--json", "as_json", is_flag=True, help=f"Print {what} as JSON on standard output.")


def printing(what: str) -> Decorator:
    """Options for a command's output: `--json`, which prints `what`, `--quiet` and `--debug`."""
    return options(as_json(what), *TALK)


def options(*decorators: Decorator) -> Decorator:
    """Combine several options, in the order in which `--help` shows them."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


# --- recipes ----------------------------------------------------------------------------------------------------------


METHOD: Decorator = option(
    "method",
    "--method",
    metavar="NAME",
    help="Method, as listed by `ramerge methods`, or auto to choose one with --prompts; default: the recipe's, or "
    "ram+. Setting it drops the recipe's parameters.",
)
SET: Decorator = option(
    "method",
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Override any key of the recipe, such as parameters.r=0.05; repeatable.",
)
_PRESET: Decorator = option(
    "method", "--preset", metavar="NAME", help="A named set of parameters, such as paper, instead of the recipe's."
)
IMPORTANCE, INPUTS = (
    option(
        "models",
        f"--{key}",
        metavar="NAME=FOLDER",
        multiple=True,
        help=f"An agent's {what} from `ramerge calibrate`, for {methods}; repeat for each agent.",
    )
    for key, what, methods in (("importance", "importances", "fisher"), ("inputs", "layer inputs", "regmean and aim"))
)
PROMPTS: Decorator = option(
    "prompts",
    "--prompts",
    "--rollouts",
    "prompts",
    metavar="NAME=PATH",
    multiple=True,
    help="Prompts of an agent's task, or rollouts with replies and rewards: JSON Lines, Parquet, or a folder of "
    "them; repeat for each agent.",
)
DTYPE: Decorator = option(
    "output", "--dtype", metavar="DTYPE", help="Dtype of the merge, such as bfloat16; default: each base tensor's own."
)
ROUNDING: Decorator = option(
    "output",
    "--rounding",
    metavar="HOW",
    help="Rounding to the output's dtype: nearest (default) or stochastic.",
)
SHARD_SIZE: Decorator = option(
    "output", "--shard-size", metavar="SIZE", help="Size of output shards, such as 5GB; default: the base's."
)


def _kind_options() -> list[click.Parameter]:
    """Yield the flag `--as-NAME` and the options of each kind of output other than a checkpoint."""
    from ramerge.core.engine.outputs import CHECKPOINT, OUTPUT_KINDS

    def bare(**_: object) -> None:
        """Collects parameters."""

    for name, kind in OUTPUT_KINDS.usable().items():
        if name != CHECKPOINT:
            option("output", f"--as-{name}", is_flag=True, help=kind.help)(bare)
            for key, *setting in settings_of(type(kind)):
                _setting_option(f"as_{name}_{key}", *setting)(bare)
    return list(getattr(bare, "__click_params__", ()))


def as_kind(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of all kinds of output; the command gets them as one argument, `kind`.

    Raises:
        UsageError: several kinds are given, or a setting without its kind.
    """

    @wraps(function)
    def with_kind(*args: Any, **flags: Any) -> None:
        from ramerge.core.engine.outputs import CHECKPOINT, OUTPUT_KINDS

        kind = OUTPUT_KINDS[CHECKPOINT]
        names = [name for name in OUTPUT_KINDS if flags.get(f"as_{name}")]
        if len(names) > 1:
            raise click.UsageError(f"{' and '.join(f'--as-{name}' for name in names)}: choose one")
        for name, each in OUTPUT_KINDS.usable().items():
            is_chosen = flags.pop(f"as_{name}", False)
            values = {key: flags.pop(f"as_{name}_{key}") for key, *_ in settings_of(type(each))}
            values_of_flags = {key: value for key, value in values.items() if not _is_left_out(value)}
            flag = next((setting.flag for key, _, setting in settings_of(type(each)) if key in values_of_flags), None)
            if flag is not None and not is_chosen:
                raise click.UsageError(f"{flag} belongs to --as-{name}; give both")
            kind = type(each)(**values_of_flags) if is_chosen else kind
        function(*args, kind=kind, **flags)

    with_kind.late = _kind_options  # type: ignore[attr-defined]  # as click keeps its own __click_params__
    return with_kind


WRITE_RECIPE: Decorator = option(
    "output",
    "--write-recipe",
    "recipe_file",
    metavar="FILE",
    type=PATH,
    help="Write the recipe, with all flags applied, to a new file in ramerge's form, and merge nothing; -: print it.",
)
EXPLAIN: Decorator = option("output", "--explain", is_flag=True, help="Explain the numbers, and print further details.")
MODELS: tuple[Decorator, ...] = (BASE, AGENT, SET)
"""Options for the models, for commands that need no method."""
KEYS: tuple[Decorator, ...] = (METHOD, *MODELS, PROMPTS, IMPORTANCE, INPUTS, _PRESET, DTYPE, ROUNDING, SHARD_SIZE)
"""Options for every recipe key."""
RECIPE: tuple[Decorator, ...] = (
    click.argument("paths", nargs=-1, metavar="[RECIPE] [OUT]", type=click.Path()),
    *KEYS,
    printing("the result"),
)
LIMITS = ("threads", "max_memory", "allow_outside_links", "strict")
"""Fields of `Options` for every command that reads models."""
MERGE: Decorator = run_options(*LIMITS, "device", "cache", "overwrite", "fresh", "upload", "ray")
