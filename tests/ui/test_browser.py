"""The page in a browser, as a new user meets it; skipped where there is no Chromium."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import ramerge
from ramerge.demo.run import AGENTS, copy_models
from ramerge.demo.tasks import TASKS, prompts
from ramerge.sdk.recipes import check, read_document
from tests.checkpoints import floats, write_checkpoint, write_simple
from tests.server import Answer, completion, serving
from tests.storage.hub import TOKEN, standing_in
from tests.tiers import some, unavailable
from tests.ui.served import CHROMIUM, Visit, chromium, served, visit, write

for library in ("gradio", "altair", "vl_convert", "playwright", "axe_playwright_python"):
    pytest.importorskip(library)
if not CHROMIUM:
    unavailable("no Chromium on the path")
pytestmark = pytest.mark.full  # Gradio, a browser

TABS = ("Agents", "Look", "Choose", "Merge", "Compare", "Share")
SEARCH = "Find the best merge by a few prompts"
DISTILL = "Distill the agents into this merge"
DEMO = "Use the demo's agents"
TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

@task
def mine():
    samples = [Sample(input=f"q{number}", target="yes") for number in range(4)]
    return Task(dataset=samples, solver=generate(), scorer=includes())
"""
HOSTILE = "x<img src=x onerror=hacked=1>${hacked=1}{{7*7}}"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    copy_models(folder / "models", lambda _: None)
    return folder


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with served("--root", str(root)) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Visit]:
    with visit(browser, address, viewport={"width": 1280, "height": 900}) as found:
        yield found


@pytest.mark.needs("torch", "transformers")
def test_demo_to_retention_table_in_ten_clicks(opened: Visit, root: Path) -> None:
    opened.click(DEMO)
    opened.wait("table.plain", has_text="safetensors files")
    opened.tab("Merge")
    opened.fill("Output", "of-the-demo")
    opened.click("Merge")
    opened.merged("of-the-demo")
    opened.tab("Compare")
    opened.click("Score on the demo's tasks")
    table = opened.wait("table.plain", seconds=120, has_text="Composite")
    assert opened.clicks <= 10
    assert (root / "of-the-demo" / "model.safetensors").is_file()
    [worst] = table.locator(".worst").all()
    values = [float(cell.split()[0]) for cell in table.locator("td").all_inner_texts()[:3]]
    assert float(worst.inner_text().split()[0]) == min(values) > 90
    opened.wait("pre", has_text="ramerge demo --score base=")
    scores = opened.wait("table.plain", has_text="base")
    rows = [row.inner_text().split()[0] for row in scores.locator("tbody th[scope=row]").all()]
    assert rows == ["base", "code", "tool", "memory", "of-the-demo"]


def test_each_tab_says_what_comes_next(opened: Visit) -> None:
    from playwright.sync_api import expect

    page = opened.page
    opened.click(DEMO)
    opened.click("Next: Look: what RL changed in them")
    opened.click("Analyze")
    recommended = page.get_by_role("button", name=re.compile("Choose what is recommended"))
    recommended.wait_for(timeout=120_000)
    method = recommended.inner_text().split()[-1]
    recommended.click()
    opened.click("Next: Choose: by prompts, or a method and its parameters")
    opened.wait("p", has_text="Plan: ready to merge")
    assert f"method: {method}" in opened.editor()
    opened.click("Next: Merge: what is chosen")
    opened.wait("p", has_text=f"Merges code, tool and memory by {method} into merged.")
    opened.wait("pre", has_text=f"ramerge merge --method {method}")
    for name in ("Stop", "Resume", "Run the list"):
        assert not page.get_by_role("button", name=name, exact=True).locator("visible=true").count()
    opened.click("Next: Compare: the merge with base and agents")
    opened.click("Next: Share: card, report, upload and distillation")
    expect(page.get_by_role("tab", name="Share")).to_have_attribute("aria-selected", "true", timeout=30_000)


def test_every_tab_is_reached_by_keyboard(opened: Visit) -> None:
    page = opened.page
    page.get_by_role("tab", name="Agents").focus()
    for name in TABS[1:]:
        for _ in range(8):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent") == name:
                break
        page.keyboard.press("Enter")
        assert page.get_by_role("tab", name=name).get_attribute("aria-selected") == "true"
        page.get_by_role("tab", name=name).focus()


def test_a_merge_by_keyboard_alone(opened: Visit, root: Path) -> None:
    page = opened.page
    page.get_by_role("button", name=DEMO).focus()
    page.keyboard.press("Enter")
    opened.wait("table.plain", has_text="safetensors files")
    page.get_by_role("tab", name="Merge").focus()
    page.keyboard.press("Space")
    page.get_by_label("Output").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("by-keyboard")
    page.get_by_role("button", name="Merge", exact=True).focus()
    page.keyboard.press("Enter")
    opened.merged("by-keyboard")
    assert (root / "by-keyboard" / "ramerge.json").is_file()


def test_page_keeps_one_event_stream(opened: Visit) -> None:
    opened.click(DEMO)
    opened.wait("table.plain", has_text="safetensors files")
    opened.tab("Merge")
    opened.fill("Output", "in-the-list")
    opened.click("Add to the list")
    opened.wait("tr", has_text="in-the-list")
    opened.click("Clear the list")
    opened.page.locator("tr", has_text="in-the-list").wait_for(state="detached")
    assert sum("/queue/join" in url for url in opened.requests) > 3
    assert sum("/queue/data" in url for url in opened.requests) == 1


def test_models_below_the_root_are_picked_from_lists(opened: Visit) -> None:
    opened.pick("Base model", "models/base")
    opened.pick("Agents", "models/coder")
    opened.wait("table.plain", has_text="coder")
    opened.pick("Agents", "models/tool")
    rows = opened.wait("table.plain", has_text="tool").locator("tbody tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == ["base", "coder", "tool"]
    opened.wait("pre", has_text="ramerge plan --base models/base --agent coder=models/coder --agent tool=models/tool")


def test_controls_and_recipe_are_in_step(opened: Visit) -> None:
    page = opened.page
    opened.click(DEMO)
    opened.wait("table.plain", has_text="safetensors files")  # then the recipe is the demo's
    opened.tab("Choose")
    slider = page.get_by_role("slider", name="range slider for r")
    slider.focus()
    page.keyboard.press("ArrowRight")
    opened.wait(".cm-line", has_text="r: 0.11")
    opened.wait("pre", has_text="r = 0.11")  # the plan
    opened.wait("pre", has_text="--set parameters.r=0.11")
    # the text moves the slider, and changes the method
    write(opened, opened.editor().replace("0.11", "0.5") + "\n  alpha: 1.5\n")
    page.wait_for_function("document.querySelector('input[aria-label=\"range slider for r\"]').value === '0.5'")
    assert page.get_by_label("alpha", exact=True).input_value() == "1.5"
    write(opened, opened.editor().partition("parameters")[0].replace("ram+", "ties") + "parameters: {density: 0.4}\n")
    opened.wait("pre", has_text="--method ties")
    page.get_by_role("slider", name="range slider for density").wait_for()
    assert page.get_by_label("Method").input_value().startswith("ties: ")
    # a parameter that only matters with another one appears with it
    write(opened, opened.editor().partition("parameters")[0].replace("ties", "ram"))
    opened.pick("shared", "ties")
    opened.wait(".cm-line", has_text="shared: ties")
    page.get_by_role("slider", name="range slider for density").wait_for()


def test_recipe_problems_are_shown_beside_it(opened: Visit) -> None:
    opened.click(DEMO)
    opened.wait("table.plain", has_text="safetensors files")  # then the recipe is the demo's
    opened.tab("Choose")
    write(opened, opened.editor().replace("ram+", "ram-"))
    opened.wait(".warnings", has_text="unknown method 'ram-'")


def test_look_shows_what_rl_changed(opened: Visit) -> None:
    page = opened.page
    opened.click(DEMO)
    opened.wait("table.plain", has_text="safetensors files")
    opened.tab("Look")
    opened.click("Analyze")
    opened.wait("dl.advice", has_text="ramerge merge")
    assert len(page.locator("figure svg:visible").all()) == 3
    opened.wait("table.plain", has_text="cosine")
    opened.pick("Heat map of", "memory")
    opened.wait("figure", has_text="Where in the model: memory")
    opened.pick("Shows", "erased by rounding")
    # a click on a cell lists its tensors, and one on a tensor shows its histogram
    page.locator("#ui-heat path[aria-label*='mlp up']").first.click()
    button = opened.wait("button.pick", has_text="model.layers.0.mlp.up_proj.weight")
    page.wait_for_function("document.querySelectorAll('button.pick').length === 1")
    button.click()
    opened.wait("figure", has_text="How large the updates are")


@pytest.mark.needs("torch", "transformers")
def test_prompts_of_each_agent_find_the_best_merge(opened: Visit, root: Path) -> None:
    from playwright.sync_api import expect

    page = opened.page
    for task in TASKS[:2]:
        lines = [json.dumps({"prompt": example.prompt}) for example in prompts(task, "test", 4, 0)]
        (root / f"{task.name}.jsonl").write_text("\n".join(lines))
    opened.pick("Base model", "models/base")
    opened.pick("Agents", "models/coder")
    opened.wait("table.plain", has_text="models/coder")  # on a busy machine a tab may be left before it has answered
    opened.tab("Choose")
    opened.fold(SEARCH)
    lines = page.get_by_label("Prompts NAME=FILE")
    expect(lines).to_have_value("coder=", timeout=30_000)
    for _ in range(10):  # on a busy machine, a late answer to the picks replaces what was typed
        lines.fill("coder=add.jsonl")
        page.wait_for_timeout(1000)
        if lines.input_value() == "coder=add.jsonl":
            break
    opened.tab("Agents")
    opened.pick("Agents", "models/tool")
    opened.tab("Choose")
    expect(lines).to_have_value("coder=add.jsonl\ntool=models/tool.jsonl", timeout=30_000)
    opened.fill("Number of prompts", "4")
    opened.fill("Tokens of a reply", "12")
    opened.fill("Folder of the search", "found")
    lines.fill("coder=add.jsonl\ntool=nothing.jsonl")
    page.keyboard.press("Tab")
    opened.wait(".warnings", has_text="prompts of tool: 'nothing.jsonl': there is no such file")
    lines.fill("coder=add.jsonl\ntool=reverse.jsonl")
    page.keyboard.press("Tab")
    # the command stands before the click
    shown = "--prompts coder=add.jsonl --prompts tool=reverse.jsonl --prompt-count 4 --max-new 12 found"
    opened.wait("pre", has_text=shown)
    opened.click("Find the best merge")
    table = opened.wait("table.plain", seconds=300, has_text="mass minus best (95 %)")
    assert table.locator("thead th").all_inner_texts()[:4] == ["candidate", "mass", "coder", "tool"]
    assert table.locator("tbody tr").count() >= 8
    assert table.locator("tbody tr").first.inner_text().endswith("best")
    opened.wait("li", has_text="checkpoint in found/best")
    opened.click("Choose the best")
    best = check(read_document(root / "found" / "recipe.yaml"))
    expect(page.get_by_label("Method", exact=True)).to_have_value(
        re.compile(re.escape(f"{best.method}:")), timeout=30_000
    )
    opened.tab("Merge")
    opened.fill("Output", "chosen")
    opened.click("Merge")
    opened.merged("chosen")
    chosen, found = ((root / folder / "model.safetensors").read_bytes() for folder in ("chosen", "found/best"))
    assert chosen == found


def test_several_candidates_wait_in_a_list(opened: Visit, root: Path) -> None:
    opened.click(DEMO)
    opened.wait("table.plain", has_text="safetensors files")
    opened.tab("Merge")
    for name, kind in (("first", "model"), ("second", "delta")):
        opened.fill("Output", name)
        opened.page.get_by_label(kind, exact=True).click()
        opened.click("Add to the list")
        opened.wait("tr", has_text=f"{name}")
    assert not (root / "first").exists()
    opened.click("Run the list")
    opened.wait("tr", has_text="second").get_by_text("done").wait_for(timeout=60_000)
    assert (root / "first" / "model.safetensors").is_file()
    assert (root / "second" / "delta.json").is_file() or list((root / "second").glob("*.safetensors"))


def test_existing_merge_needs_leave_to_be_replaced(opened: Visit, root: Path) -> None:
    from playwright.sync_api import expect

    opened.click(DEMO)
    opened.wait("table.plain", has_text="safetensors files")
    opened.tab("Merge")
    opened.fill("Output", "again")
    opened.click("Merge")
    opened.merged("again")
    first = (root / "again" / "ramerge.json").stat().st_ino
    opened.click("Merge")
    refused = opened.wait(".warnings", has_text="again: exists; choose another folder, or tick “Replace what is there”")
    opened.merged("again")  # the list still holds the first one
    opened.page.get_by_label("Replace what is there").locator("visible=true").check()
    opened.wait("pre", has_text="--overwrite again")
    opened.click("Merge")
    expect(refused).to_have_count(0, timeout=30_000)
    opened.merged("again")
    assert (root / "again" / "ramerge.json").stat().st_ino != first


def test_errors_stay_until_the_next_action(opened: Visit) -> None:
    from playwright.sync_api import expect

    page = opened.page
    for tab, button, said in (
        ("Look", "Analyze", "agents"),
        ("Merge", "Merge", "agents"),
        ("Compare", "Score on the demo's tasks", "agents"),
        ("Share", "Show recipe and card", "merged: no such folder"),
    ):
        opened.tab(tab)
        opened.click(button)
        opened.wait(".warnings", has_text=said)
    opened.tab("Agents")
    opened.click(DEMO)
    opened.wait("table.plain", has_text="safetensors files")
    opened.tab("Merge")
    warned = page.locator(".warnings:visible")
    expect(warned).to_have_count(1)
    opened.click("Add to the list")
    opened.wait("tr", has_text="in the list")
    expect(warned).to_have_count(0)
    opened.click("Clear the list")


def test_the_demo_brings_prompts_and_rewards(opened: Visit, root: Path) -> None:
    from playwright.sync_api import expect

    opened.click(DEMO)
    opened.wait("table.plain", has_text="demo/memory")
    opened.tab("Choose")
    opened.fold(SEARCH)
    prompts = opened.page.get_by_label("Prompts NAME=FILE")
    expect(prompts).to_have_value(
        "code=demo/code.jsonl\ntool=demo/tool.jsonl\nmemory=demo/memory.jsonl", timeout=30_000
    )
    opened.fill("Reward function", "demo/nothing.py:compute_score")
    opened.page.keyboard.press("Tab")
    opened.wait(".warnings", has_text="there is no such file")
    opened.fill("Reward function", "demo/demo_reward.py:compute_score")
    opened.page.keyboard.press("Tab")
    opened.wait("pre", has_text="--prompts memory=demo/memory.jsonl --reward demo/demo_reward.py:compute_score")
    assert (root / "demo" / "demo_reward.py").is_file()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_scores_become_a_retention_table(browser: Any, tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        right = {"mine": "q0 q1 q2 q3", "other": "q0 q1", "merged": "q0"}.get(body["model"], "")
        return completion("yes" if body["messages"][-1]["content"] in right.split() else f"no, {body['model']}")

    (tmp_path / "mine.py").write_text(TASK)
    with (
        served("--root", str(tmp_path)) as address,
        visit(browser, address) as opened,
        serving(answer) as server,
    ):
        page = opened.page
        opened.tab("Choose")
        write(opened, f"base: {AGENTS}/base\nagents: {{mine: {AGENTS}/coder, other: {AGENTS}/memory}}\n")
        opened.wait("pre", has_text="ramerge plan --method ram+")
        opened.tab("Merge")
        opened.click("Merge")
        opened.merged("merged")
        opened.tab("Compare")
        opened.fill("Endpoint", server.url)
        opened.fold("Score on benchmarks")
        opened.fill("Tasks", "mine.py@mine")
        page.keyboard.press("Enter")
        # the agent that is named for the task is its specialist, and another one can be chosen
        page.get_by_text("mine=mine", exact=True).wait_for()
        opened.click("Score")
        table = opened.wait("table.plain", seconds=120, has_text="Composite")
        assert table.locator("td").first.inner_text().startswith("25.0")
        opened.wait("pre", has_text="ramerge table scores --table merging --intervals --specialist mine=mine")
        page.locator(".token", has_text="mine=mine").get_by_role("button").click()
        opened.pick("Specialists", "mine=other")
        opened.click("Show what the logs say")
        opened.wait("pre", has_text="--specialist mine=other")
        assert opened.wait("table.plain", has_text="Composite").locator("td").first.inner_text().startswith("50.0")
        # one prompt for all of them
        opened.fold("Ask side by side")
        opened.fill("Prompt", "q3")
        opened.click("Ask")
        opened.wait("pre", has_text=f"curl {server.url}/chat/completions")
        page.locator("article", has_text="merged").get_by_text("no, merged").wait_for()
        said = [text.split("\n")[-1] for text in page.locator("article").all_inner_texts()]
        assert said == ["no, base", "yes", "no, other", "no, merged"]


@pytest.mark.thorough  # tests of jobs resume, too
def test_a_merge_that_was_stopped_is_completed(browser: Any, tmp_path: Path) -> None:
    write_simple(tmp_path, {"code": 0.1, "tool": 0.2}, shape=(1024, 2048))
    recipe = f"method: wudi\nbase: {tmp_path}/base\nagents: {{code: {tmp_path}/code, tool: {tmp_path}/tool}}\n"
    (tmp_path / "whole.yaml").write_text(recipe)
    with served("--root", str(tmp_path), "--threads", "1") as address, visit(browser, address) as opened:
        opened.tab("Choose")
        write(opened, recipe)
        opened.wait("pre", has_text="ramerge plan --method wudi")
        opened.tab("Merge")
        opened.click("Merge")
        opened.wait("tr", has_text="merging").wait_for()
        opened.click("Stop")
        opened.wait("tr", has_text="stopped")
        opened.wait("li", has_text="stopped by SIGINT")
        assert not (tmp_path / "merged").exists()
        opened.click("Resume")
        opened.merged("merged")
        opened.wait("li", has_text="continuing")
    ramerge.merge(tmp_path / "whole.yaml", tmp_path / "whole")
    files = sorted(path.name for path in (tmp_path / "whole").glob("*.safetensors"))
    assert files
    for name in files:
        assert (tmp_path / "merged" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_share_shows_recipe_card_and_report(opened: Visit, root: Path) -> None:
    opened.click(DEMO)
    opened.wait("table.plain", has_text="safetensors files")
    opened.tab("Merge")
    opened.fill("Output", "shared")
    opened.click("Merge")
    opened.merged("shared")
    opened.tab("Share")
    opened.fill("Finished merge", "shared")
    opened.click("Show recipe and card")
    opened.wait("pre", has_text="base_model_relation: merge")
    opened.click("Write the report")
    link = opened.wait("a", has_text="Open the report")
    with opened.page.expect_popup() as popup:
        link.click()
    popup.value.wait_for_selector("html[data-ready]", timeout=60_000)
    assert popup.value.title() == "What RL changed: code, tool, memory"
    # the report has an origin of its own
    assert popup.value.evaluate("self.origin") == "null"


def test_an_upload_begins_once_it_is_confirmed(browser: Any, tmp_path: Path) -> None:
    with standing_in(tmp_path / "hub", TOKEN) as hub:
        known = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
        root = tmp_path / "root"
        recipe = {"base": f"{AGENTS}/base", "agents": {name: f"{AGENTS}/{name}" for name in ("coder", "memory")}}
        ramerge.merge(recipe, root / "merged")
        with (
            served("--root", str(root), env={**os.environ, **known}) as address,
            visit(browser, address) as opened,
        ):
            opened.tab("Share")
            opened.fold("Upload")
            opened.fill("Destination", "hub:me/mine")
            opened.click("Upload")
            opened.wait("pre", has_text="hub:me/mine")
            opened.click("Cancel")
            opened.click("Upload")
            opened.click("Upload merged to hub:me/mine")
            opened.wait(".state", has_text="done")
        sent = hub.folder / "me" / "mine"
        assert (sent / "model.safetensors").read_bytes() == (root / "merged" / "model.safetensors").read_bytes()
        assert hub.handler.state.private == {"me/mine": True}  # type: ignore[attr-defined]
        assert len(hub.handler.state.commits) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", some([390, 1280], full=[390]))
def test_the_agents_are_distilled_into_the_merge(width: int, browser: Any, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    root = tmp_path / f"{'a-folder-with-quite-a-long-name-' * 3}and_another_part_that_has_no_hyphens_at_all"
    copy_models(root / "runs", lambda _: None)
    agents = {"code": f"{root}/runs/coder", "tool": f"{root}/runs/tool"}
    ramerge.merge({"base": f"{root}/runs/base", "agents": agents}, root / "merged")
    with (
        served("--root", str(root)) as address,
        visit(browser, address, viewport={"width": width, "height": 900}) as opened,
    ):
        page = opened.page
        opened.tab("Share")
        opened.fold(DISTILL)
        prompts = page.get_by_label("Prompts a line NAME=FILE")
        expect(prompts).to_have_value("code=runs/code.jsonl\ntool=runs/tool.jsonl", timeout=30_000)
        opened.wait("pre", has_text="ramerge handoff merged student --for trl --prompts code=runs/code.jsonl")
        prompts.fill("code=runs/nothing.jsonl\ntool=runs/tool.jsonl")
        page.keyboard.press("Tab")
        opened.wait(".warnings", has_text="prompts of code: 'runs/nothing.jsonl': there is no such file")
        prompts.fill("code=runs/tool.jsonl\ntool=runs/tool.jsonl")
        page.get_by_role("combobox", name="Trainer").click()
        opened.click("verl: verl 0.10", "option")
        opened.wait("pre", has_text="--for verl --prompts code=runs/tool.jsonl")
        opened.click("Write the files for the trainer")
        opened.wait("li", has_text="student/mopd.yaml")
        opened.wait("pre", has_text="main_ppo")
        assert (root / "student" / "handoff.json").is_file()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(TOO_WIDE) == []
        opened.click("Write the files for the trainer")
        opened.wait(".warnings", has_text="replace it: “Replace what is there”")
        page.get_by_label("Replace what is there").locator("visible=true").check()
        opened.wait("pre", has_text="--overwrite")
        opened.click("Write the files for the trainer")
        opened.wait(".state", has_text="done")


# --- strangers' names -------------------------------------------------------------------------------------------------


def test_hostile_names_headers_and_recipes_are_text(opened: Visit, root: Path) -> None:
    from playwright.sync_api import expect

    random = np.random.default_rng(0)
    folder = root / "strange"
    names = (f"model.layers.0.{HOSTILE}.weight", "model.layers.0.mlp.up_proj.weight")
    base = [random.standard_normal((8, 8)) for _ in names]
    for label, size in (("base", 0), ("one", 0.1), ("two", 0.2)):
        values = [value + size * random.standard_normal((8, 8)) for value in base]
        tensors = {name: floats(value, "F32") for name, value in zip(names, values, strict=True)}
        write_checkpoint(folder / f"{HOSTILE.replace('/', '')}{label}", tensors)
    page = opened.page
    opened.click("Look for models again")
    opened.tab("Choose")
    places = {label: folder / f"{HOSTILE.replace('/', '')}{label}" for label in ("base", "one", "two")}
    agents = "\n".join(f"  '{HOSTILE}{name}': '{places[name]}'" for name in ("one", "two"))
    write(opened, f"method: ram+\nbase: '{places['base']}'\nagents:\n{agents}\n")
    opened.wait("pre", has_text="ramerge plan --method ram+")
    opened.tab("Agents")
    opened.wait("tbody th", has_text=f"{HOSTILE}one")
    opened.tab("Choose")
    opened.fold(SEARCH)
    expect(page.get_by_label("Prompts NAME=FILE")).to_have_value(f"{HOSTILE}one=\n{HOSTILE}two=", timeout=30_000)
    opened.tab("Look")
    opened.click("Analyze")
    opened.wait("dl.advice")
    opened.wait("button.pick", has_text=HOSTILE).click()
    opened.wait("figure", has_text="How large the updates are")
    opened.tab("Choose")
    write(opened, f"method: '{HOSTILE}'\nbase: nowhere/{HOSTILE}\nagents: {{a: b/c}}\n")
    opened.wait(".warnings", has_text=HOSTILE)
    opened.tab("Merge")
    opened.fill("Output", f"../{HOSTILE}")
    opened.click("Merge")
    page.get_by_text("may read").locator("visible=true").first.wait_for()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img[src=x]").count() == 0
    assert "49" not in page.locator("body").inner_text()


# --- who may ask ------------------------------------------------------------------------------------------------------


def asked(address: str, path: str, *, method: str = "GET", body: str = "", **headers: str) -> tuple[int, bytes]:
    """Status and content of an answer of the server itself."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    connection.request(method, path, body, {"Content-Type": "application/json", **headers})
    answer = connection.getresponse()
    content = answer.status, answer.read()
    connection.close()
    return content


def test_foreign_requests_are_refused(address: str, root: Path) -> None:
    token = address.partition("token=")[2]
    port = urlsplit(address).port
    cookie = {"Cookie": f"ramerge-{port}={token}"}
    (root / "secret.txt").write_text("secret")
    assert asked(address, "/")[0] == asked(address, "/config")[0] == asked(address, f"/?token={token}x")[0] == 403
    assert asked(address, "/", **cookie)[0] == 200
    join = {"method": "POST", "body": '{"fn_index": 0, "data": [], "session_hash": "x"}'}
    for headers in ({}, {**cookie, "Origin": "http://evil.example"}, {**cookie, "Host": "evil.example"}):
        assert asked(address, "/gradio_api/queue/join", **join, **headers)[0] == 403
    for path in (f"/gradio_api/file={root}/secret.txt", "/gradio_api/upload", f"/file={root}/secret.txt"):
        assert asked(address, path, **cookie)[0] == 404
    for out in ("/etc", "..", str(AGENTS), f"{root}/models", "%2e%2e/%2e%2e"):
        status, content = asked(address, f"/report?out={out}", **cookie)
        assert status == 404 and b"secret" not in content


def test_linked_report_is_not_followed(address: str, root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.html").write_text("secret")
    (root / "linked").mkdir()
    (root / "linked" / "report.html").symlink_to(tmp_path / "secret.html")
    token, port = address.partition("token=")[2], urlsplit(address).port
    status, content = asked(address, "/report?out=linked", Cookie=f"ramerge-{port}={token}")
    assert (status, b"secret" in content) == (404, False)


def test_only_this_machine_is_listened_to(address: str) -> None:
    assert urlsplit(address).hostname == "127.0.0.1"
    table = Path("/proc/net/tcp").read_text().splitlines() if Path("/proc/net/tcp").exists() else []
    port = f":{urlsplit(address).port:04X}"
    listening = [line.split()[1] for line in table if line.split()[1].endswith(port) and line.split()[3] == "0A"]
    assert all(place.startswith("0100007F") for place in listening)


def test_an_interrupt_does_not_wait_for_a_browser(browser: Any, tmp_path: Path) -> None:
    inside = browser.new_context()
    with served("--root", str(tmp_path)) as address:
        page = inside.new_page()
        page.goto(address)
        page.get_by_role("tab", name="Agents").wait_for()
    inside.close()


def test_interrupt_does_not_wait_for_buckets(browser: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        known = {"AWS_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}", "AWS_ALLOW_HTTP": "true"}
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "NO_PROXY": "127.0.0.1"}
        inside = browser.new_context()
        with served("--base", "s3://bucket/model", cwd=tmp_path, env={**os.environ, **known, **keys}) as address:
            inside.new_page().goto(address)
            silent.accept()
        inside.close()


# --- for everybody ----------------------------------------------------------------------------------------------------


TOO_WIDE = """() => [...document.querySelectorAll('.gradio-container *')]
    .filter(each => !each.matches('svg *, input, textarea, .download-link, .label-wrap'))  // with signs, or scrolled
    .filter(each => !each.closest('.visually-hidden, .sr-only, .plain thead'))
    .filter(each => each.checkVisibility() && each.clientWidth && each.scrollWidth > each.clientWidth + 1)
    .map(each => `${each.tagName}.${each.className}: ${each.textContent.slice(0, 80)}`)"""
"""What shows less than it holds, or more than fits."""


@pytest.mark.parametrize("width", some([390, 1280], full=[390]))
def test_every_tab_fits_and_is_accessible(width: int, browser: Any, address: str, root: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    far = (
        root
        / f"{'a-folder-with-quite-a-long-name-' * 3}{width}"
        / "and_another_one_inside_of_it_that_has_no_hyphens_at_all"
    )
    copy_models(far, lambda _: None)
    with visit(browser, address, viewport={"width": width, "height": 900}) as opened:
        # colors that change slowly would be judged on their way from light to dark
        opened.page.add_style_tag(content="* { transition: none !important }")
        opened.tab("Choose")
        write(opened, f"base: {far}/base\nagents: {{code: {far}/coder, {'memory' * 12}: {far}/memory}}\n")
        opened.wait("pre", has_text="ramerge plan --method ram+")
        # a long line that wraps makes the editor as high as its text needs, not as high as twelve such lines
        assert opened.page.locator(".cm-scroller:visible").bounding_box()["height"] < 600
        opened.fold(SEARCH)
        for name in TABS:
            opened.tab(name)
            if name == "Look":
                opened.click("Analyze")
                opened.wait("dl.advice")
            if name == "Merge":
                opened.click("Add to the list")
                opened.wait("tr", has_text="in the list")
            if name == "Compare":
                for closed in ("Score on benchmarks", "Ask side by side"):
                    opened.page.get_by_role("button", name=closed).click()
            if name == "Share":
                opened.fold(DISTILL)
            for scheme in ("light", "dark"):
                opened.page.emulate_media(color_scheme=scheme)
                opened.page.locator("body.dark" if scheme == "dark" else "body:not(.dark)").wait_for()
                opened.page.wait_for_timeout(500)
                found = Axe().run(opened.page).response["violations"]
                serious = [one for one in found if one["impact"] in ("serious", "critical")]
                assert [(one["id"], one["nodes"][0]["html"]) for one in serious] == [], (name, scheme)
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert opened.page.evaluate(TOO_WIDE) == [], name
