from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

import ramerge
from ramerge.cli.words import parse_scalar, read_varied, stays_text
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.settings import parse_size, read_limits
from ramerge.core.planning.inputs import open_recipe
from ramerge.core.recipe.checks import check
from ramerge.core.recipe.document import Document, read_document
from ramerge.core.recipe.model import Recipe, Rule
from ramerge.core.recipe.points import make_points
from ramerge.sdk.recipes import recipe_of_words
from ramerge.searches.points import document_of
from tests.messages import Messages

GOOD = """\
method: ram+
base: ./base
agents:
  code: org/code@main
  tool: {model: /models/tool}
parameters: {r: 0.05, epsilon: 1e-6}
dtype: bfloat16
shard_size: 5GB
allow:
  non_finite: true
  config: [rope_theta]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


def problems(folder: Path, text: str) -> tuple[str, ...]:
    with pytest.raises(RecipeError) as raised:
        check(open_recipe(write(folder, text)))
    return raised.value.problems


def test_a_good_recipe(tmp_path: Path) -> None:
    recipe = check(open_recipe(write(tmp_path, GOOD)))
    assert recipe.method == "ram+"
    assert {name: agent.model for name, agent in recipe.agents.items()} == {
        "code": "org/code@main",
        "tool": "/models/tool",
    }
    assert recipe.parameters == {"r": 0.05, "epsilon": 1e-6}
    assert recipe.shard_size == 5_000_000_000
    assert recipe.allow.config == ("rope_theta",)
    assert recipe.folder == tmp_path


def test_what_is_written_is_the_same_recipe(tmp_path: Path) -> None:
    recipe = check(open_recipe(write(tmp_path, GOOD)))
    again = check(open_recipe(write(tmp_path, recipe.to_yaml())))
    assert again.model_dump() == recipe.model_dump()


def test_problems_have_lines_and_suggestions(tmp_path: Path) -> None:
    text = """\
method: ram+
bas: ./base
agents:
  code: 5
  tool: {mdoel: x}
parameters:
  r: strong
  epsilon: -1
  alhpa: 2
dtype: float61
allow: {nonfinite: true}
"""
    found = "\n".join(problems(tmp_path, text))
    for line, words in (
        (2, "unknown key 'bas'; did you mean 'base'?"),
        (4, "agents.code"),
        (5, "unknown key 'mdoel'; did you mean 'model'?"),
        (7, "not 'strong'"),
        (8, "0 or more, not -1"),
        (9, "unknown parameter of ram+ 'alhpa'; did you mean 'alpha'?"),
        (10, "unknown value 'float61'; did you mean 'float64'?"),
        (11, "unknown key 'nonfinite'; did you mean 'non_finite'?"),
    ):
        assert f"recipe.yaml:{line}: " in found
        assert words in found
        assert f"{line} | {text.splitlines()[line - 1]}" in found
    assert "base: is missing" in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is a mapping"),
        ("- a\n- b", "is a mapping"),
        ("a: [", "not valid YAML"),
        ("a: b: c", "not valid YAML"),
        ("method: ram\nparameters: {r: -" + "1_2" * 2500 + "}", "recipe.yaml:2: a whole number of more than 63 bits"),
        ("method: ram\nbase: b\nagents: {a: x}\nmethod: ram+", "'method' is given twice"),
        ("method: ram\nbase: b\nagents:\n  a: x\n  a: y", "'a' is given twice"),
        ("method: ramm\nbase: b\nagents: {a: x}", "did you mean 'ram'"),
        ("method: 5\nbase: b\nagents: {a: x}", "method"),
        ("method: ram\nbase: b\nagents: {}", "agents"),
        ("method: ram\nbase: b\nagents: [a, b]", "agents"),
        ("method: ram\nbase: b\nagents: {' ': x}", "agent name"),
        ("method: ram\nbase: b\nagents: {1: x, '1': y}", "'1' is given twice"),
        ("&a\nmethod: ram\nbase: *a\nagents: {a: x}", "nested too deeply"),
        ("method: ramm\nbase: b\nagents: {a: x}\nshard_size:", "did you mean 'ram'"),
        ("method: ram\nbase: b\nagents: {a: x}\nshard_size: " + "1" * 400 + "GB", "not a size"),
        ("method: ram\nbase: ''\nagents: {a: x}", "base"),
        ("method: ram\nbase: b\nagents: {a: x}\nparameters: {r: 0.1}", "r belongs to ram+"),
        ("method: ram+\nbase: b\nagents: {a: x}\nparameters: {r: .nan}", "finite"),
        ("method: ram+\nbase: b\nagents: {a: x}\nparameters: {r: true}", "number"),
        ("method: ram+\nbase: b\nagents: {a: x}\nparameters: {scope: row}", "scope"),
        ("method: ram+\nbase: b\nagents: {a: x}\nparameters: 5", "parameters"),
        ("method: ram+\nbase: b\nagents: {a: x}\npreset: papr", "did you mean 'paper'"),
        ("method: ram\nbase: b\nagents: {a: x}\npreset: official", "known: paper"),
        ("method: ram\nbase: b\nagents: {a: x}\nshard_size: 5 apples", "not a size"),
        ("method: ram\nbase: b\nagents: {a: x}\nshard_size: -5", "shard_size"),
        ("base: b\nagents: {a: x}\nshard_size: 5", "5 bytes; did you mean 5GB?"),
        ("base: b\nagents: {a: x}\ndtype: bfloat61", "unknown value 'bfloat61'; did you mean 'bfloat16'?"),
        ("base: b\nagents: {a: x}\ndtype: int8", "known: bfloat16, float16, float32, float64"),
        ("base: b\nagents: {a: x}\nr: 0.2", "unknown key 'r'; did you mean 'parameters.r'?"),
        ("method: ram\nbase: b\nagents: {a: x}\ncompanions: c", "unknown agent 'c'"),
        ("method: ram\nbase: b\nagents: {a: x}\nallow: yes please", "allow"),
        ("!!python/object/apply:os.system [echo]", "is a mapping"),
        ("? [a, b]\n: 1", "is no text in YAML"),
        ("method: ram\n?\n  - model: a\nbase: b", "not valid YAML"),
        ("method: !x y\nbase: b", "is neither text nor a number"),
        ("method: 2020-01-01\nbase: b", "write it in quotes"),
        ('method: "\\ud800"', "surrogate"),
        ("method: ram\nshard_size: " + "1" * 400, "more than 63 bits"),
        # Python prints and reads no whole number of so many digits
        *[
            (text, f"recipe.yaml:2: {label}a whole number of more than 63 bits is no value of a key")
            for number in ("0x" + "f" * 5000, "-0o" + "7" * 5000)
            for text, label in (
                (f"base: b\nrounding_seed: {number}", "rounding_seed: "),
                (f"base: b\nshard_size: {number}", "shard_size: "),
                (f"base: b\nparameters: {{weights: {{a: [{number}]}}}}", "parameters.weights.a.0: "),
            )
        ],
        ("base: b\nrounding_seed: " + "9" * 5000, "recipe.yaml:2: a whole number of more than 63 bits"),
        ("base: b\n? 0x" + "f" * 5000 + "\n: 1", "a number: is no text in YAML"),
        *[
            (
                f"base: b\nagents: {{a: x, {key}: y}}",
                f"recipe.yaml:2: agents.{label}: is no text in YAML, so it is no name",
            )
            for key, label in (
                ("~", "null"),
                ("Null", "null"),
                ("", "null"),
                ("true", "true"),
                ("1.50", "1.5"),
                ("0x10", "16"),
                ("2024-01-01", "2024-01-01"),
            )
        ],
        ("a: [" + "1, " * 5000 + "1]", "too many to read"),
        ("a: " + "[" * 40, "nested too deeply"),
        ("a: " + "x" * 300_000, "too long"),
    ],
)
def test_refused(text: str, message: str, tmp_path: Path) -> None:
    assert message in "\n".join(problems(tmp_path, text))


def test_files_that_are_no_recipes(tmp_path: Path, messages: Messages) -> None:
    write(tmp_path, GOOD)
    with messages.raises(RecipeError):
        read_document(tmp_path / "recip.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="UTF-8"):
        read_document(tmp_path / "binary")
    bomb = "a: &a [x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)
    )
    with messages.raises(RecipeError):
        read_document(write(tmp_path, bomb))


@pytest.mark.parametrize("recipe", ["s3://bucket/recipe.yaml", Path("s3://bucket/recipe.yaml")])
def test_remote_recipe_is_refused_by_name(recipe: str | Path, messages: Messages) -> None:
    with messages.raises(RecipeError):
        ramerge.plan(recipe)


def test_whole_numbers_are_bounded(messages: Messages) -> None:
    message = "a whole number of more than 63 bits is no value of a key"
    for text in ("0x" + "f" * 5000, "9" * 5000, "[1, -" + "9" * 5000 + "]", "{a: 0b" + "1" * 64 + "}"):
        with messages.raises(RecipeError):
            parse_scalar(text, "--set parameters.r")
        with messages.raises(RecipeError):
            read_varied([f"parameters.r=[{text}]"])
    assert not stays_text("9" * 5000) and stays_text("x" * 5000)
    assert parse_scalar(str(2**63 - 1)) == 2**63 - 1
    large, agents = 1 << 20_000, {"base": "b", "agents": {"a": "x"}}
    for values in ({"rounding_seed": large}, {"shard_size": large}, {"rules": [{"layers": large, "keep": "base"}]}):
        with pytest.raises(RecipeError, match=r"63 bits|not int of too many digits to print"):
            Recipe(**agents, **values)
    with pytest.raises(RecipeError, match=f"^rounding_seed: {message}"):
        Recipe(**agents).with_(rounding_seed=large)
    with messages.raises(RecipeError):
        make_points(Document({**agents}), {"parameters.r": [0, large]})
    for limits in ({"max_memory": large, "threads": None}, {"max_memory": None, "threads": large}):
        with pytest.raises(RecipeError, match=r"more than 63 bits is no size|from 1 to 1024"):
            read_limits(**limits)


@pytest.mark.parametrize(
    "more", [{3: "x"}, {None: "x"}, {"agents": {3: "x"}}, {"agents": {"a": {"model": "x", 3: 1}}}, {"rules": [{3: 1}]}]
)
def test_keys_of_a_mapping_are_text(more: dict, messages: Messages) -> None:
    with messages.raises(RecipeError):
        ramerge.read_recipe({"base": "b", "agents": {"a": "x"}, **more})
    with messages.raises(RecipeError):
        Recipe(self="x", agents={"a": "x"})


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("a.b", "unknown key 'a'; known: "),
        ("rules.0.keep", "must be a list, not {'0': {'keep': 1}}"),
        ("base.x", "must be text"),
        ("agents.a.foo", "unknown key 'foo'"),
        ("allow.foo", "unknown key 'foo'"),
        ("parameters.rr", "unknown parameter of ram+ 'rr'"),
        ("parameters.epsilon.x", ""),
    ],
)
def test_errors_of_flags_name_the_flag(key: str, message: str, tmp_path: Path) -> None:
    document = read_document(write(tmp_path, "agents: {a: x}"))
    document.set(tuple(key.split(".")), 1, f"--set {key}=1")
    document.set(("method",), "ram+", "--method")
    with pytest.raises(RecipeError) as caught:
        check(open_recipe(document))
    own = [each for each in caught.value.problems if each.startswith(f"--set {key}=1: ")]
    assert own and message in own[0], caught.value.problems


def test_errors_of_files_name_the_file(tmp_path: Path, messages: Messages) -> None:
    document = read_document(write(tmp_path, "base: b"))
    document.set(("agents", "a"), "x", "--agent a")
    document.set(("parameters", "weights"), {"b": 1}, "--set parameters.weights={b: 1}")
    document.set(("method",), "model_stock", "--method")
    with messages.raises(RecipeError):
        check(open_recipe(document))


def test_seventeen_agents_are_too_many(tmp_path: Path, messages: Messages) -> None:
    agents = {f"a{place}": "x" for place in range(17)}
    with messages.raises(RecipeError):
        ramerge.read_recipe({"method": "ram", "base": "b", "agents": agents})


def test_python_gets_the_same_errors(messages: Messages) -> None:
    with messages.raises(RecipeError):
        Recipe(method="ram", base="b", agents={"a": Path("x")}, agnets={})
    assert Recipe(method="ram", base=Path("b"), agents={"a": Path("x")}).agents["a"].model == "x"


def test_numbers_of_numpy_are_plain() -> None:
    mapping = {"base": "b", "agents": {"a": "x"}, "parameters": {"r": np.float32(0.5)}, "rounding_seed": np.int64(3)}
    for recipe in (
        ramerge.read_recipe(mapping),
        Recipe(**mapping),
        Recipe(base="b", agents={"a": "x"}).with_(**mapping),
    ):
        assert recipe.rounding_seed == 3 and '"r":0.5' in recipe.model_dump_json()


def test_settings_override_any_key(tmp_path: Path, messages: Messages) -> None:
    document = read_document(write(tmp_path, GOOD))
    document.set(("parameters", "r"), parse_scalar("2e-1"), "--set parameters.r=2e-1")
    document.set(("agents", "code", "model"), "other", "--set agents.code.model=other")
    document.set(("allow", "extra_tensors"), parse_scalar("true"), "--set allow.extra_tensors=true")
    recipe = check(open_recipe(document))
    assert recipe.parameters["r"] == 0.2
    assert recipe.agents["code"].model == "other"
    assert recipe.allow.extra_tensors
    document.set(("parameters", "r"), "much", "--set parameters.r=much")
    with messages.raises(RecipeError):
        check(open_recipe(document))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *[(text, "bfloat16") for text in ("bf16", "BF16", "torch.bfloat16")],
        *[("half", "float16"), ("fp32", "float32"), ("F64", "float64"), ("Float32", "float32")],
    ],
)
def test_dtypes_have_short_names(text: str, name: str) -> None:
    assert Recipe(base="b", agents={"a": "x"}, dtype=text).dtype == name


def test_ram_plus_is_the_default(tmp_path: Path) -> None:
    assert Recipe(base="b", agents={"a": "x"}).method == "ram+"
    recipe = check(open_recipe(write(tmp_path, "base: b\nagents: {a: x}\nparameters: {r: 0.2}")))
    assert recipe.method == "ram+"
    assert "method: ram+" in recipe.to_yaml()  # what was merged must not depend on a default


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 * 10**9), ("500MiB", 500 * 2**20), ("1.5k", 1500), ("1000", 1000), ("2 GB", 2 * 10**9)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "5PB", "0", "1e9", "5", "999B", "0.5k"])
def test_not_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a size|too small|larger than zero"):
        parse_size(text)


def test_what_must_not_be_empty(tmp_path: Path) -> None:
    path = write(tmp_path, 'base: ""\nagents: {}\n')
    with pytest.raises(RecipeError) as raised:
        check(open_recipe(path))
    assert [problem.splitlines()[0] for problem in raised.value.problems] == [
        f"{path}:1: base: must not be empty",
        f"{path}:2: agents: must not be empty",
    ]


def test_a_copy_with_other_rules_is_that_recipe(tmp_path: Path) -> None:
    recipe = check(open_recipe(write(tmp_path, "base: b\nagents: {a: x}")))
    changed = recipe.model_copy(update={"rules": [Rule(match="*", keep="base")]})
    assert open_recipe(changed).as_dict()["rules"][0]["keep"] == "base"


@pytest.mark.parametrize(
    "seed", ["rounding_seed: {}", "method: dare\nparameters: {{seed: {}}}", "method: della\nparameters: {{seed: {}}}"]
)
@pytest.mark.parametrize("number", [2**63 - 1, 1 - 2**63, 2**63, -(2**63)])
def test_seeds_have_equal_bounds_everywhere(seed: str, number: int, tmp_path: Path) -> None:
    text = "base: ./base\nagents: {code: ./coder}\n" + seed.format(number)
    values = YAML(typ="safe").load(text)
    recipes = [lambda: open_recipe(write(tmp_path, text)), lambda: open_recipe(values)]
    for made in recipes:
        if abs(number) < 2**63:
            check(made())
        else:
            with pytest.raises(RecipeError, match="seed"):
                check(made())


def test_a_key_may_end_with_the_name_of_an_agent_that_has_dots() -> None:
    recipe = Recipe(method="task_arithmetic", base="b", agents={"q2.5": "x"}).with_(agents={"5": "y", "q3.1": "z"})
    weights = {"q2.5": 0.5, "5": 1, "q3.1": 2}
    document = recipe.document
    for make in (document.with_values, lambda values: document_of(document, values)):
        changed = make({f"parameters.weights.{name}": weight for name, weight in weights.items()})
        assert check(changed).parameters == {"weights": weights}
    settings = [f"parameters.weights.{name}={weight}" for name, weight in weights.items()]
    flags = {"settings": settings, "agents": [f"{name}=x" for name in weights], "base": "b"}
    assert check(recipe_of_words([], {**flags, "method": "task_arithmetic"})).parameters == {"weights": weights}


def test_copy_with_another_method_drops_parameters(messages: Messages) -> None:
    agents = {"x": {"model": "x", "importance": "i"}, "y": {"model": "y", "importance": "j"}}
    rules = [{"match": "*norm*", "keep": "base"}, {"match": "*", "parameters": {"normalize": False}}]
    first = Recipe(method="fisher", base="b", agents=agents, parameters={"normalize": True}, rules=rules)
    other = first.with_(method="ties", parameters={"density": 0.3})
    assert (other.method, other.parameters) == ("ties", {"density": 0.3})
    assert other.agents["x"].plain == "x" and [rule.parameters for rule in other.rules] == [None, {}]
    (note,) = other.document.notes
    assert note.startswith("method ties replaces what is fisher's in the recipe: parameters (normalize), ")
    assert "rule 2 (normalize), importance of x and importance of y" in note
    assert first.with_(method="fisher", dtype="float32").parameters == {"normalize": True}
    assert not first.document.notes
    with messages.raises(RecipeError):
        first.with_(method="tiess")
    assert first.with_(method="auto").method == "auto"
