"""`ramerge handoff`: what is written for each trainer, and what is refused."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

import ramerge
from ramerge.calibration.exchanges import Exchange, to_lines
from ramerge.calibration.prompts import Prompt
from ramerge.distillation import handoff as handoff_module
from ramerge.distillation import prompts as distillation_prompts
from ramerge.distillation.prompts import hardest, hold_out, likelihoods_of, tasks_of
from ramerge.distillation.trainer import TRAINERS, Lesson, Trainer, json_lines
from ramerge.scoring.scores import of_items
from ramerge.searches.folder import Folder
from ramerge.searches.trials import Trial
from tests.commands import in_process
from tests.distillation.models import AGENTS, OPTIONS, PROMPTS
from tests.distillation.models import merged as merged  # a fixture

OVERWRITE = ramerge.Options(overwrite=True)
TEACHER_OF: dict[str, Callable[[dict[str, Any]], str]] = {
    "trl": lambda row: row["teacher_id"],
    "trl-async": lambda row: row["teacher_id"],
    "verl": lambda row: row["data_source"],
    "nemo-rl": lambda row: row["agent_ref"]["name"].removeprefix("ramerge_"),
    "slime": lambda row: row["metadata"]["teacher"],
}
TEXT_OF: dict[str, Callable[[dict[str, Any]], Any]] = {
    "nemo-rl": lambda row: row["responses_create_params"]["input"][0]["content"],
    "slime": lambda row: row["prompt"],
}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]


def prompts_of(name: str) -> list[str]:
    return [json.loads(line)["prompt"] for line in Path(PROMPTS[name]).read_text().splitlines()]


@pytest.mark.parametrize("trainer", [*TRAINERS])
def test_the_dataset_has_the_teacher_of_each_prompt(trainer: str, merged: Path) -> None:
    result = ramerge.handoff(merged, "out", trainer=trainer, prompts=PROMPTS)
    rows = rows_of(Path("out"))
    text_of = TEXT_OF.get(trainer, lambda row: row["prompt"][0]["content"])
    for name in AGENTS:
        assert [text_of(row) for row in rows if TEACHER_OF[trainer](row) == name] == prompts_of(name)
    assert len(rows) == sum(result.prompts.values()) == 24
    assert result.teachers == {name: str(Path(model).resolve()) for name, model in AGENTS.items()}
    assert result.student == str(merged.resolve())
    assert sorted(result.files) == sorted(path.name for path in Path("out").iterdir())
    assert json.loads(Path("out/handoff.json").read_text()) == json.loads(json.dumps(result.to_dict()))
    named = "".join(path.read_text() for path in Path("out").iterdir() if path.name != "handoff.json")
    assert all(model in named for model in (result.student, *result.teachers.values()))
    program = shlex.split(result.command)
    assert all(Path(word).exists() for word in program if word.startswith("/"))


def test_the_command_says_how_to_start(merged: Path) -> None:
    words = [word for name, path in PROMPTS.items() for word in ("--prompts", f"{name}={path}")]
    output, _ = in_process("handoff", merged, "out", *words, "--for", "verl", "--max-new", 64)
    assert "out: verl 0.10: 3 teachers\n" in output
    for name, model in AGENTS.items():
        assert f"{name}: 8 prompts of {name}.jsonl; teacher {model}\n" in output
    assert "next: python -m verl.trainer.main_ppo --config-dir out --config-name mopd" in output
    config = YAML(typ="safe").load(Path("out/mopd.yaml"))
    assert config["data"]["max_response_length"] == 64
    record, _ = in_process("handoff", merged, "other", *words, "--json")
    assert json.loads(record)["teachers"].keys() == AGENTS.keys()


def test_the_recipe_names_the_prompts(merged: Path) -> None:
    recipe = Path("merged/ramerge.yaml")
    recipe.write_text(recipe.read_text() + "prompts:\n" + "".join(f"  {n}: ../{p}\n" for n, p in PROMPTS.items()))
    assert ramerge.handoff(merged, "out").prompts == {"code": 8, "tool": 8, "memory": 8}
    Path("few.jsonl").write_text('{"prompt": "1+1="}\n')
    assert ramerge.handoff(merged, "few", prompts={"code": "few.jsonl"}).prompts == {"code": 1, "tool": 8, "memory": 8}


def test_conversations_take_the_template_of_the_student(merged: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    Path("chat.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    with pytest.raises(ramerge.InputError, match=r"prompts are messages, but .*merged has no chat template"):
        ramerge.handoff(merged, "out", prompts=dict.fromkeys(AGENTS, "chat.jsonl"))
    (merged / "chat_template.jinja").write_text("{{ messages[0].content }}")
    ramerge.handoff(merged, "out", prompts=dict.fromkeys(AGENTS, "chat.jsonl"))
    assert rows_of(Path("out"))[0] == {"prompt": messages, "teacher_id": "code"}
    assert "chat_template" not in YAML(typ="safe").load(Path("out/config.yaml"))
    with pytest.raises(ramerge.InputError, match=r"several forms.*chat\.jsonl: line 1 \(code\): messages.*: text"):
        ramerge.handoff(merged, "new", prompts={**PROMPTS, "code": "chat.jsonl"})
    assert not Path("new").exists()
    with pytest.raises(ramerge.RecipeError, match=r"^s3://bucket/merged: is remote, and a trainer reads the student"):
        ramerge.handoff("s3://bucket/merged", "new", prompts=PROMPTS)


@pytest.mark.parametrize(
    ("processor", "begins"),
    [
        (None, ""),
        ({"type": "ByteLevel"}, ""),
        ({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}, "<s>"),
        (
            {
                "type": "Sequence",
                "processors": [
                    {"type": "ByteLevel"},
                    {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<b>"}}, {"Sequence": {}}]},
                ],
            },
            "<b>",
        ),
        ({"type": "TemplateProcessing", "single": "?"}, ""),
    ],
)
def test_text_begins_as_the_tokenizer_begins_it(processor: Any, begins: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"post_processor": processor}))
    tasks, template = tasks_of({"code": [Prompt("a", "1+1=")]}, tmp_path)
    assert template is not None and template.startswith(f"{begins}{{%")
    _, complete = tasks_of({"code": [Prompt("a", f"{begins}1+1=", state="rendered")]}, tmp_path)
    assert complete is not None and complete.startswith("{%")
    assert [task.messages[0]["content"] for task in tasks] == ["1+1="]


def test_the_hardest_prompts_are_kept() -> None:
    prompts = {"code": [Prompt(f"{n}", f"{n}") for n in range(5)], "tool": [Prompt("t", "t")]}
    values = {"code": {prompts["code"][n].key: value for n, value in enumerate([0.5, 0.1, 0.9, 0.2])}}
    values["tool"] = {prompts["tool"][0].key: 1.0}
    assert [each.text for each in hardest(prompts, values, 2)["code"]] == ["1", "3"]
    assert [each.text for each in hardest(prompts, values, 9)["code"]] == ["1", "3", "0", "2"]
    assert [each.text for each in hardest(prompts, values, 9)["tool"]] == ["t"]
    with pytest.raises(ramerge.InputError, match="none of the prompts of tool"):
        hardest(prompts, {"code": values["code"]}, 1)


def test_scores_belong_to_the_replies_that_the_search_called_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanges = [
        Exchange("place", (1, 2), 1, "reply", reward, held_out=True, key=key)
        for key, reward in {"first": 0.5, "second": 1.0, "wrong": 0.0}.items()
    ]
    (tmp_path / "calibration" / "code").mkdir(parents=True)
    (tmp_path / "calibration" / "code" / "replies.jsonl").write_text(to_lines(exchanges))
    (tmp_path / "asked.json").write_text('{"settings": {"right_at": 0.5}}')
    (tmp_path / "trials").mkdir()
    scores = {"code": of_items([(3.0, 1.0), (0.0, 0.0), (2.0, 1.0)])}  # in two parts, the wrong reply in the first
    Folder(tmp_path).trials.keep(Trial(1, {"method": "ram"}, "complete", scores))
    monkeypatch.setattr(distillation_prompts, "read_search", lambda _: SimpleNamespace(best=1))
    assert likelihoods_of(tmp_path) == {"code": {"first": -3.0, "second": -2.0}}


def test_a_prompt_that_one_agent_holds_out_trains_no_other() -> None:
    common = [Prompt("", str(n)) for n in range(4)]
    for own in ([Prompt("", f"own {n}") for n in range(count)] for count in range(1, 9)):
        training, held_out = hold_out({"code": common, "tool": [*common, *own]}, 2)
        keys = {prompt.key for each in held_out.values() for prompt in each}
        assert not keys & {prompt.key for each in training.values() for prompt in each}
    (one,) = hold_out({"code": common}, 1)[1]["code"]
    with pytest.raises(ramerge.InputError, match="so none is left to train on"):
        hold_out({"code": common, "tool": [one]}, 1)


@pytest.mark.parametrize("trainer", [*TRAINERS])
def test_prompts_are_held_out_to_score_the_student(trainer: str, merged: Path) -> None:
    whole = ramerge.handoff(merged, "whole", trainer=trainer, prompts=PROMPTS)
    result = ramerge.handoff(
        merged, "out", trainer=trainer, prompts=PROMPTS, settings=ramerge.HandoffSettings(hold_out=3)
    )
    assert result.prompts == dict.fromkeys(AGENTS, 5) and result.held_out == dict.fromkeys(AGENTS, 3)
    assert {*result.files} == {*whole.files, "held_out.jsonl"} and not whole.held_out
    text_of = TEXT_OF.get(trainer, lambda row: row["prompt"][0]["content"])
    train, held_out = (
        {text_of(json.loads(line)) for line in Path("out", name).read_text().splitlines()}
        for name in ("prompts.jsonl", "held_out.jsonl")
    )
    assert len(train) == 15 and len(held_out) == 9 and not train & held_out
    assert train | held_out == {text_of(row) for row in rows_of(Path("whole"))}
    if trainer in ("verl", "nemo-rl"):
        assert Path("out/mopd.yaml").read_text().count(f"{Path('out/held_out.jsonl').resolve()}\n") == 1
    lines = Path("code.jsonl").read_text().splitlines(keepends=True)
    Path("code.jsonl").write_text("".join(reversed(lines)))
    again = ramerge.handoff(
        merged, "again", trainer=trainer, prompts=PROMPTS, settings=ramerge.HandoffSettings(hold_out=3)
    )
    assert again.held_out == result.held_out
    assert {text_of(json.loads(line)) for line in Path("again/held_out.jsonl").read_text().splitlines()} == held_out


@pytest.mark.needs("torch", "transformers", "optuna")
def test_prompts_and_their_scores_come_from_a_search(merged: Path) -> None:
    settings = ramerge.SearchSettings(
        html=False, calibration=ramerge.CalibrationSettings(count=6, max_new=12, device="cpu")
    )
    Path("rollouts").mkdir()
    for number, line in enumerate(Path(PROMPTS["code"]).read_text().splitlines()):  # of which some are drawn
        Path(f"rollouts/{number}.jsonl").write_text(f"{line}\n")
    recipe = {"base": "base", "agents": AGENTS, "prompts": {**PROMPTS, "code": "rollouts"}}
    ramerge.search(recipe, "found", vary={"parameters.r": [0, 0.1]}, settings=settings)
    result = ramerge.handoff("found", "out")
    assert result.prompt_files["code"] == str(Path("rollouts").resolve())
    assert result.student == str(Path("found/best").resolve()) and result.prompts == dict.fromkeys(AGENTS, 8)
    every = [
        ramerge.handoff("found", f"hard{count}", settings=ramerge.HandoffSettings(hardest=count)) for count in (1, 2, 3)
    ]
    assert [each.prompts["code"] for each in every] == [1, 2, 3]
    assert "only prompts that the search has scored can be kept: 3 of 8 of code" in every[0].notes[0]
    texts = [[row["prompt"][0]["content"] for row in rows_of(Path(f"hard{count}"))] for count in (1, 2, 3)]
    assert set(texts[0]) < set(texts[1]) < set(texts[2])
    scored = ramerge.replies_of("found/calibration").exchanges["code"]
    assert {text for text in texts[2] if text in prompts_of("code")} == {json.loads(each.key)[0] for each in scored}


# --- teachers ---------------------------------------------------------------------------------------------------------


def test_a_delta_becomes_a_teacher_by_the_command_of_the_message(merged: Path) -> None:
    ramerge.delta("base", "coder", "delta")
    agents = {"code": {"delta": "delta"}, "tool": "tool"}
    ramerge.merge({"base": "base", "agents": agents}, "merged", options=OVERWRITE)
    prompts = {name: PROMPTS[name] for name in agents}
    with pytest.raises(ramerge.RecipeError, match=r"teacher code: .*delta is a delta, so no trainer loads") as error:
        ramerge.handoff(merged, "out", prompts=prompts)
    command = re.search(r"make one: ramerge (.*?); and give it", str(error.value))
    assert command is not None
    in_process(*shlex.split(command[1]))
    assert Path("TEACHER/model.safetensors").read_bytes() == Path("coder/model.safetensors").read_bytes()
    result = ramerge.handoff(merged, "out", prompts=prompts, teachers={"code": "TEACHER"})
    assert result.teachers["code"] == str(Path("TEACHER").resolve())


def test_every_teacher_that_cannot_be_loaded_is_named(merged: Path) -> None:
    Path("weights").mkdir()
    Path("weights/config.json").write_text("{}")
    Path("adapter").mkdir()
    Path("adapter/adapter_config.json").write_text("{}")
    teachers = {"code": "adapter", "tool": "weights", "memory": "s3://bucket/memory", "who": "coder"}
    with pytest.raises(ramerge.RecipeError) as error:
        ramerge.handoff(merged, "out", prompts=PROMPTS, teachers=teachers)
    assert [problem.partition(";")[0] for problem in error.value.problems] == [
        "teachers who: the merge has no such agent",
        f"teacher code: {Path('adapter').resolve()} is an adapter, so no trainer loads it",
        f"teacher tool: {Path('weights').resolve()} has no *.safetensors or pytorch_model*.bin, so no trainer loads it",
        "teacher memory: s3://bucket/memory is remote",
    ]


def test_a_teacher_of_the_hub_is_named_as_trainers_name_it(merged: Path) -> None:
    result = ramerge.handoff(merged, "out", prompts=PROMPTS, teachers={"code": "owner/name@abc123"})
    assert result.teachers["code"] == "owner/name"


def test_a_model_with_an_adapter_is_no_teacher(merged: Path) -> None:
    Path("adapter").mkdir()
    recipe = Path("merged/ramerge.yaml")
    recipe.write_text(recipe.read_text().replace("../coder", "../base+../adapter"))
    with pytest.raises(ramerge.RecipeError, match=r"has adapters on top.*--set parameters\.agent=code"):
        ramerge.handoff(merged, "out", prompts=PROMPTS)


def test_models_with_other_tokens_are_noted(merged: Path) -> None:
    recipe = Path("merged/ramerge.yaml")
    recipe.write_text(recipe.read_text() + "allow: {different_tokens: true}\n")
    assert "check that the ids mean the same" in ramerge.handoff(merged, "out", prompts=PROMPTS).notes[0]


def test_an_agent_that_was_written_after_the_merge_is_noted(merged: Path) -> None:
    assert not any("after the merge" in note for note in ramerge.handoff(merged, "out", prompts=PROMPTS).notes)
    Path("coder/model.safetensors").touch()
    [note] = ramerge.handoff(merged, "new", prompts=PROMPTS).notes
    assert note.startswith("teacher code: ") and "was written after the merge" in note
    shutil.copytree("coder", "former")
    assert not ramerge.handoff(merged, "other", prompts=PROMPTS, teachers={"code": "former"}).notes


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("merged out", "no prompts: neither the recipe of the merge nor its search names any"),
        ("merged out --prompts code=code.jsonl", "tool: has no prompts; give --prompts tool=FILE"),
        ("merged out ALL --prompts who=code.jsonl", "--prompts who: unknown agent 'who'"),
        ("merged out ALL --hardest 3", "--hardest: needs scores of prompts, which a search has"),
        ("merged out ALL --hold-out 8", "--hold-out 8: code has 8 prompts, so none is left to train on"),
        ("merged out ALL --for axolotl", "unknown trainer 'axolotl'"),
        ("merged out ALL --for trl --for verl", "--for: is given 2 times; give it once"),
        ("merged merged ALL --overwrite", "merged: is one of the inputs"),
        ("merged merged/new ALL", "merged/new: is inside the input merged"),
        ("merged coder ALL --overwrite", "coder: is one of the inputs"),
        ("merged . ALL --overwrite", ".: holds the input"),
        ("merged other ALL --overwrite", "other: holds files that `ramerge handoff` did not write"),
        ("merged code.jsonl ALL", "code.jsonl: is one of the inputs"),
        ("merged demo_reward.py ALL", "demo_reward.py: is a file"),
        ("coder out ALL", "coder: is not a finished merge: ramerge.json or ramerge.yaml is missing"),
        ("mergd out ALL", "mergd: no such folder; did you mean merged?"),
        ("s3://bucket/merged out ALL", "s3://bucket/merged is remote, and must be on this machine"),
        ("merged out ALL --teacher code=tool", "tool has the weights of teacher code; give the checkpoint that was"),
        ("merged out ALL --teacher tool=copy", "copy has the weights of teacher code"),
        ("merged out ALL --teacher code=base", "base has the weights of the base"),
        ("swept out ALL", "swept: is a sweep, which has several merges; name one of those in it: r=0, r=0.1"),
        ("unfinished out ALL", "unfinished: holds a search that has not ended"),
        ("soup out ALL", "soup: holds a soup of the checkpoints of one run"),
        ("as-delta out ALL", "as-delta: is a delta, which no trainer loads as the student"),
        ("merged out ALL --prompts code=missing.jsonl", "prompts of code: missing.jsonl: cannot be read"),
        ("merged out ALL --prompts code=decoded.jsonl", "decoded without its special tokens"),
        ("uniform out ALL", "uniform: holds a soup of the checkpoints of one run"),
    ],
)
def test_refusals(words: str, message: str, merged: Path) -> None:
    Path("other").mkdir()
    Path("other/notes.txt").write_text("mine")
    for name in ("unfinished", "soup"):
        Path(name).mkdir()
    Path("unfinished/asked.json").write_text("{}")
    Path("soup/soup.json").write_text("{}")
    Path("decoded.jsonl").write_text(json.dumps({"input": "user\n1+1=", "output": "2", "score": 1.0, "step": 1}) + "\n")
    if "swept" in words:
        ramerge.sweep("merged/ramerge.yaml", "swept", vary={"parameters.r": [0, 0.1]}, options=OPTIONS)
    if "copy" in words:
        shutil.copytree("coder", "copy")
    if "as-delta" in words:
        in_process("merge", "merged/ramerge.yaml", "as-delta", "--as-delta", "--quiet")
    if "uniform" in words:
        ramerge.merge({"agents": AGENTS, "method": "uniform"}, "uniform", options=OPTIONS)
    named = [word.partition("=")[0] for word in words.split()]
    rest = " ".join(f"--prompts {name}={path}" for name, path in PROMPTS.items() if name not in named)
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    with pytest.raises((ramerge.RamergeError, click.UsageError, SystemExit)) as error:
        in_process("handoff", *words.replace("ALL", rest).split())
    assert message in "\n".join(getattr(error.value, "messages", [str(error.value)]))
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_all_problems_are_named_together(merged: Path) -> None:
    shutil.rmtree("coder")
    Path("coder").write_text("a file")
    with pytest.raises(ramerge.RecipeError) as error:
        ramerge.handoff("mergd", "out", trainer="axolotl", prompts=PROMPTS)
    assert [problem.partition(":")[0] for problem in error.value.problems] == [
        "mergd",
        "unknown trainer 'axolotl'; known",
    ]
    with pytest.raises(ramerge.InputError) as error:
        ramerge.handoff(merged, merged, prompts={"code": "missing.jsonl"}, settings=ramerge.HandoffSettings(hardest=3))
    starts = ("tool: has no prompts", "memory: has no prompts", "teacher code", "merged: is one of the inputs")
    starts += ("prompts of code: missing.jsonl", "hardest: needs scores")
    assert len(error.value.problems) == len(starts)
    assert all(problem.startswith(start) for problem, start in zip(error.value.problems, starts, strict=True))


def test_an_average_of_agents_takes_teachers_that_are_named(merged: Path) -> None:
    ramerge.merge({"agents": AGENTS, "method": "uniform"}, "uniform", options=OPTIONS)
    assert ramerge.handoff("uniform", "out", prompts=PROMPTS, teachers=AGENTS).teachers.keys() == AGENTS.keys()


def test_an_earlier_handoff_is_replaced_on_request(merged: Path) -> None:
    ramerge.handoff(merged, "out", prompts=PROMPTS)
    with pytest.raises(ramerge.RecipeError, match="holds an earlier handoff; choose another folder, or replace it"):
        ramerge.handoff(merged, "out", prompts=PROMPTS)
    Path("code.jsonl").write_text('{"prompt": "1+1="}\n')
    assert ramerge.handoff(merged, "out", prompts=PROMPTS, options=OVERWRITE).prompts["code"] == 1
    assert len(rows_of(Path("out"))) == 17


def test_numbers_are_checked(merged: Path) -> None:
    with pytest.raises(ramerge.RecipeError, match="max_new: must be a whole number of at least 1, not 0"):
        ramerge.handoff(merged, "out", prompts=PROMPTS, settings=ramerge.HandoffSettings(max_new=0))
    with pytest.raises(ramerge.RecipeError, match="hardest: must be a whole number of at least 1, not 0"):
        ramerge.handoff(merged, "out", prompts=PROMPTS, settings=ramerge.HandoffSettings(hardest=0))
    with pytest.raises(ramerge.RecipeError, match="hold_out: must be a whole number of at least 0, not -1"):
        ramerge.handoff(merged, "out", prompts=PROMPTS, settings=ramerge.HandoffSettings(hold_out=-1))


def test_a_plugin_adds_a_trainer(merged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def files(lesson: Lesson) -> dict[str, str]:
        return {"tasks.jsonl": json_lines({"of": task.teacher, "truth": task.truth} for task in lesson.tasks)}

    monkeypatch.setattr(handoff_module, "TRAINERS", {"mine": Trainer("mine 1.0", files, "mine {out}", interface=1)})
    result = ramerge.handoff(merged, "a folder", trainer="mine", prompts=PROMPTS)
    assert result.files == ("tasks.jsonl", "handoff.json")
    assert shlex.split(result.command) == ["mine", str(Path("a folder").resolve())]
    first = json.loads(Path("a folder/tasks.jsonl").read_text().splitlines()[0])
    assert first == {"of": "code", "truth": json.loads(Path("code.jsonl").read_text().splitlines()[0])["ground_truth"]}
