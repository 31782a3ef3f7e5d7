"""Ray as Slurm or a person starts it, with real processes: two nodes on this machine, each in namespaces of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import ramerge
from tests.checkpoints import recipe, write_simple

pytestmark = [
    pytest.mark.full,  # Ray
    pytest.mark.thorough,
]

NODES = Path(__file__).with_name("nodes.sh")
# processes, network and mounts that no other program of the machine sees, and that end with the test
APART = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
SIZE = "--num-cpus 1 --memory 2000000000 --object-store-memory 80000000"
MERGE = f"{sys.executable} -m ramerge merge recipe.json out --ray-address auto --no-cache"

COMMANDS = {
    # what srun, mpirun or torchrun --no-python start on every node
    "symmetric-run": f"ray symmetric-run --address $HEAD:6379 --min-nodes 2 {SIZE} -- {MERGE}; echo ended with $?",
    # what is typed on each node
    "by hand": f"""
        if [ $NODE = 2 ]; then
          until ray start --address $HEAD:6379 {SIZE} --block; do sleep 1; done
        else
          ray start --head --node-ip-address $HEAD --port 6379 --include-dashboard false {SIZE} &&
          until [ $(ray status | grep -c ' node_') = 2 ]; do sleep 0.5; done &&
          {MERGE}
        fi""",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not the test's own: names of sockets may have few letters."""
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="nodes", dir="/tmp") as name:
        yield Path(name)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_two_nodes_merge(command: str, folder: Path) -> None:
    source = recipe(folder, write_simple(folder))
    (folder / "recipe.json").write_text(json.dumps(source))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if shutil.which("unshare") is None or subprocess.run([*APART, "ip", "link"], capture_output=True).returncode:
        pytest.skip("namespaces cannot be made here")
    words = [*APART, "sh", str(NODES), str(folder), "sh", "-c", command]
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr + (folder / "said-2").read_text()
    assert "ram+" in done.stdout
    ramerge.merge(source, folder / "here", options=ramerge.Options(cache=False))
    assert (folder / "out/model.safetensors").read_bytes() == (folder / "here/model.safetensors").read_bytes()
