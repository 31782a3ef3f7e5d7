"""The command line as a user meets it: a process, its streams, its exit code."""

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from ramerge.core import methods
from ramerge.core.methods.base import Method
from ramerge.core.methods.registry import METHODS, listed
from tests.checkpoints import floats, simple, write_checkpoint, write_simple
from tests.commands import ramerge
from tests.messages import Messages
from tests.tiers import some

COMMAND = [sys.executable, "-m", "ramerge.cli.main"]


def flags(folder: Path, names: list[str]) -> list[str]:
    agents = [part for name in names for part in ("--agent", f"{name}={folder / name}")]
    return ["--base", str(folder / "base"), *agents]


def write_recipe(folder: Path, names: list[str], more: str = "") -> Path:
    agents = "\n".join(f"  {name}: {name}" for name in names)
    path = folder / "recipe.yaml"
    path.write_text(f"method: ram+\nbase: ./base\nagents:\n{agents}\n{more}")
    return path


def test_recipe_and_flags_give_the_same_merge(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    by_recipe = ramerge("merge", write_recipe(tmp_path, names), tmp_path / "a", "--json", cwd=Path("/"))
    by_flags = ramerge("merge", "--method", "ram+", *flags(tmp_path, names), tmp_path / "b", "--no-cache")
    assert by_recipe.returncode == by_flags.returncode == 0, by_recipe.stderr + by_flags.stderr
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    record = json.loads(by_recipe.stdout)
    assert record == json.loads((tmp_path / "a/ramerge.json").read_text())
    assert list(record) == [
        "ramerge_version", "method", "parameters", "base", "counts", "notes", "input_dtypes", "dtype", "rounding",
        "tensors",
        "merged_tensors", "parameters_count", "bytes_read", "bytes_written", "seconds", "peak_memory_bytes",
        "agents",
    ]  # fmt: skip
    assert list(record["agents"]["code"]) == [
        "model", "total", "active", "shared", "unique", "density", "unique_share", "rho", "lambda",
        "updates", "erased", "erased_share", "sampled", "grown_share", "alone", "nominal_lambda",
        "effective_lambda", "effective_error",
    ]  # fmt: skip
    assert "code" in by_flags.stdout and "lambda" in by_flags.stdout
    assert "counting" in by_flags.stderr and "\r" not in by_flags.stderr and "\x1b" not in by_flags.stderr
    assert by_recipe.stderr == ""


def test_quiet_says_nothing(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    done = ramerge("merge", *flags(tmp_path, names), tmp_path / "out", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_flags_go_on_top_of_a_recipe(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    path = write_recipe(tmp_path, names[:2], "parameters: {r: 0.3}\n")
    planned = json.loads(ramerge("plan", path, "--agent", f"memory={tmp_path / 'memory'}", "--json").stdout)
    assert list(planned["agents"]) == names
    assert planned["parameters"]["r"] == 0.3
    planned = json.loads(
        ramerge("plan", path, "--preset", "official", "--set", "parameters.alpha=0.5", "--json").stdout
    )
    assert (planned["parameters"]["r"], planned["parameters"]["alpha"]) == (0.2, 0.5)


def test_plan_needs_no_output(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    for arguments in ([write_recipe(tmp_path, names)], flags(tmp_path, names)):
        done = ramerge("plan", *arguments)
        assert done.returncode == 0, done.stderr
        for words in ("read", "write", "peak memory", "tensors", "shards", "bfloat16", "ready to merge"):
            assert words in done.stdout
    planned = json.loads(ramerge("plan", *flags(tmp_path, names), tmp_path / "out", "--json").stdout)
    assert planned["bytes_read"] == 2 * 4 * 3 * 640 * 2
    assert planned["disk_free"] > 0


def test_plan_says_which_method_is_the_default(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    assert "ram+, the default (epsilon = 1e-05" in ramerge("plan", *flags(tmp_path, names)).stdout
    assert "the default" not in ramerge("plan", "--method", "ram+", *flags(tmp_path, names)).stdout


def test_hints_on_the_command_line(tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    assert "float16" in ramerge("plan", *flags(tmp_path, names), "--dtype", "fp16").stdout
    done = ramerge("plan", *flags(tmp_path, names), "--set", "r=0.1", "--shard-size", "5", "--dtype", "bfloat61")
    messages.check(done.stderr)
    done = ramerge("sweep", *flags(tmp_path, names), tmp_path / "out", "--vary", "r=0,0.1")
    messages.check(done.stderr)


def test_merge_of_one_agent_is_noted(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    for method, words in (("ram+", "is the agent itself"), ("ties", "nothing to merge it with")):
        done = ramerge("merge", "--method", method, *flags(tmp_path, names[:1]), tmp_path / method)
        assert f"note: {names[0]} is the only agent: " in done.stdout and words in done.stdout
    assert "the only agent" not in ramerge("plan", *flags(tmp_path, names)).stdout


def test_plan_lists_every_problem_and_fails(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    (tmp_path / "tool/model.safetensors").unlink()
    (tmp_path / "code/config.json").write_text("{")
    done = ramerge("plan", write_recipe(tmp_path, names), tmp_path / "base")
    assert done.returncode == 2
    assert done.stderr.count("error: ") == 3
    for words in ("recipe.yaml:5: agents.tool", "5 |   tool: tool", "has no weights", "is one of the inputs"):
        assert words in done.stderr
    assert "Traceback" not in done.stderr


USAGE = """Usage: ramerge merge [OPTIONS] [RECIPE] [OUT]
Try 'ramerge merge --help' for help.

"""
NO_AGENTS = "is missing; add --agent NAME=MODEL for each, or in a recipe agents: {NAME: MODEL}"
ABSENT, ABSENT_AGENT = "error: --base: b: no such folder", "error: --agent x: 1: no such folder"
TWO = ["--base", "./b", "--agent", "x=./1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "error: give a recipe's path, or --base and --agent"),
        (["a", "b", "c"], "error: at most one recipe and one output folder are expected, got a, b, c"),
        (["absent.yaml", "out"], "error: absent.yaml: cannot be read: No such file or directory"),
        (
            ["--base", "b", "--agent", "x", "out"],
            "error: --agent x: must be NAME=MODEL, such as --agent code=./coder",
        ),
        (
            ["--base", "b", "--agent", "x=1", "--agent", "x=2", "out"],
            "error: --agent x: is given twice; give each agent a name of its own",
        ),
        (["--base", "b", "out"], f"error: agents: {NO_AGENTS}\n{ABSENT}"),
        (TWO, "error: no output folder: use ramerge merge RECIPE OUT, or ramerge merge --base ... --agent ... OUT"),
        ([*TWO, "--set", "r", "out"], "error: --set r: must be KEY=VALUE, such as --set parameters.r=0.05"),
        ([*TWO, "--set", "base.deep=1", "out"], "error: --set base.deep=1: base is not a mapping"),
        ([*TWO, "out"], "error: --base: b: no such folder\nerror: --agent x: 1: no such folder"),
        (
            ["--method", "rma", *TWO, "out"],
            f"error: --method: unknown method 'rma'; did you mean 'ram'?\n{ABSENT}\n{ABSENT_AGENT}",
        ),
        (
            [*TWO, "--threads", "0", "out"],
            "error: --threads: must be a whole number from 1 to 1024, not 0",
        ),
        (
            [*TWO, "--max-memory", "lots", "out"],
            "error: --max-memory: 'lots' is not a size such as 5GB or 500MiB",
        ),
        (["--dtyp", "x"], f"{USAGE}error: No such option '--dtyp'. Did you mean '--dtype'?"),
    ],
)
def test_bad_usage_exits_with_code_2(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = ramerge("merge", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{said}\n")
    assert not (tmp_path / "out").exists()


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in ramerge("merge", "absent.yaml", "out", "--debug", cwd=tmp_path).stderr


def test_methods_are_listed_with_parameters_and_source() -> None:
    text = ramerge("methods").stdout
    head, *lines = text.splitlines()
    assert head.split() == ["method", "reads", "what", "it", "is"]
    rows = {line.split()[0]: line[16:22].strip() for line in lines[: lines.index("")]}
    assert list(rows) == list(listed()) and set(rows) == set(METHODS)
    assert (rows["ram"], rows["ram+"], rows["ties"], rows["dare_ties"]) == ("1", "2", "3", "3")
    assert "alpha" not in text and "`ramerge methods ram+` shows" in text
    text = ramerge("methods", "ram+", "ram+s").stdout
    for words in ("ram+s", "alpha = 2.0", "preset official", "arXiv 2601.13572", "epsilon = 1e-05"):
        assert words in text
    assert json.loads(ramerge("methods", "--json").stdout)["ram+"]["parameters"]["r"]["default"] == 0.1


def test_methods_are_listed_under_their_names() -> None:
    folder = Path(methods.__file__).parents[2]
    files = [
        f"{room}.{path.stem}"
        for room in ("core.methods", "soups")
        for path in folder.joinpath(*room.split(".")).glob("[a-z]*.py")
        if path.stem != "page"  # which needs the libraries of an extra
    ]
    found = [value for file in files for value in vars(import_module(f"ramerge.{file}")).values()]
    named = {value.name: value for value in found if isinstance(value, Method)}
    assert named == dict(METHODS)


def test_help_and_version() -> None:
    assert "merge" in ramerge("--help").stdout
    assert "--max-memory" in ramerge("merge", "-h").stdout
    assert ramerge("--version").stdout.startswith("ramerge, version ")


def big(folder: Path) -> list[str]:
    """Checkpoints that take long enough to be stopped in the middle."""
    for name in ("base", "a"):
        tensors = {f"w{place}": floats([0.5]) for place in range(6_000)}
        write_checkpoint(folder / name, tensors)
    return ["a"]


@pytest.mark.parametrize("number", some([signal.SIGINT, signal.SIGHUP], fast=[signal.SIGINT]))
def test_a_signal_says_what_it_leaves(number: signal.Signals, tmp_path: Path) -> None:
    names = big(tmp_path)
    process = subprocess.Popen(
        [*COMMAND, "merge", *flags(tmp_path, names), str(tmp_path / "out")], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 600
    while not list(tmp_path.glob(".out.ramerge-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}; " in stderr
    assert "Traceback" not in stderr
    left = sorted(path.name for path in tmp_path.iterdir())
    if "nothing was kept" in stderr:  # it came before the first block was done
        assert left == ["a", "base"]
        return
    assert " % of the work is kept: the same command resumes from there" in stderr
    assert left == [".out.ramerge-partial", "a", "base"]
    done = ramerge("clean", tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / '.out.ramerge-partial'}: removed\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "base"]
    nothing = "no leftovers of interrupted runs"
    assert ramerge("clean", tmp_path / "a").stdout == f"{tmp_path / 'a'}: {nothing}\n"
    assert ramerge("clean", tmp_path / "out").stdout == f"{tmp_path / 'out'}: no such folder, and {nothing}\n"


def test_a_killed_merge_goes_on(tmp_path: Path) -> None:
    names = big(tmp_path)
    process = subprocess.Popen([*COMMAND, "merge", *flags(tmp_path, names), str(tmp_path / "out"), "--quiet"])
    journal = tmp_path / ".out.ramerge-partial/journal/0001"
    while process.poll() is None and (not journal.exists() or journal.stat().st_size < 4000):
        time.sleep(0.01)
    process.kill()
    process.wait()
    done = ramerge("merge", *flags(tmp_path, names), tmp_path / "out", "--quiet")
    assert done.returncode == 0
    assert done.stderr.startswith(f"note: {tmp_path / 'out'}: continuing: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "base", "out"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_standard_output_is_no_traceback(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "plan", *flags(tmp_path, names)], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_terminal_gets_a_live_bar(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "merge", *flags(tmp_path, names), str(tmp_path / "out")],
        stderr=theirs,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait() == 0
    assert b"counting" in shown and b"merging" in shown and b"kB of" in shown
    assert b"/s" not in shown  # of so short a merge it would mean nothing


@pytest.mark.parametrize("stream", ["2>&-", "2>/dev/full"])
def test_a_merge_goes_on_when_nobody_listens(stream: str, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    command = " ".join([*COMMAND, "merge", *flags(tmp_path, names), str(tmp_path / "out"), stream])
    assert subprocess.run(command, shell=True, stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert (tmp_path / "out/ramerge.json").is_file()


@pytest.mark.parametrize(
    "setting", ["base=~nobody-here/x", 'base="\\0"', "parameters.r=" + "9" * 5000, "base=" + "[" * 5000]
)
def test_odd_settings_are_no_tracebacks(setting: str, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    done = ramerge("plan", *flags(tmp_path, names), "--set", setting)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and "defect" not in done.stderr


def test_a_report_below_warnings_ends_with_their_number(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    swapped = [
        "--base",
        tmp_path / "code",
        "--agent",
        f"code={tmp_path / 'base'}",
        "--agent",
        f"tool={tmp_path / 'tool'}",
    ]
    last = "1 warning, see above (--strict makes it an error)"
    allowed = tmp_path / "swapped.yaml"
    models = "base: ./code\nagents: {code: ./base, tool: ./tool}\nallow: {swapped_base: true}\n"
    allowed.write_text(models)
    for words in (["merge", allowed, tmp_path / "out"], ["analyze", *swapped]):
        done = ramerge(*words)
        assert done.stderr.count("warning: ") == 1 and done.stdout.splitlines()[-1] == last, done.stderr
    assert "see above" not in ramerge("analyze", *flags(tmp_path, names)).stdout
    twice = [*swapped, "--agent", f"other={tmp_path / 'tool'}"]
    done = ramerge("analyze", *twice)
    assert (
        done.stdout.splitlines()[-1]
        == f"{done.stderr.count('warning: ')} warnings, see above (--strict makes them errors)"
    )


NOT_UTF_8 = "the path holds bytes that are not UTF-8; rename the folder"


def test_non_utf8_paths_are_refused(tmp_path: Path) -> None:
    names, odd = write_simple(tmp_path), tmp_path / "\udcff"
    write_checkpoint(odd, simple(1, moved=0.1))
    for words in (
        ("plan", "--base", odd, "--agent", f"a={tmp_path / 'tool'}"),
        ("plan", "--base", tmp_path / "base", "--agent", f"a={odd}"),
        ("convert", odd, tmp_path / "out"),
        ("merge", *flags(tmp_path, names), odd / "out"),
    ):
        done = ramerge(*words)
        assert done.returncode == 2
        assert done.stderr.count(NOT_UTF_8) == 1, done.stderr


@pytest.mark.needs("optuna")
def test_a_search_refuses_such_a_path_likewise(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, write_simple(tmp_path))
    (tmp_path / "space.yaml").write_text("parameters.r: [0, 0.1]\n")
    scored = ("--score", "ramerge.demo.scoring:rewards")
    done = ramerge("search", recipe, tmp_path / "\udcff", "--space", tmp_path / "space.yaml", *scored)
    assert done.returncode == 2
    assert done.stderr.count(NOT_UTF_8) == 1, done.stderr


def test_a_sweep_prints_its_points(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    vary = ["--vary", "parameters.r=0,0.1", "--vary", "parameters.alpha=1,2"]
    done = ramerge("sweep", *flags(tmp_path, names), *vary, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    head, *rows, last, following = done.stdout.splitlines()
    assert head.split() == ["point", *[word for name in names for word in ("lambda", name)]]
    assert all((tmp_path / "out" / row.split()[0] / "model.safetensors").is_file() for row in rows)
    assert following.startswith("next: `ramerge eval --model NAME=FOLDER")
    assert [row.split()[0] for row in rows] == [f"r={r},alpha={alpha}" for r in (0, 0.1) for alpha in (1, 2)]
    assert last.startswith(f"4 checkpoints, the first in {tmp_path / 'out' / rows[0].split()[0]}, in ")
    sums = ["--method", "task_arithmetic", "--vary", "parameters.scale=0.5,1"]
    head, *rows = ramerge("sweep", *flags(tmp_path, names), *sums, tmp_path / "sums").stdout.splitlines()
    assert [line.split() for line in (head, *rows[:2])] == [["point", "scale"], ["scale=0.5", "0.5"], ["scale=1", "1"]]
    printed = json.loads(ramerge("sweep", *flags(tmp_path, names), *vary, tmp_path / "two", "--json").stdout)
    assert [one["point"]["parameters.r"] for one in printed] == [0, 0, 0.1, 0.1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--vary", "parameters.r=0,,1"], "--vary parameters.r=0,,1: a value is missing between commas"),
        (
            ["--vary", "method=ram"],
            "--vary method: only parameters can be varied here, and `ramerge search` varies other keys, too; name one, "
            "such as parameters.r",
        ),
        (
            ["--vary", "parameters.r=0:0.2"],
            "--vary parameters.r=0:0.2: must be KEY=V,V,..., such as --vary parameters.r=0,0.1,0.2; ranges are for "
            "`ramerge search --space FILE`, such as parameters: {r: {from: 0, to: 0.2}}",
        ),
        (["--vary", "parameters.r=1", "--vary", "parameters.r=2"], "--vary parameters.r: is given twice"),
        (["--vary", "parameters.r=0,100"], "--vary parameters.r=100: should be less than or equal to 10, not 100"),
    ],
)
def test_sweeps_that_make_no_sense(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = ramerge("sweep", *flags(tmp_path, write_simple(tmp_path)), *arguments, tmp_path / "out")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {said}\n")
    assert not (tmp_path / "out").exists()


def test_names_of_importances(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    for given, words in ((["cide"], "did you mean 'code'"), (["code", "code"], "code: is given twice")):
        wrong = [word for name in given for word in ("--importance", f"{name}={tmp_path}")]
        done = ramerge("plan", "--method", "fisher", *flags(tmp_path, names), *wrong)
        assert done.returncode == 2 and words in done.stderr


def test_one_method_is_described() -> None:
    done = ramerge("methods", "ties", "linear")
    assert [line.split(":")[0] for line in done.stdout.splitlines() if line[:1].strip()] == ["ties", "linear"]
    assert "normalize = true" in done.stdout
    assert "did you mean 'ties'" in ramerge("methods", "tties").stderr
    assert "decay = 0.9  (0 or more, below 1)" in ramerge("methods", "ema").stdout


def test_a_wall_of_problems_is_cut(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    rules = [f"  - {{match: 'nothing{place}', keep: base}}" for place in range(40)]
    path = write_recipe(tmp_path, names, "rules:\n" + "\n".join(rules) + "\n")
    done = ramerge("merge", path, tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: and 15 more"


def test_a_folder_is_no_recipe(tmp_path: Path, messages: Messages) -> None:
    done = ramerge("merge", tmp_path, tmp_path / "out")
    assert done.returncode == 2
    messages.check(done.stderr)


def test_an_analysis_in_every_form(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    done = ramerge("analyze", *flags(tmp_path, names), "--json-file", tmp_path / "a.json", "--csv", tmp_path / "csv")
    assert done.returncode == 0, done.stderr
    head, *_ = done.stdout.splitlines()
    assert head.split()[:4] == ["agent", "density", "changed", "unique"]
    assert all(f"\n{number}. " in done.stdout for number in (1, 2, 3))
    values = json.loads((tmp_path / "a.json").read_text())
    assert values["schema"] == "ramerge.analysis/1"
    assert [agent["name"] for agent in values["model"]["agents"]] == names
    assert (tmp_path / "csv/agents.csv").is_file()
    assert ramerge("analyze", write_recipe(tmp_path, names), "--quiet").stdout == ""


@pytest.mark.parametrize("rules", ["", "rules:\n  - {match: '*', parameters: {epsilon: {relative: 0.5}}}\n"])
def test_analyses_with_relative_thresholds(rules: str, tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    path = write_recipe(tmp_path, names, f"parameters: {{epsilon: {{relative: 1}}}}\n{rules}")
    done = ramerge("analyze", path, "--json-file", tmp_path / "a.json", "--csv", tmp_path / "csv")
    assert done.returncode == 0, done.stderr
    assert "|agent - base| > 1 x the root mean square of agent - base (" in done.stdout
    values = json.loads((tmp_path / "a.json").read_text())
    assert (values["epsilon"], values["relative_epsilon"]) == (None, 1.0)
    assert (tmp_path / "csv/agents.csv").is_file()
    assert ramerge("recommend", path).returncode == 0


def test_an_analysis_on_standard_output(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    done = ramerge("analyze", *flags(tmp_path, names), "--json", "--csv", tmp_path / "csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == "ramerge.analysis/1"
    assert (tmp_path / "csv/agents.csv").is_file() and not (tmp_path / "-").exists()


def test_recipe_that_may_be_meant_as_output(tmp_path: Path, messages: Messages) -> None:
    names = write_simple(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    for command in ("plan", "merge"):
        done = ramerge(command, *flags(tmp_path, names), "notes.txt", cwd=tmp_path)
        assert done.returncode == 2
        messages.check(done.stderr)
    assert "meant as OUT" not in ramerge("merge", "notes.txt", cwd=tmp_path).stderr
    done = ramerge("plan", *flags(tmp_path, names), "s3://bucket/out?versionId=1", cwd=tmp_path)
    assert done.returncode == 2
    messages.check(done.stderr)


def test_limits_are_shown_as_they_are(tmp_path: Path) -> None:
    done = ramerge("plan", *flags(tmp_path, write_simple(tmp_path)), "--max-memory", "1KB")
    assert done.returncode == 2 and done.stderr.startswith("error: --max-memory: 1,000 bytes")


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "fp8", "int8"])
def test_unknown_dtype_lists_the_known(dtype: str, tmp_path: Path) -> None:
    done = ramerge("plan", *flags(tmp_path, write_simple(tmp_path)), "--dtype", dtype)
    said = f"error: --dtype: unknown value '{dtype}'; known: bfloat16, float16, float32, float64, widest, like_base"
    assert done.stderr.splitlines() == [said]


@pytest.mark.needs("altair")
def test_a_report_of_a_finished_merge(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    assert ramerge("merge", write_recipe(tmp_path, names), tmp_path / "out").returncode == 0
    done = ramerge("report", tmp_path / "out", "--figures", tmp_path / "figures")
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "out/report.html") in done.stdout
    page = (tmp_path / "out/report.html").read_text()
    assert "bytes_read" in page or "bytes read" in page
    assert list((tmp_path / "figures").glob("*.svg"))
    assert "is not what was merged" not in done.stdout
    head = f"{tmp_path / 'out'}: merged by ram+. What training changed in its agents:"
    assert done.stdout.startswith(f"{head}\n")
    assert ramerge("merge", *flags(tmp_path, names), "--method", "swudi", tmp_path / "other").returncode == 0
    other = ramerge("report", tmp_path / "other").stdout
    assert "merged by swudi. What training changed in its agents; figures of a merge are those of ram, not" in other
    write_checkpoint(tmp_path / names[0], simple(9, moved=0.2))
    assert f"{names[0]} is not what was merged" in ramerge("report", tmp_path / "out").stdout


@pytest.mark.parametrize(
    "command",
    [
        "analyze",
        "analyze one.yaml two.yaml",
        "analyze --base missing --agent a=none",
        "report nowhere",
        "report base",
    ],
)
def test_analyses_of_wrong_inputs(command: str, tmp_path: Path, messages: Messages) -> None:
    write_simple(tmp_path)
    done = ramerge(*shlex.split(command), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    messages.check(done.stderr)


@pytest.mark.parametrize(
    "options",
    [
        "--epsilons 1e-4,x",
        "--epsilons -1",
        "--epsilons ''",
        "--html x --json-file x",
        "--html - --json-file -",
        "--html - --json",
        "--html ''",
        "--html base",
        "--html /dev/null",
        "--csv x --json-file ./x",
        "--csv tables --json-file tables/agents.csv",
        "--csv -",
        "--csv code",
        "--csv base/model.safetensors",
        "--csv base/tables",
        "--figures x/y --json-file x",
        "--figures ''",
        "--json --json-file -",
        "--json-file base/model.safetensors/x",
        "--json-file base/config.json",
    ],
)
def test_analyses_with_wrong_options(options: str, tmp_path: Path, messages: Messages) -> None:
    write_simple(tmp_path)
    done = ramerge("analyze", "--base", "base", "--agent", "code=code", *shlex.split(options), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    messages.check(done.stderr)


def test_missing_model_and_empty_name_are_refused(tmp_path: Path, messages: Messages) -> None:
    done = ramerge("plan", f"{tmp_path / 'base'}+{tmp_path / 'lora'}")
    assert done.returncode == 2
    messages.check(done.stderr)
    for command in ("plan", "convert"):
        done = ramerge(command, "", *([tmp_path / "out"] if command == "convert" else []))
        assert done.returncode == 2
        messages.check(done.stderr)
