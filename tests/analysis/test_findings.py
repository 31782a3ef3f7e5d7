"""What an analysis says of agents of every kind: the right sentences, and none that the figures contradict."""

from pathlib import Path

import pytest

import ramerge
from tests.analysis.families import FAMILIES, write_family
from tests.checkpoints import recipe

SPARSE, DENSE, MIXED = "The updates are sparse", "nearly every element moved", "Not all updates are sparse"
OWN, SHARED = " own", " with other agents, so most of "
ALIKE, CHANCE, UNKNOWN = (
    "times as many places as chance",
    "about as many places as chance",
    "The overlap is what chance would give",
)
GAIN, SAME = "times as much of the agents' updates as averaging", "RAM and averaging leave about the same"
WAYS, ONE_WAY = "the agents move in different directions", "some agents move in much the same direction"
SENTENCES = {SPARSE, DENSE, MIXED, OWN, SHARED, ALIKE, CHANCE, UNKNOWN, GAIN, SAME, WAYS, ONE_WAY}

SAID = {
    "sparse and disjoint": {SPARSE, OWN, CHANCE, GAIN},
    "sparse and shared": {SPARSE, SHARED, ALIKE, SAME},
    "of unequal density": {MIXED, SHARED, OWN, CHANCE, GAIN},
    "dense": {DENSE, SHARED, UNKNOWN, WAYS, SAME},
    "dense and strong": {DENSE, SHARED, UNKNOWN, WAYS, SAME},
    "alike": {DENSE, SHARED, UNKNOWN, ONE_WAY, SAME},
    "single": {SPARSE},
    "foreign": {MIXED, SHARED, OWN, CHANCE, GAIN},
    "swapped, sparse": {SPARSE, SHARED, OWN, ALIKE, GAIN},
    "swapped, dense": {DENSE, SHARED, UNKNOWN, ONE_WAY, SAME},
    "of another base": {DENSE, SHARED, UNKNOWN, ONE_WAY, SAME},
    "equal to the base": {SPARSE, OWN, CHANCE, GAIN},
    "equal to each other": {SPARSE, SHARED, OWN, ALIKE, GAIN},
}


@pytest.mark.full
@pytest.mark.parametrize("kind", SAID)
def test_what_is_said_is_what_the_figures_say(kind: str, tmp_path: Path) -> None:
    found = ramerge.analyze(recipe(tmp_path, write_family(tmp_path, kind)))
    text = " ".join(one.text for one in found.findings)
    assert {sentence for sentence in SENTENCES if sentence in text} == SAID[kind], text


@pytest.mark.full
def test_who_is_meant_is_named(tmp_path: Path) -> None:
    names = write_family(tmp_path, "of unequal density")
    sparsity, overlap, *_ = (one.text for one in ramerge.analyze(recipe(tmp_path, names)).findings)
    assert sparsity.endswith("was moved by memory.")
    of_others = "code (27%) and tool (45%) overlap with other agents, so most of their changes are averaged."
    assert overlap.startswith(f"memory's changes are mostly its own (53%). {of_others} ")


@pytest.mark.full
def test_unmoved_agent_is_left_out_of_findings(tmp_path: Path) -> None:
    names = write_family(tmp_path, "equal to the base")
    sparsity, overlap, dilution, *_ = ramerge.analyze(recipe(tmp_path, names)).findings
    assert sparsity.text.endswith("Nothing was moved by memory.")
    assert "memory" not in overlap.text + overlap.reason + dilution.reason


def test_every_family_is_analyzed() -> None:
    assert set(SAID) <= set(FAMILIES)
