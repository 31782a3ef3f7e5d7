"""Mistakes of new users, and what they read: what is wrong, and what to do."""

import shlex
from pathlib import Path
from shutil import copytree

import pytest

from ramerge.demo.run import copy_models
from tests.commands import ramerge

NEITHER = "no such folder, and the hub provides no such model"
MODELS = "--base base --agent code=coder --agent tool=tool"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of the demo, and what a new user has made next to them."""
    path = tmp_path_factory.mktemp("mistakes")
    copy_models(path, lambda _text: None)
    (path / "runs").mkdir()
    copytree(path / "coder", path / "runs/code/global_step_10")
    (path / "empty").mkdir()
    (path / "adapter").mkdir()
    (path / "adapter/adapter_config.json").write_text('{"peft_type": "LORA", "r": 1, "lora_alpha": 1}')
    (path / "adapter/adapter_model.safetensors").write_bytes((path / "tool/model.safetensors").read_bytes())
    for step in (100, 200, 1000):
        (path / f"trl/checkpoint-{step}").mkdir(parents=True)
        (path / f"trl/checkpoint-{step}/model.safetensors").write_bytes(b"")
    (path / "linked").mkdir()
    for name in ("model.safetensors", "config.json"):
        (path / "linked" / name).symlink_to(path / "coder" / name)
    for name in ("one", "two"):
        ramerge("delta", "--base", "base", "--agent", f"a={'coder' if name == 'one' else 'tool'}", name, cwd=path)
    for name in ("searched", "unfinished"):
        (path / name).mkdir()
        (path / name / "asked.json").write_text("{}")
    (path / "searched/best").mkdir()
    for name in ("code", "tool"):
        (path / "gathered" / name).mkdir(parents=True)
    (path / "runs/moved.yaml").write_text("base: ../nowhere/base\nagents: {code: ../coder}\n")
    (path / "mergekit.yaml").write_text("merge_method: ties\nbase_model: base\nmodels: [{model: coder}]\n")
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("merg", "error: unknown command 'merg'; did you mean 'merge'?"),
        ("evaluate", "error: unknown command 'evaluate'; did you mean 'eval'?"),
        ("xyz", "error: unknown command 'xyz'; known: analyze, apply, "),
        (
            "soup runs/cod OUT",
            "error: runs/cod: no such folder, and the hub provides no such model; did you mean runs/code?",
        ),
        (
            "merge --base base --agent code=runs/cod OUT",
            "runs/cod: no such folder, and the hub provides no such model; did you",
        ),
        ("report nope", "error: nope: no such folder"),
        ("merge OUT runs/moved.yaml", "the recipe comes first, and then the output folder: runs/moved.yaml OUT"),
        (
            "merge base coder tool OUT",
            "; models are named by options: --base base --agent coder=coder --agent tool=tool",
        ),
        ("recommend base coder tool", "models are named by options: --base base --agent coder=coder --agent tool=tool"),
        ("merge --base base --agent code = coder OUT", "error: --agent code: must be NAME=MODEL, such as --agent code"),
        (f"merge {MODELS} --density 0.3 OUT", "error: no such option: --density; use --set parameters.density=VALUE"),
        (f"recommend {MODELS} --method ram", "leave --method out; to compare methods of your choice, run"),
        (f"merge {MODELS} -o OUT", "error: no such option: -o; the output folder is the last word, without an option"),
        (f"merge {MODELS} --output OUT", "no such option: --output; the output folder is the last word"),
        ("merge base --agent code=coder OUT", "base: is a folder, not a recipe; give models with --base and --agent"),
        (f"merge {MODELS} base", "error: base: is one of the inputs; choose another folder"),
        ("merge --base base --agent code=base OUT", "is the base itself, so it has no task vector; leave it out, or"),
        (f"merge {MODELS} --method ties-merging OUT", "unknown method 'ties-merging'; did you mean 'ties'?"),
        (f"merge {MODELS} --method TSV-Merge OUT", "unknown method 'TSV-Merge'; did you mean 'tsvm'?"),
        (f"merge {MODELS} --method 'Model-Breadcrumbs' OUT", "did you mean 'breadcrumbs'?"),
        ("methods task-arithmetics", "did you mean 'task_arithmetic'?"),
        (f"merge {MODELS} --method greedy OUT", "strategy of another command: ramerge soup RUN OUT --strategy gr"),
        (
            "merge --base base --agent code=trl OUT",
            "trl/checkpoint-1000, the last of 3 such folders",
        ),
        (
            "merge --base base --agent code=linked OUT",
            "outside the checkpoint, as does config.json; if you trust them, give the option --allow-outside-links",
        ),
        (f"merge {MODELS} --method ramplus OUT", "error: --method: unknown method 'ramplus'; did you mean 'ram+'?"),
        ("merge --base base/model.safetensors --agent code=coder OUT", "is a file; give the folder that holds config"),
        (f"merge {MODELS} --set parameters.weight=1 --method ties OUT", "'weight'; did you mean 'weights'?"),
        (f"sweep {MODELS} OUT --vary r=0,1", "varies other keys, too; did you mean parameters.r?"),
        ("soup runs OUT", "error: runs: holds no checkpoints with a step in their names, such as global_step_10"),
        ("convert coder OUT --dtype int8", "error: --dtype: unknown value 'int8'; known: bfloat16, float16"),
        ("report coder", "error: coder: is not a finished merge: ramerge.yaml and ramerge.json are missing"),
        ("report coder page.html", "error: got page.html next to coder: name one merge; a page is written to another "),
        ("report coder page.html", " file with --html page.html"),
        (
            "soup runs/code OUT --as-delta",
            "error: --as-delta: there is no base; name the model that the output is for (--base",
        ),
        ("plan --base empty --agent code=coder", "empty: is an empty folder; give the folder that holds config.json"),
        ("plan --base adapter --agent code=coder", "needs its base model: give the model as the base (--base MODEL)"),
        (
            f"plan {MODELS} --set parameters.r 0.1",
            "error: --set parameters.r: must be KEY=VALUE, such as --set parameters.r=0.05",
        ),
        (
            "plan mergekit.yaml --method ram",
            "use merge_method, or write it in ramerge's own form first: `ramerge plan RECIPE",
        ),
        (
            "plan --base runs/base --agent code=coder",
            "no such model; `ramerge demo --models runs` makes tiny models of such names",
        ),
        ("merge MERGED", "error: MERGED: was read as the recipe, because no models are named; if it is meant as OUT"),
        ("delta base coder OUT", "(coder OUT); models are named by options: --base MODEL --agent NAME=MODEL"),
        (
            "apply --base base coder OUT",
            "coder: is not a delta (safetensors files); give a folder that `ramerge delta`",
        ),
        (
            f"merge {MODELS} --method regmean --inputs code=gathered --inputs tool=gathered OUT",
            "gathered: holds a folder for each agent; give",
        ),
        ("apply tool coder", "no base: give the model that the first delta is for with --base MODEL"),
        ("apply --base base OUT", "OUT: is OUT, the folder to write, and no DELTA comes before it"),
        ("apply --base base one two", "two: is a delta, but the last word is OUT, the folder to write"),
        ("convert coder OUT --dtype float32 --set dtype=bfloat16", "--set dtype: is given twice, also by --dtype"),
        (f"merge {MODELS} OUT --set dtype=float32 --set dtype=float16", "error: --set dtype: is given twice; give it"),
        ("analyze no/such", "error: no/such: no such recipe, and no such folder of a model"),
        ("analyze base/model.safetensors --base base", "was read as the recipe, because it is a file; models are fold"),
        (
            f"sweep {MODELS} OUT",
            "error: --vary KEY=V,V,... is missing. Values of a parameter, such as parameters.r=0,0.1",
        ),
        (f"search {MODELS} OUT --html --no-html", "error: --html and --no-html: give one of them"),
        ("report s3://bucket/x", "s3://bucket/x is remote, and must be on this machine"),
        (f"analyze {MODELS} --html s3://bucket/x.html", "s3://bucket/x.html is remote, and must be on this machine"),
        ("demo --models s3://bucket/x", "s3://bucket/x is remote, and must be on this machine"),
        (f"calibrate {MODELS} s3://bucket/x", "s3://bucket/x: cannot be the folder of a calibration: it must be on"),
        (
            f"search {MODELS} --score m:f s3://bucket/x",
            "s3://bucket/x: cannot be the folder of a search: it must be",
        ),
        ("report searched", "searched: is a search or greedy soup; name its best merge, searched/best"),
        ("report unfinished", "unfinished: is a search or greedy soup that has not ended"),
        (f"search {MODELS} OUT --score m:f --serve vllm", "error: --serve: is for tasks and prompts, and --score name"),
        (
            "plan --base base+one --agent code=coder --agent tool=tool --as-delta",
            "`ramerge convert base+one BASE`",
        ),
        ("plan runs/moved.yaml", "base: runs/../nowhere/base: no such folder\n"),
        # 0 and empty values are values
        (f"merge {MODELS} --rank 0 OUT", "error: --rank belongs to --as-adapter; give both"),
        (f"merge {MODELS} --energy 0 OUT", "error: --energy belongs to --as-adapter; give both"),
        (f"merge {MODELS} --as-adapter --rank 0 OUT", "error: --rank: must be at least 1, not 0"),
        (f"plan {MODELS} --as-adapter --energy 0", "error: --energy: must be more than 0 and at most 1, such as 0.99"),
        (f"plan {MODELS} --as-adapter --rank 0 --energy 0", "--rank and --energy: each of them decides the ranks"),
        ("merge --base '' OUT", "error: Invalid value for '--base': is empty; give a value, or leave the option out"),
        (f"search {MODELS} OUT --vary parameters.r=0,1 --score my.py:score --reward ''", "'--reward': is empty"),
    ],
)
def test_what_a_new_user_reads(words: str, said: str, folder: Path) -> None:
    done = ramerge(*shlex.split(words), cwd=folder)
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_clean_keeps_an_unfinished_search_and_says_so(folder: Path) -> None:
    done = ramerge("clean", "unfinished", "searched", cwd=folder)
    unfinished, searched = done.stdout.splitlines()
    assert unfinished.startswith(
        "unfinished: holds a search or greedy soup that has not ended, and is kept: its command"
    )
    assert searched == "searched: no leftovers of interrupted runs"
    assert (folder / "unfinished/asked.json").exists()


def test_without_a_command_the_help_is_shown_once() -> None:
    done = ramerge()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ramerge("--help").stdout


def test_another_method_replaces_parameters_with_a_note(folder: Path) -> None:
    assert ramerge("merge", *MODELS.split(), "first", "--quiet", "--overwrite", cwd=folder).returncode == 0
    recipe = ["first/ramerge.yaml", "--method"]
    done = ramerge("plan", *recipe, "ties", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "note: --method ties replaces what is ram+'s in the recipe: parameters (epsilon, " in done.stdout
    assert "replaces" not in ramerge("plan", *recipe, "ram+", cwd=folder).stdout
    assert "density = 0.3" in ramerge("plan", *recipe, "ties", "--set", "parameters.density=0.3", cwd=folder).stdout
    assert "--method: auto chooses with prompts" in ramerge("plan", *recipe, "auto", cwd=folder).stderr
    assert "unknown method 'rma'; did you mean 'ram'?" in ramerge("plan", *recipe, "rma", cwd=folder).stderr


def test_a_list_of_formats_names_each_once(folder: Path) -> None:
    done = ramerge("plan", "--base", "runs", "--agent", "code=coder", cwd=folder)
    assert done.stderr.count("safetensors files") == 1


def test_a_conversion_is_called_one_model(folder: Path) -> None:
    assert "converted: one model; " in ramerge("convert", "coder", "converted", "--overwrite", cwd=folder).stdout


LEVELS = """
base: base
agents: {code: coder}
alpha: 3
scale: 1
"""
ALL = """
method: tiess
base: bas
agents:
  code: codr
  tool: {path: tool, weight: 1}
parameters: {density: 3, r: 1}
"""
RECIPES = {
    "agent: {code: coder}": [
        "agents: is missing; add --agent",
        "base: is missing",
        "1: agent: ",
        "did you mean 'agents'?",
    ],
    LEVELS: [
        "4: alpha: unknown key 'alpha'; did you mean 'parameters.alpha'?",
        "5: scale: unknown key 'scale'; it is a parameter of ",
        "and ram+ has epsilon, shared",
    ],
    ALL: [
        "2: method: unknown method 'tiess'; did you mean 'ties'?",
        "6: agents.tool.path: unknown key 'path'; known: model, ",
        "6: agents.tool.weight: unknown key 'weight'; ",
        "7: parameters.r: unknown parameter of ties 'r'",
        "7: parameters.density: must be 0 to 1, not 3",
        "3: base: bas: no such folder; did you mean base?",
        "5: agents.code: codr: no such folder; did you mean coder?",
    ],
    "base_model: base\nagents: {code: coder}\nparameters: [r]": [
        "base: is missing, but ram+ needs it; add --base MODEL, or in a recipe base: MODEL",
        "1: base_model: unknown key 'base_model'; did you mean 'base'?",
        "3: parameters: must be a mapping, such as {key: value}",
    ],
    "method: task_arithmetic\nbase: base\nagents: {code: coder}\nparameters: {scale: x, weights: {cod: 1}}": [
        "scale: must be a number, not 'x'",
        "unknown agent 'cod'; did you mean 'code'?",
        "weights: has no value for code",
    ],
    # what is no YAML, with the line where that begins
    "agents:\n  code: coder\n  tool tool\nmethod: ram": ["3: not valid YAML: a colon is missing", "3 |   tool tool"],
    "agents:\n  code: coder\n  tool:./tool\nmethod: ram": [
        "3: not valid YAML: a space is missing",
        "3 |   tool:./tool",
    ],
    "agents:\n  code:./coder\n  tool: tool": ["2: not valid YAML: a space is missing after", "2 |   code:./coder"],
    "base: base\nmethod:ram # best\nagents: {}": ["2: not valid YAML: a space is missing after", "2 | method:ram"],
    'base: "base\nagents:\n  code: coder\n': ["1: not valid YAML: a quotation mark is not closed", '1 | base: "base'],
    "base: base\nparameters: {r: 1\nmethod: ram": ["2: not valid YAML: a brace is not closed", "2 | parameters: {r"],
    "base: base\nagents:\n\tcode: coder": ["3: not valid YAML: is indented with a tab", "3 | "],
    "agents:\n  code: coder\n   tool: tool": ["3: not valid YAML: unexpected colon", "3 |    tool"],
    "agents:\n    code: coder\n  tool: tool": ["3: not valid YAML: does not line up with the lines", "3 |   tool"],
}


@pytest.mark.parametrize("text", RECIPES)
def test_all_mistakes_of_a_recipe_are_reported(text: str, folder: Path) -> None:
    (folder / "wrong.yaml").write_text(text)
    said = ramerge("plan", "wrong.yaml", cwd=folder).stderr
    places = [said.find(words) for words in RECIPES[text]]
    assert -1 not in places and places == sorted(places), said
    assert said.count("error: ") <= len(RECIPES[text])


def test_the_agent_that_passthrough_takes_is_said(folder: Path) -> None:
    words = ["merge", *MODELS.split(), "--method", "passthrough", "--overwrite", "PT"]
    first = ramerge(*words, cwd=folder)
    assert first.stdout.startswith("PT: one model, code; ")
    assert (
        "note: passthrough takes one agent: code; it leaves out tool (parameters.agent names another)" in first.stdout
    )
    second = ramerge(*words, "--set", "parameters.agent=tool", cwd=folder)
    assert second.stdout.startswith("PT: one model, tool; ") and "takes one agent" not in second.stdout
    one = ramerge("convert", "coder", "PT", "--overwrite", cwd=folder)
    assert one.stdout.startswith("PT: one model; ") and "leaves out" not in one.stdout


@pytest.mark.parametrize(
    "words", ["apply --base coder base OUT", f"plan {MODELS}", "plan --base adapter --agent base=base"]
)
def test_messages_name_local_paths_as_typed(words: str, folder: Path) -> None:
    done = ramerge(*shlex.split(words), cwd=folder)
    assert "base" in done.stdout + done.stderr
    assert str(folder) not in done.stdout + done.stderr


def test_help_shows_no_empty_defaults() -> None:
    assert '[default: ""]' not in ramerge("calibrate", "--help").stdout
