"""Whoever types a flag of mergekit reads what replaces it."""

import subprocess
import sys

import pytest

from ramerge.cli.main import COMMANDS
from ramerge.mergekit.translate import FLAGS


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["--cuda"], "mergekit's --cuda is not needed here; leave it out: merges run on the CPU"),
        (["--out-shard-size", "5B"], "mergekit's --out-shard-size is --shard-size here"),
    ],
)
def test_the_error_names_what_replaces_the_flag(flags: list[str], found: str) -> None:
    command = [sys.executable, "-m", "ramerge.cli.main", "merge", "recipe.yaml", "OUT", *flags]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 2
    assert f"error: {found}" in " ".join(ran.stderr.split())
    assert "Did you mean" not in ran.stderr


def test_all_flags_are_named_at_once() -> None:
    command = [sys.executable, "-m", "ramerge.cli.main", "merge", "recipe.yaml", "OUT", "--cuda", "--lazy-unpickle"]
    errors = subprocess.run([*command, "--num-threads=2"], capture_output=True, text=True).stderr
    named = [line.split()[2] for line in errors.splitlines() if line.startswith("error: mergekit's ")]
    assert named == ["--cuda", "--lazy-unpickle", "--num-threads"]


def test_no_flag_of_ours_is_listed() -> None:
    ours = {flag for command in COMMANDS.values() for option in command.params for flag in option.opts}
    assert not ours & FLAGS.keys()
