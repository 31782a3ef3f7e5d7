from pathlib import Path

from ruamel.yaml import YAML

import ramerge
from tests.checkpoints import recipe, write_simple


def test_card_front_matter_fits_the_hub(tmp_path: Path) -> None:
    names = write_simple(tmp_path)
    ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    text = (tmp_path / "out/README.md").read_text()
    assert text.startswith("---\n")
    front = YAML(typ="safe").load(text.split("---\n")[1])
    assert front["base_model"] == ["base", *names]
    assert front["base_model_relation"] == "merge"
    assert front["library_name"] == "transformers"
    assert {"merge", "ramerge"} <= set(front["tags"])
    for name in names:
        assert f"| {name} |" in text


def test_the_hubs_own_library_reads_it(tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    names = write_simple(tmp_path)
    ramerge.merge(recipe(tmp_path, names), tmp_path / "out")
    card = ModelCard.load(tmp_path / "out/README.md")
    assert card.data.library_name == "transformers"
    assert card.data.base_model == ["base", *names]


def test_folder_names_are_no_model_ids(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    write_simple(folder, {"a b": 0.1, "good": 0.2})
    source = recipe(folder, ["a b", "good"])
    ramerge.merge(source, tmp_path / "out")
    front = YAML(typ="safe").load((tmp_path / "out/README.md").read_text().split("---\n")[1])
    assert front["base_model"] == ["base", "good"]
