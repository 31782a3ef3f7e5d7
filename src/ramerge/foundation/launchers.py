"""Launchers that start a command once for each processor or machine."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ramerge.foundation.terminal import warn

# Number of processes that torchrun, mpirun and srun set. Slurm sets its own also for a script that starts no ranks, so
# only the one of a step is asked.
_LAUNCHED = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def warn_of_launcher(environment: Mapping[str, str] = os.environ) -> None:
    """Warn if a launcher has started this command several times: each process would do all of the work."""
    for name in _LAUNCHED:
        if environment.get(name, "1").strip() not in ("", "0", "1"):
            text = (
                f"{name}={environment[name]}: a launcher has started this command several times, and each process does "
                "all of the work; start it once, and use --ray for several machines"
            )
            warn([text])
            return
