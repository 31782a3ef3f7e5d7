"""Where trainers put the policy inside of a run: verl's and SkyRL's steps and roles."""

from __future__ import annotations

from ramerge.formats.files import tag_of
from ramerge.storage.location import Location

_ROLES = ("actor", "policy")  # verl's name, SkyRL's
_LATEST = ("latest_checkpointed_iteration.txt", "latest_ckpt_global_step.txt")


def places(folder: Location) -> list[Location]:
    """Folders that may hold the policy: the one that is named, the latest step of a run, and the policy in each."""
    steps = [folder / f"global_step_{step}" for name in _LATEST if (step := tag_of(folder / name)) is not None]
    return [inner for place in (folder, *steps) for inner in (place, *(place / role for role in _ROLES))]
