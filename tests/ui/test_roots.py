"""Files that the page may read: nothing outside of the roots, whatever names and links say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramerge.core.foundation.errors import RecipeError
from ramerge.core.recipe.document import Document
from ramerge.demo.run import AGENTS
from ramerge.ui.draft import EMPTY, checked_draft, models_in, parameters_in, read_draft, with_keys, with_models
from ramerge.ui.roots import Roots
from tests.checkpoints import floats, write_checkpoint, write_simple
from tests.messages import Messages


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """A root with models, links out of it, and a secret besides it."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    write_simple(root / "models", {"code": 0.1})
    write_simple(outside, {"code": 0.1})
    (outside / "secret.txt").write_text("secret")
    (root / "link").symlink_to(outside, target_is_directory=True)
    (root / "inner").symlink_to(root / "models", target_is_directory=True)
    (root / "file.txt").symlink_to(outside / "secret.txt")
    return Roots((root.resolve(), AGENTS.resolve()))


def outsiders(roots: Roots) -> list[str]:
    outside = roots.home.parent / "outside"
    return [
        "..",
        "../outside",
        "link",
        "link/base",
        "models/../../outside/base",
        str(outside),
        str(outside / "base"),
        "file.txt",
        "/",
        "/etc",
        "~",
        "~root",
        "",
        " ",
        "a\0b",
        "\udcff",
        "./nowhere/../../outside",
        "/proc/self/cwd",
    ]


def test_paths_outside_are_refused(roots: Roots, messages: Messages) -> None:
    for text in outsiders(roots):
        with messages.raises(RecipeError):
            roots.path(text)
    for text in ("models", "inner", "new", "models/base", str(roots.home / "models"), str(AGENTS / "base"), "."):
        assert roots.path(text)


def test_files_are_read_below_the_roots_only(roots: Roots) -> None:
    (roots.home / "card.md").write_text("card")
    (roots.home / "alias.md").symlink_to("card.md")
    os.mkfifo(roots.home / "pipe")
    assert (roots.read("card.md", 9), roots.read("card.md", 2), roots.read("nothing", 9)) == ("card", "ca", "")
    for name in ("file.txt", "link/secret.txt", "../outside/secret.txt", "alias.md", "pipe", "models"):
        with pytest.raises(RecipeError) as refused:
            roots.read(name, 9)
        assert "secret" not in str(refused.value).replace("secret.txt", "")


def test_outputs_are_below_the_first_root(roots: Roots) -> None:
    for text in [*outsiders(roots), ".", str(AGENTS / "new"), str(roots.home)]:
        with pytest.raises(RecipeError):
            roots.output(text)
    assert roots.output("new") == "new"
    assert roots.output(str(roots.home / "deep" / "new")) == "deep/new"
    assert roots.output("-x") == "./-x"
    assert roots.output("hub:owner/name") == "hub:owner/name"
    with pytest.raises(RecipeError):
        Roots(roots.folders, remote=False).output("hub:owner/name")


@given(text=st.text(max_size=40))
def test_no_name_leads_out(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.getbasetemp() / "any"
    root.mkdir(exist_ok=True)
    roots = Roots((root.resolve(),))
    try:
        found = roots.path(text)
    except RecipeError:
        return
    assert Path(os.path.realpath(found)).is_relative_to(roots.home)


def recipes(outside: str) -> list[dict[str, Any]]:
    """Recipes that name a model outside, in every place that names one."""
    inside = "models/base"
    return [
        {"base": outside, "agents": {"code": inside}},
        {"base": inside, "agents": {"code": outside}},
        {"base": inside, "agents": {"code": {"model": outside}}},
        {"base": inside, "agents": {"code": {"delta": outside}}},
        {"base": inside, "agents": {"code": {"delta": [inside, outside]}}},
        {"base": inside, "agents": {"code": {"model": inside, "importance": outside}}},
        {"base": inside, "agents": {"code": f"{inside}+{outside}"}},
        {"base": inside, "agents": {"code": {"anything": [outside]}}},
        {"base": inside, "agents": {"code": {"soup": {"agents": {"one": inside, "two": outside}}}}},
        {"base": inside, "agents": {"code": {"soup": {"agents": {"one": {"delta": [outside]}}}}}},
    ]


def test_recipes_name_no_model_outside(roots: Roots, messages: Messages) -> None:
    for outside in (str(roots.home.parent / "outside" / "base"), "../outside/base", "link/base", "/etc"):
        for values in recipes(outside):
            with messages.raises(RecipeError):
                roots.check(Document(values, folder=roots.home))
    for inside in ("models/code", "inner/code", str(AGENTS / "coder"), "owner/name", "owner/name@v1", "hub:owner/name"):
        for values in recipes(inside):
            roots.check(Document(values, folder=roots.home))


def test_links_out_of_a_model_are_never_allowed(roots: Roots, messages: Messages) -> None:
    text = "base: models/base\nagents: {code: models/code}\nallow: {outside_links: true}\n"
    with messages.raises(RecipeError):
        read_draft(text, roots)


def test_a_recipe_of_mergekit_is_checked_too(roots: Roots, messages: Messages) -> None:
    outside = roots.home.parent / "outside"
    text = (
        f"merge_method: linear\nmodels:\n- model: {outside}/base\n- model: {outside}/code\nparameters: {{weight: 1}}\n"
    )
    with messages.raises(RecipeError):
        read_draft(text, roots)


def test_hub_only_page_reads_no_buckets(roots: Roots) -> None:
    shared = Roots(roots.folders, remote=False, is_shared=True)
    shared.check(Document({"agents": {"code": "owner/name"}}))
    with pytest.raises(RecipeError, match="buckets"):
        shared.check(Document({"agents": {"code": "s3://bucket/model"}}))


def test_gathered_inputs_are_no_model(roots: Roots) -> None:
    for place in ("CALIBRATION/code", "CALIBRATION/code/importance"):
        write_checkpoint(roots.home / place, {"x.weight": floats([[1.0]])})
    (roots.home / "CALIBRATION/code/calibration.json").write_text("{}")
    assert not [label for label, _ in roots.models() if "CALIBRATION" in label]


def test_models_are_found_without_following_links(roots: Roots) -> None:
    found = dict(roots.models())
    assert {"models/base", "models/code", "agents/coder", "agents/base"} <= set(found)
    assert not [label for label in found if label.startswith(("link", "inner"))]
    assert dict(Roots(roots.folders, is_shared=True).models()).keys() == {
        label for label in found if label.startswith("agents/")
    }


# --- the recipe as text -----------------------------------------------------------------------------------------------


def test_controls_show_the_recipes_models(roots: Roots) -> None:
    base, agents = str(AGENTS / "base"), [str(AGENTS / "coder"), str(AGENTS / "memory")]
    text = with_models(EMPTY, base, agents, roots)
    assert models_in(read_draft(text, roots)) == (base, agents)
    assert list(checked_draft(text, roots).agents) == ["coder", "memory"]
    # a name that the text gives stays, and so does everything else
    named = with_keys(text.replace("  coder:", "  mine:"), {"dtype": "float32"}, roots)
    again = checked_draft(with_models(named, base, [*agents, "models/code"], roots), roots)
    assert list(again.agents) == ["mine", "memory", "code"]
    assert again.dtype == "float32"


def test_agents_with_equal_names_get_others(roots: Roots) -> None:
    text = with_models(EMPTY, None, ["models/code", "code=models/base", "owner/code@v1"], roots)
    assert list(read_draft(text, roots).agents) == ["code", "code-2", "code-3"]


def test_a_text_that_is_no_recipe_is_replaced(roots: Roots) -> None:
    assert models_in(read_draft(with_models("[", None, ["models/code"], roots), roots)) == (None, ["models/code"])


def test_parameters_are_those_of_preset_and_text(roots: Roots, messages: Messages) -> None:
    name, values = parameters_in(read_draft("method: ram+\nparameters: {r: 0.3}\n", roots))
    assert (name, values["r"], values["alpha"]) == ("ram+", 0.3, 2.0)
    with messages.raises(RecipeError):
        parameters_in(read_draft("method: ram-\n", roots))
