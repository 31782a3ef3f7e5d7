"""Launchers that start the command several times are warned of."""

import pytest

from ramerge.cli.terminal import warn_of_launcher

pytestmark = pytest.mark.full  # torch, Ray


@pytest.mark.parametrize(
    ("environment", "warned"),
    [
        ({}, False),
        ({"WORLD_SIZE": "1"}, False),
        ({"SLURM_NTASKS": "8"}, False),  # also set for a script that starts no ranks
        ({"WORLD_SIZE": "4"}, True),
        ({"SLURM_STEP_NUM_TASKS": "4"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
    ],
)
def test_a_launcher_that_starts_several(
    environment: dict[str, str], warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_of_launcher(environment)
    said = capsys.readouterr().err
    assert ("start it once, and use --ray" in said) == warned
