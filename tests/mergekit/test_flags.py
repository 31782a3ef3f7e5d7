"""Whoever types a flag of mergekit reads what replaces it."""

import subprocess
import sys

import pytest

from ramerge.cli.main import COMMANDS
from ramerge.mergekit.translate import FLAGS


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["--cuda"], "--cuda is a flag of mergekit: leave it out: the CPU merges"),
        (["--out-shard-size", "5B"], "--out-shard-size is a flag of mergekit: use --shard-size SIZE"),
        (["--no-copy-tokenizer"], "--no-copy-tokenizer is a flag of mergekit: leave it out: tokenizer files"),
        (["-vv"], "-v is a flag of mergekit: use --debug"),
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
    named = [line.split()[1] for line in errors.splitlines() if " is a flag of mergekit: " in line]
    assert named == ["--cuda", "--lazy-unpickle", "--num-threads"]


def test_every_flag_of_mergekit_yaml_is_answered() -> None:
    """As `mergekit-yaml --help` of 0.1.5 lists them."""
    names = """allow-crimes async-write clone-tensors copy-tokenizer cuda device gpu-rich lazy-unpickle lora-merge-cache
        lora-merge-dtype low-cpu-memory multi-gpu num-threads out-shard-size quiet random-seed read-to-gpu
        safe-serialization transformers-cache trust-remote-code unsafe-truncate-embeddings write-model-card
        write-threads"""
    ours = {flag for option in COMMANDS["merge"].params for flag in option.opts}
    assert {*(f"--{name}" for name in names.split()), "-j", "-v"} - ours == FLAGS.keys()


def test_no_flag_of_ours_is_listed() -> None:
    ours = {flag for command in COMMANDS.values() for option in command.params for flag in option.opts}
    assert not ours & FLAGS.keys()
