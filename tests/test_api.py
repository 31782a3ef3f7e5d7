"""The public names: their signatures, their examples, and options that are declared once."""

from __future__ import annotations

import doctest
import inspect
import json
import logging
import pickle
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from typing_extensions import assert_type

import ramerge
from ramerge.cli.main import COMMANDS, cli
from ramerge.core.foundation.text import Displayed
from ramerge.core.options import Options, Ray, Upload, in_python, settings_of
from ramerge.demo.run import copy_models
from ramerge.searches.results import TriedPoint
from tests.checkpoints import recipe, simple, write_checkpoint, write_simple
from tests.commands import ramerge as command

DOCS = Path(__file__).parent.parent / "docs"
NAMES = [name for name in ramerge.__all__ if name != "__version__"]
_FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL | doctest.NORMALIZE_WHITESPACE


def score(model: Path) -> dict[str, list[float]]:
    """A score for the examples of `search`."""
    return {"size": [1.0, 2.0]}


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the models of the demo and a recipe."""
    monkeypatch.chdir(tmp_path)
    copy_models(Path(), lambda _: None)
    agents = {"code": "coder", "tool": "tool", "memory": "memory"}
    Path("recipe.yaml").write_text(ramerge.Recipe(base="base", agents=agents).to_yaml())
    return tmp_path


def documented(name: str) -> Iterator[tuple[str, str]]:
    """A public name and its public methods, with docstrings."""
    value = getattr(ramerge, name)
    yield name, inspect.getdoc(value) or ""
    for method, function in vars(value).items() if inspect.isclass(value) else ():
        if not method.startswith("_") and inspect.isfunction(function):
            yield f"{name}.{method}", inspect.getdoc(function) or ""


def needed(name: str) -> list[pytest.MarkDecorator]:
    """Libraries that a name's examples need."""
    texts = " ".join(text for _, text in documented(name))
    libraries = [*(["optuna"] if "earch" in name else []), *(["pandas"] if ".frame(" in texts else [])]
    libraries += ["ray"] if name == "RayError" else []
    libraries += ["httpx"] if name == "EndpointError" else []
    libraries += ["optuna"] if name == "EvaluationError" else []
    return [pytest.mark.needs(*libraries)] if libraries else []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needed(name)) for name in NAMES],
)
def test_every_public_name_has_an_example_that_runs(name: str, models: Path) -> None:
    (_, text), *methods = documented(name)
    assert "Example:\n" in text
    runner, said = doctest.DocTestRunner(optionflags=_FLAGS), []
    for place, docstring in ((name, text), *methods):
        known = {"ramerge": ramerge, "Path": Path, "score": score}
        runner.run(doctest.DocTestParser().get_doctest(docstring, known, place, None, 0), out=said.append)
    assert not runner.summarize(verbose=False).failed, "".join(said)


def test_no_public_function_takes_more_than_eight_parameters() -> None:
    many = {}
    for name in NAMES:
        value = getattr(ramerge, name)
        functions = {name: value} if inspect.isfunction(value) else {}
        if inspect.isclass(value):
            functions = {f"{name}.{key}": each for key, each in vars(value).items() if inspect.isfunction(each)}
        for place, function in functions.items():
            if not place.rpartition(".")[2].startswith("_") and len(inspect.signature(function).parameters) > 8:
                many[place] = len(inspect.signature(function).parameters)
    assert not many


def test_command_line_options_match_the_api() -> None:
    declared = {}
    for cls in (Options, Upload, Ray):
        declared |= {setting.flag.partition("/")[0]: setting for _, _, setting in settings_of(cls)}
        assert {name for name, *_ in settings_of(cls)} | {"upload"} >= {each.name for each in fields(cls)}
        for name, _, setting in settings_of(cls):
            assert f"    {name}: {setting.help}" in (inspect.getdoc(cls) or "")
    merge = COMMANDS["merge"]
    found = {option.opts[0]: option for option in merge.params if isinstance(option, click.Option)}
    assert declared.keys() <= found.keys()
    for flag, setting in declared.items():
        assert (found[flag].help, found[flag].metavar) == (setting.help, setting.metavar)
    reference = (DOCS / "reference" / "options.md").read_text(encoding="utf-8")
    assert all(f"`{setting.flag}`" in reference for setting in declared.values())


def settings_parameters() -> Iterator[tuple[str, str]]:
    """Public functions with their parameters that take an object of settings."""
    for name in NAMES:
        if inspect.isfunction(function := getattr(ramerge, name)):
            for parameter in inspect.signature(function).parameters:
                if parameter in ("options", "settings"):
                    yield name, parameter


@pytest.mark.parametrize(("name", "parameter"), list(settings_parameters()))
def test_a_mapping_is_refused_as_settings(name: str, parameter: str) -> None:
    function = getattr(ramerge, name)
    arguments = {
        key: {} if each.default is inspect.Parameter.empty else each.default
        for key, each in inspect.signature(function).parameters.items()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    }
    with pytest.raises(ramerge.RecipeError, match=rf"^{parameter}: .*write {parameter}=ramerge\.\w+\(threads=1\)$"):
        function(**{**arguments, parameter: {"threads": 1}})


def test_groups_of_options_have_their_class() -> None:
    for name in ("upload", "ray"):
        with pytest.raises(ramerge.RecipeError, match=rf"^{name}: .*write {name}=ramerge"):
            ramerge.plan("recipe.yaml", options=Options(**{name: {"address": "auto"}}))  # type: ignore[arg-type]
    with pytest.raises(ramerge.RecipeError, match="threads: must be a whole number"):
        ramerge.plan({"base": "base", "agents": {"code": "coder"}}, options=Options(threads="2"))  # type: ignore[arg-type]


def test_messages_name_options_as_python_has_them() -> None:
    for cls in (Options, Upload):
        for _, default, setting in settings_of(cls):
            flag = setting.flag.partition("/")[0]
            form = in_python(flag if isinstance(default, bool) else f"{flag} VALUE")
            options = eval(form, {"Options": Options, "Upload": Upload, "Ray": Ray, "VALUE": 1})  # noqa: S307  # text of our own messages
            assert isinstance(options, Options)


@pytest.mark.parametrize(
    ("said", "in_python_said"),
    [
        ("--max-memory: is too little", "options.max_memory: is too little"),
        ("give --prompts a=FILE --prompts b=FILE", 'give prompts={"a": FILE, "b": FILE}'),
        (
            "add --base MODEL, or `ramerge convert M OUT --base BASE`",
            "add base=MODEL, or `ramerge convert M OUT --base BASE`",
        ),
        ("--set allow.vocabulary=common merges", "allow.vocabulary: common in the recipe merges"),
        ("--set parameters.r=much: must be a number", "--set parameters.r=much: must be a number"),
        ("pass --no-cache, or --dtype float32", 'pass Options(cache=False), or dtype="float32"'),
        ("torchrun x --load run", "torchrun x --load run"),
    ],
)
def test_messages_have_keywords_in_python_and_flags_on_the_command_line(said: str, in_python_said: str) -> None:
    error = ramerge.RecipeError(said)
    assert error.problems == (in_python_said,) and str(error) == in_python_said and error.messages == (said,)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # its own bytes
    assert again.problems == error.problems and again.messages == error.messages


def test_options_agree_across_commands() -> None:
    seen: dict[str, tuple[Any, ...]] = {}
    for name, made in COMMANDS.items():
        if made.callback is None or made.callback.__module__.startswith("ramerge_eval"):
            continue
        for option in made.params:
            if option.opts[0] in ("--base", "--agent", "--set", "--json", "--json-file", "--threads", "--max-memory"):
                about = (option.type.name, option.multiple, option.metavar)
                assert seen.setdefault(option.opts[0], about) == about, (name, option.opts[0])


def test_options_do_not_overwrite_each_other() -> None:
    for name, one in COMMANDS.items():
        context = click.Context(one)
        commands = one.commands.values() if isinstance(one, click.Group) else [one]
        for each in commands:
            parameters = each.get_params(context)
            names = [parameter.name for parameter in parameters]
            flags = [flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)]
            for words in (names, flags):
                assert len(set(words)) == len(words), (name, words)


READERS = (
    "merge",
    "sweep",
    "plan",
    "convert",
    "analyze",
    "recommend",
    "report",
    "delta",
    "apply",
    "search",
    "calibrate",
)


@pytest.mark.parametrize("name", READERS)
def test_commands_that_read_models_take_the_same_limits(name: str) -> None:
    flags = {flag for option in COMMANDS[name].params for flag in option.opts}
    assert {"--threads", "--max-memory", "--allow-outside-links", "--json", "--quiet", "--debug"} <= flags
    assert name in ("report", "convert") or "--base" in flags
    assert name in ("report", "convert", "apply") or "--agent" in flags


def test_help_is_in_groups() -> None:
    lines = CliRunner().invoke(cli, ["merge", "--help"]).output.splitlines()
    heads = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert heads == ["Models:", "Prompts:", "Method:", "Output:", "Run:", "Remote:", "Options:"]
    assert all(len(line) <= 80 for line in lines)


def test_a_recipe_with_other_values() -> None:
    given = ramerge.Recipe(base="base", agents={"a": "one"}, parameters={"r": 0.2}, dtype="float32")
    made = given.with_(parameters={"alpha": 1.0}, agents={"b": "two"}, dtype=None)
    assert (made.method, made.dtype, made.parameters) == ("ram+", None, {"r": 0.2, "alpha": 1.0})
    assert [*made.agents] == ["a", "b"] and [*given.agents] == ["a"] and given.dtype == "float32"
    with pytest.raises(ramerge.RecipeError, match="methud"):
        given.with_(methud="ram")


def test_outside_links_are_followed_if_allowed(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    weights = tmp_path / "code" / "model.safetensors"
    weights.rename(tmp_path / "elsewhere.safetensors")
    weights.symlink_to(tmp_path / "elsewhere.safetensors")
    source, allowed = recipe(tmp_path, names), ramerge.Options(allow_outside_links=True)
    assert any("link" in text for text in ramerge.plan(source).problems)
    assert ramerge.plan(source, options=allowed).problems == ()
    assert ramerge.analyze(source, options=allowed).agents["code"].density > 0
    flags = ["--base", tmp_path / "base", "--agent", f"code={tmp_path / 'code'}"]
    assert command("plan", *flags).returncode == 2
    assert command("plan", *flags, "--allow-outside-links").returncode == 0
    assert command("delta", *flags, "--allow-outside-links", tmp_path / "delta").returncode == 0


@pytest.mark.needs("ray")
def test_any_ray_option_selects_ray(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    flags = ["--base", tmp_path / "base", "--agent", f"code={tmp_path / names[0]}", tmp_path / "out"]
    said = command("merge", *flags, "--ray-address", "127.0.0.1:1")
    assert said.returncode == 1 and "no Ray cluster answers at 127.0.0.1:1" in said.stderr
    with pytest.raises(ramerge.RecipeError, match="from this process only"):
        ramerge.plan(recipe(tmp_path, names), options=ramerge.Options(ray=ramerge.Ray())).tensors()


def test_debug_says_what_happens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_simple(tmp_path)
    flags = ["--base", tmp_path / "base", "--agent", f"code={tmp_path / 'code'}", tmp_path / "out"]
    said = command("merge", *flags, "--debug", "--quiet", "--no-cache").stderr
    assert "debug:" in said and "input code: safetensors" in said and "merging: " in said
    assert "debug:" not in command("merge", *flags, "--overwrite", "--quiet").stderr
    with caplog.at_level(logging.DEBUG, logger="ramerge"):
        ramerge.plan(recipe(tmp_path, ["code"]))
    assert any("input code" in record.getMessage() for record in caplog.records)


def test_figures_not_given_are_absent(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    ram = ramerge.merge(recipe(tmp_path, names, "ram"), tmp_path / "ram").agents["code"]
    ties = ramerge.merge(recipe(tmp_path, names, "ties"), tmp_path / "ties").agents["code"]
    assert {"density", "lambda_"} <= {*dir(ram)} and "threshold" not in dir(ram) and not hasattr(ram, "threshold")
    assert "threshold" in dir(ties) and not hasattr(ties, "lambda_")
    assert ram.lambda_ == ram.values["lambda"] == 1


def test_record_agents_match_its_file(tmp_path: Path) -> None:
    record = ramerge.merge(recipe(tmp_path, write_simple(tmp_path)), tmp_path / "out")
    written = json.loads((tmp_path / "out/ramerge.json").read_text())
    assert written == json.loads(record.to_json()) and record.to_dict() == written
    assert [*written["agents"]] == [*record.agents]


def test_numbers_are_printed_or_written(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    flags = ["--base", tmp_path / "base", *(f"--agent={name}={tmp_path / name}" for name in names)]
    said = command("analyze", *flags, "--json", "--json-file", tmp_path / "a.json", "--quiet")
    assert json.loads(said.stdout) == json.loads((tmp_path / "a.json").read_text())


@pytest.mark.needs("optuna")
def test_a_search_takes_flags(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "base", simple(0))
    write_checkpoint(tmp_path / "code", simple(1, moved=0.2))
    (tmp_path / "scores.py").write_text("def score(model):\n    return {'size': [1.0, 2.0]}\n")
    flags = ["--base", "base", "--agent", "code=code", "--vary", "parameters.r=0,0.1", "--no-html"]
    said = command("search", *flags, "--score", "scores.py:score", "--json", "found", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert len(json.loads(said.stdout)["points"]) == 2


def test_wide_tables_stand_in_blocks() -> None:
    from ramerge.cli.terminal import table

    head, rows = ["agent", *"abcdefgh"], [["code", *(["0.123456789"] * 8)], ["memory", *(["1"] * 8)]]
    lines = table(head, rows, 40)
    assert max(map(len, lines)) <= 40
    blocks = "\n".join(lines).split("\n\n")
    assert all([line.split()[0] for line in block.splitlines()] == ["agent", "code", "memory"] for block in blocks)
    assert [name for block in blocks for name in block.split("\n")[0].split()[1:]] == [*"abcdefgh"]
    assert len(table(head, rows, 1000)) == 3


SETTINGS = {
    *("Agent", "Allow", "AsAdapter", "CalibrationSettings", "HandoffSettings", "ModelAccess"),
    *("ModelServer", "Options", "Ray", "Recipe", "Rename", "Rule", "SearchSettings", "Soup", "Upload"),
}
STREAMS = {"MergedTensor", "Progress", "SearchProgress", "TensorStream"}
HOSTILE = "<script>\x1b[2J" + "x" * 5000


def results() -> dict[str, Displayed]:
    """One of every public result."""
    recipe = ramerge.read_recipe("recipe.yaml")
    analysis = ramerge.analyze(recipe)
    record = ramerge.merge(recipe, "merged")
    agreement = ramerge.Agreement(0.5, 0.4, 0.6, 8, 100)
    point = TriedPoint(0, {"method": HOSTILE}, "failed", 1.0, 1.0, failure=HOSTILE)
    w = {"w": np.ones(2, np.float32)}
    examples = [
        *(analysis, record, record.agents["code"], agreement, point),
        *(ramerge.plan(recipe), ramerge.plan(recipe, vary={"parameters.r": [0, 0.1]}), ramerge.recommend(analysis)),
        ramerge.delta("base", "coder", "delta"),
        ramerge.merge_state_dicts(w, {"code": w}, method="task_arithmetic"),
        ramerge.Handoff("trl", HOSTILE, {HOSTILE: HOSTILE}, {HOSTILE: 8}, (), "python"),
        ramerge.Ranking({HOSTILE: {"code": 0.5}}, {HOSTILE: 0.1}, {"code": 8}, True, ()),
        ramerge.ReplySet({"code": []}, True, ()),
        ramerge.SearchResult(
            *((), "grid", 0, {}, {}, (point,), 1, 0, (0,), (), None, None, None, {"score": 0.5}, {}),
        ),
        ramerge.CalibrationRecord(
            **dict.fromkeys(("ramerge_version", "agent", "fingerprint", "device", "dtype"), HOSTILE),
            **dict.fromkeys(
                ("prompts", "held_out", "generated", "rewarded", "tokens", "rows", "layers", "importances"), 1
            ),
            seconds=1.0,
            notes=(),
        ),
    ]
    return {type(each).__name__: each for each in examples}


def test_results_show_one_line_and_a_table(models: Path) -> None:
    shown = results()
    classes = {
        name for name in NAMES if inspect.isclass(value := getattr(ramerge, name)) and not issubclass(value, Exception)
    }
    assert classes - SETTINGS - STREAMS == shown.keys() - {"TriedPoint"}
    for name, result in shown.items():
        text, table = repr(result), result._repr_html_()
        assert text.startswith(f"{name}(") and len(text) <= 403 and text.isprintable(), text
        assert table.count("<table>") == 1 and table.count("<tr>") >= 2
        assert "<script" not in table and "\x1b" not in table and len(table) < 20_000
    assert "finding=" in repr(shown["Analysis"]) and "ram+" in repr(shown["Plan"])
    assert shown["Record"]._repr_html_().count("<tr>") == 4  # a head and three agents
    table = ramerge.analyze("recipe.yaml")._repr_html_()
    assert all(f"<th>{head}</th>" in table for head in ("rho", "lambda (ram+)", "retained by ram+"))


def test_figures_of_agents_are_typed(models: Path) -> None:
    agent = ramerge.merge("recipe.yaml", "merged").agents["code"]
    assert_type(agent.density, float)
    assert_type(agent.shared, int)
    assert_type(agent.lambda_, float | None)
    assert agent.density == agent.values["density"] and agent.lambda_ == agent.values["lambda"]
    assert {"lambda_", "density"} <= {*dir(agent)} and "threshold" not in dir(agent)
    with pytest.raises(AttributeError, match=r"no attribute 'threshold'; figures: \['total'"):
        _ = agent.threshold


def test_wrapped_parameters_are_refused_with_keywords() -> None:
    with pytest.raises(ramerge.RecipeError, match=r"write density=0\.3"):
        ramerge.merge_state_dicts({}, {}, method="ties", parameters={"density": 0.3})
