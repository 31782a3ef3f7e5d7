"""Hub ids, answered from a cache laid out as huggingface_hub lays it out."""

import os
from pathlib import Path

import pytest

import ramerge
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.storage.resolve import resolve
from tests.checkpoints import simple, write_checkpoint, write_simple

REVISION = "0123456789012345678901234567890123456789"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with `org/tool`, in which `main` is one revision; files are links into `blobs`."""
    from huggingface_hub import constants

    cache = tmp_path / "cache"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    repository = cache / "models--org--tool"
    snapshot = repository / "snapshots" / REVISION
    made = write_checkpoint(tmp_path / "made", simple(2, moved=0.4))
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(REVISION)
    (repository / "blobs").mkdir()
    snapshot.mkdir(parents=True)
    for path in made.iterdir():
        path.rename(repository / "blobs" / f"blob-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/blob-{path.name}")
    made.rmdir()
    return cache


@pytest.mark.parametrize("revision", ["", "@main", f"@{REVISION}"])
def test_offline_id_is_found_in_the_cache(revision: str, hub: Path, tmp_path: Path) -> None:
    write_simple(tmp_path)
    agents = {"code": str(tmp_path / "code"), "tool": f"org/tool{revision}"}
    source = {"method": "ram+", "base": str(tmp_path / "base"), "agents": agents}
    record = ramerge.merge(source, tmp_path / "out")
    assert [*record.agents.values()][1].model == f"org/tool{revision}"
    recipe = (tmp_path / "out/ramerge.yaml").read_text()
    assert f"tool: org/tool@{revision.removeprefix('@') or REVISION}" in recipe
    assert "- org/tool" in (tmp_path / "out/README.md").read_text()
    agents["tool"] = str(tmp_path / "tool")
    ramerge.merge({**source, "agents": agents}, tmp_path / "local")
    assert (tmp_path / "out/model.safetensors").read_bytes() == (tmp_path / "local/model.safetensors").read_bytes()


def test_a_hub_model_as_base_gives_its_companions(hub: Path, tmp_path: Path) -> None:
    write_simple(tmp_path)
    source = {"method": "ram", "base": "org/tool", "agents": {"code": str(tmp_path / "code")}}
    ramerge.merge(source, tmp_path / "out")
    assert (tmp_path / "out/config.json").is_file() and not (tmp_path / "out/config.json").is_symlink()


@pytest.mark.parametrize("name", ["org/absent", "hub:org/absent"])
def test_offline_setting_is_named(name: str, hub: Path, tmp_path: Path) -> None:
    write_simple(tmp_path)
    (problem,) = ramerge.plan({"base": name, "agents": {"code": str(tmp_path / "code")}}).problems
    assert "the hub is not asked because HF_HUB_OFFLINE or" in problem and "unset the variable" in problem


@pytest.mark.parametrize("name", ["org/absent", "org/tool@v9"])
def test_an_id_that_is_not_there(name: str, hub: Path, tmp_path: Path) -> None:
    write_simple(tmp_path)
    plan = ramerge.plan({"method": "ram", "base": str(tmp_path / "base"), "agents": {"a": name}})
    assert len(plan.problems) == 1
    assert f"{name}: there is no folder" in plan.problems[0] and "cache" in plan.problems[0]


@pytest.mark.filterwarnings("ignore")  # huggingface_hub says that it asks again
def test_unreachable_hub_gives_a_next_step(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("ENDPOINT", "_HF_DEFAULT_ENDPOINT"):
        monkeypatch.setattr(constants, name, "http://127.0.0.1:9")  # nothing listens there
    problem, _no_agent = ramerge.plan({"base": "org/absent", "agents": {"code": str(tmp_path)}}).problems
    assert "the hub cannot provide it" in problem and "refused" in problem
    assert "; check the network, and the hub's address http://127.0.0.1:9" in problem
    assert problem.endswith("or download the model first (hf download)")


def test_a_folder_goes_before_an_id(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_simple(tmp_path)
    write_checkpoint(tmp_path / "org" / "tool", simple(3, moved=0.1))
    monkeypatch.chdir(tmp_path)
    plan = ramerge.plan({"method": "ram", "base": "base", "agents": {"a": "org/tool"}})
    assert plan.problems == ()
    assert plan.to_dict()["agents"]["a"] == "org/tool"


def test_a_path_that_no_recipe_could_name(tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"\xff")
    place.mkdir()
    with pytest.raises(CheckpointError, match=r"\\udcff.*holds bytes that are not UTF-8; rename the folder"):
        resolve(str(place), tmp_path)


def test_links_that_lead_round(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ramerge.CheckpointError, match="loop"):
        resolve("./loop", tmp_path)
