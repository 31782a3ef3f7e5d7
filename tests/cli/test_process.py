"""The process as whoever started it sees it: signals, streams, limits, the folder it stands in."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ramerge.core.foundation.errors import reason
from tests.checkpoints import simple, write_checkpoint, write_simple
from tests.commands import ramerge
from tests.messages import Messages

RAMERGE = [sys.executable, "-m", "ramerge"]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]

MERGEKIT = """
merge_method: task_arithmetic
base_model: {0}/base
models: [{{model: {0}/code}}, {{model: {0}/tool}}]
parameters: {{weight: 0.5}}
dtype: float32
"""

# Something else in the place of a merge, which says that it is ready and waits for a line.
_HELD = """
import os, signal, sys
from types import ModuleType
import ramerge
def plan(*_, **__):
    {does}
    raise ramerge.RecipeError("went on")
api = sys.modules["ramerge.api"] = ModuleType("ramerge.api")  # the real one imports NumPy, before streams are looked at
api.plan = plan
from ramerge.cli.main import main
main()
"""


def started(ignored: list[signal.Signals]) -> Callable[[], None]:
    """What a new process finds: signals as a terminal leaves them, but for those that are ignored."""

    def prepare() -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    return prepare


def run(command: list[str], *numbers: signal.Signals, ignored: list[signal.Signals] | None = None, **more: object):
    """Start a process, send it signals when it is ready, let it go on; its exit code and standard error."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes, text=True, preexec_fn=started(ignored or []), **more) as process:
        assert process.stdout.readline() == "ready\n", process.communicate()
        for number in numbers:
            process.send_signal(number)
        _, stderr = process.communicate("\n", timeout=600)
        return process.returncode, stderr


def held(does: str = "print('ready', flush=True); sys.stdin.readline()") -> list[str]:
    return [sys.executable, "-c", _HELD.format(does=does), "merge", "--base", "b", "--agent", "a=a", "out"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signal_ignored_by_the_parent_stays_ignored(number: signal.Signals) -> None:
    assert run(held(), number, ignored=[number]) == (2, "error: went on\n")


@pytest.mark.full
@pytest.mark.parametrize("number", SIGNALS)
def test_other_signals_stop_it(number: signal.Signals) -> None:
    words = f"error: stopped by {number.name}; nothing was kept\n"
    assert run(held(), number, ignored=[one for one in SIGNALS if one != number]) == (128 + number, words)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_modules_are_imported(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    found = run([*RAMERGE, "merge"], number, env={**os.environ, "PYTHONPATH": paths})
    assert found == (128 + number, f"error: stopped by {number.name}; nothing was kept\n")


def test_nothing_is_imported_before_ctrl_c_is_handled() -> None:
    """Nothing of ramerge, that is; in an import, Ctrl-C would print where that was."""
    code = "import sys, ramerge; known = {*sys.modules}; import ramerge.cli.start; print(*{*sys.modules} - known)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = sorted(name for name in done.stdout.split() if name.startswith("ramerge"))
    assert own == ["ramerge.cli", "ramerge.cli.start"]


def test_help_imports_nothing_slow() -> None:
    program = [sys.executable, "-X", "importtime", "-m", "ramerge", "--help"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "click" in imported and not imported & {"numpy", "numba", "pydantic", "torch"}


def test_a_second_signal_does_not_interrupt_cleaning_up() -> None:
    does = (
        "\n    try: print('ready', flush=True); sys.stdin.readline()"
        "\n    finally: signal.raise_signal(signal.SIGTERM); print('cleaned', file=sys.stderr)"
    )
    words = "cleaned\nerror: stopped by SIGINT; nothing was kept\n"
    assert run(held(does), signal.SIGINT) == (130, words)


@pytest.mark.parametrize("where", ["def __del__(self)", "def gone(self, _)"])
def test_a_stop_that_python_drops_is_raised_again(where: str) -> None:
    """What is raised there cannot be caught, and the work would continue to its end."""
    does = f"""
    import weakref
    from ramerge.cli.progress import shown
    from ramerge.core.foundation.progress import Progress
    class Object:
        {where}: signal.raise_signal(signal.SIGINT)
    one = Object()
    noted = weakref.ref(one, getattr(Object(), "gone", None))
    del one
    print("ready", flush=True)
    sys.stdin.readline()
    with shown(quiet=True) as listen: listen(Progress("merging", 1, 2))"""
    assert run(held(does)) == (130, "error: stopped by SIGINT; nothing was kept\n")


def test_signal_to_a_child_ends_the_child() -> None:
    does = (
        "print('ready', flush=True)\n    hears, says = os.pipe()\n    child = os.fork()\n"
        "    if not child: os.write(says, b'.'); signal.pause()\n"
        "    os.read(hears, 1); os.kill(child, signal.SIGTERM)\n"
        "    print(os.waitpid(child, 0)[1], file=sys.stderr)"
    )
    assert run(held(does)) == (2, f"{int(signal.SIGTERM)}\nerror: went on\n")


def shell(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", line.replace("ramerge", " ".join(RAMERGE), 1)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)


AGENTS = "--base ../base --agent code=../code --agent tool=../tool"


@pytest.fixture
def working(tmp_path: Path) -> Path:
    """A folder next to checkpoints."""
    write_simple(tmp_path)
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_closed_streams_are_no_files_of_the_output() -> None:
    does = "print([os.readlink(f'/proc/self/fd/{number}') for number in range(2)], file=sys.stderr)"
    closed = subprocess.run(
        ["bash", "-c", '"$@" <&- >&-', "-", *held(does)], stderr=subprocess.PIPE, text=True, check=False
    )
    assert closed.stderr == "['/dev/null', '/dev/null']\nerror: went on\n"


def test_closed_standard_output_is_a_failure(working: Path, messages: Messages) -> None:
    for words in ("--json-file - --quiet", "--csv tables"):
        done = shell(f"ramerge analyze {AGENTS} {words} >&-", working)
        assert done.returncode == 1
        messages.check(done.stderr.splitlines()[-1])
    done = shell(f"ramerge merge {AGENTS} out --quiet >&-", working)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.needs("altair")
def test_an_analysis_is_said_before_it_is_written(working: Path, messages: Messages) -> None:
    """A file that grows beyond the limit of the process is like a full disk."""
    for flag in ("--html page.html --json-file numbers.json", "--csv tables --html page.html", "--figures drawn"):
        # Python would keep compiled modules that the limit has cut off
        limited = "export PYTHONDONTWRITEBYTECODE=1; trap '' XFSZ; ulimit -f 8"
        done = shell(f"{limited}; ramerge analyze {AGENTS} {flag} --no-cache", working)
        assert done.returncode == 1
        messages.check(done.stderr.splitlines()[-1])
        assert "code" in done.stdout and "3 tensors" in done.stdout
        assert not list(working.iterdir())


@pytest.mark.parametrize("form", ["agents: {{one: {0}/code, two: {0}/tool}}\nbase: {0}/base", MERGEKIT])
def test_inputs_are_never_outputs(form: str, working: Path) -> None:
    """Whatever form the recipe has, and whatever format its models have: weights, configuration, recipe."""
    models = working / "models"
    for name in ("base", "code", "tool"):
        shutil.copytree(working.parent / name, models / name)
    recipe = working / "recipe.yaml"
    recipe.write_text(form.format(models))
    before = {path: path.read_bytes() for path in working.rglob("*") if path.is_file()}
    for place in ("models/code/config.json", "models/code/new.json", "recipe.yaml"):
        done = ramerge("analyze", "recipe.yaml", "--json-file", place, cwd=working)
        assert (done.returncode, done.stdout) == (2, ""), place
    assert ramerge("merge", "recipe.yaml", "out", "--quiet", cwd=working).returncode == 0
    for flag in ("--json-file models/code/new.json", "--csv models/tool", "--html models/base/config.json"):
        assert ramerge("report", "out", *flag.split(), cwd=working).returncode == 2, flag
    shutil.rmtree(working / "out")
    assert before == {path: path.read_bytes() for path in working.rglob("*") if path.is_file()}


def test_files_are_written_though_nobody_reads_the_lines(working: Path) -> None:
    done = shell(f"set -o pipefail; ramerge analyze {AGENTS} --no-cache --json-file numbers.json | true", working)
    assert done.returncode == 1 and json.loads((working / "numbers.json").read_text())["model"]


def test_errors_that_nobody_hears_have_their_exit_code(working: Path) -> None:
    done = shell("ramerge merge nothing.yaml out 2> >(exec true; cat) 2>/dev/full", working)
    assert done.returncode == 2


def test_a_removed_working_folder_is_named(working: Path) -> None:
    folder = working.parent
    agents = AGENTS.replace("..", str(folder))
    done = shell(f"rmdir {working}; ramerge merge {agents} out", working)
    assert (done.returncode, done.stderr) == (
        1,
        "error: the working folder has been removed; change to a folder that exists (cd)\n",
    )


def test_few_files_are_open_at_once(tmp_path: Path) -> None:
    for seed, name in enumerate(("base", "code", "tool")):
        moved = simple(seed, moved=0.5 if seed else 0)["model.layers.0.weight"]
        write_checkpoint(tmp_path / name, {f"w{place}": moved for place in range(48)}, shards=24)
    (tmp_path / "work").mkdir()
    done = shell(f"ulimit -n 64; ramerge merge {AGENTS} out --threads 40 --shard-size 5GB --quiet", tmp_path / "work")
    assert (done.returncode, done.stderr) == (0, "")


def test_files_that_cannot_be_opened_for_their_number() -> None:
    assert "ulimit -n" in reason(OSError(24, "Too many open files"))


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "change the permissions of the file or of its folder"),
        (errno.EEXIST, "a file has the name of a folder"),
        (errno.ENOTDIR, "a part of the path is a file"),
        (errno.EISDIR, "a folder has this name"),
        (errno.EIO, ""),
    ],
)
def test_errors_of_the_system_say_what_to_do(number: int, advice: str) -> None:
    said = os.strerror(number)
    found = reason(OSError(number, said, "x"), where=" at x")
    assert found.startswith(f"{said} at x; {advice}") if advice else found == f"{said} at x"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "file/recipe.yaml"), "file/recipe.yaml: cannot be read: Not a directory; a part of the path is a"),
        (
            ("apply", "--base", "file/base", "d", "out"),
            "'file/base': is neither a path nor a hub id: Not a directory; a part of",
        ),
        (("analyze", *AGENTS.split(), "--csv", "file/x"), "file/x: cannot be written: Not a directory; a part of the"),
    ],
)
def test_paths_through_files(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = ramerge(*words, cwd=tmp_path)
    assert done.returncode in (1, 2) and said in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the address space of other systems cannot be limited")
def test_small_address_space_is_refused(working: Path, messages: Messages) -> None:
    done = shell(f"ulimit -v 460000; ramerge merge {AGENTS} out", working)
    assert done.returncode == 2
    messages.check(done.stderr)
    assert shell("ulimit -v 460000; ramerge --version", working).returncode == 0
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_unexpected_ending_is_a_failure() -> None:
    code = (
        "import sys; from ramerge.cli import main\n"
        "def fail(**_): raise BaseException('odd')\n"
        "main.cli = fail; main.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, "odd" in done.stderr) == (1, True)
