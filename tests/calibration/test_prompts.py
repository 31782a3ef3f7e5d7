"""Prompts and rollouts: which forms are read, what is wrong with others, and what is drawn of many."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramerge
from ramerge.calibration.calibrate import prompts_of
from ramerge.calibration.exchanges import Exchange, read_exchanges, to_lines
from ramerge.calibration.prompts import Reply, halves, read_prompts
from ramerge.core.foundation.errors import InputError
from ramerge.sdk.recipes import models_only, open_recipe
from tests.messages import Messages

CHAT = [{"role": "user", "content": "2 + 2"}]
ANSWER = {"role": "assistant", "content": "4"}

# what verl writes: `_write_generations` in verl/trainer/ppo/ray_trainer.py
VERL = {"input": "user\n2 + 2\nassistant\n", "output": "4", "gts": "4", "score": 0.5, "step": 3, "acc": True}
# TRL, trl/trainer/grpo_trainer.py (log): a column for each reward function, then those of log_extra
TRL = {
    "step": 5,
    "prompt": "user\n2 + 2\nassistant\n",
    "completion": "4",
    "accuracy_reward": 1.0,
    "format_reward": 0.5,
    "not_applicable": float("nan"),
    "length": 17,
    "solution": "4",
    "advantage": 0.7,
}
# what SkyRL writes: `dump_per_dataset_eval_results` in skyrl/train/utils/trainer_utils.py
SKYRL = {
    "input_prompt": "<s>user 2 + 2",
    "output_response": "4</s>",
    "score": [0.0, 0.25, 0.5],
    "stop_reason": "stop",
    "env_class": "gsm8k",
    "env_extras": {"reward_spec": {"method": "rule", "ground_truth": "4"}, "extra_info": {"index": 3}},
    "data_source": "sum",
}
# what slime writes: `Sample.to_dict` in slime/utils/types.py and `save_debug_rollout_data` in
# slime/observability/rollout_data_utils.py
SLIME = {
    "group_index": 0,
    "index": 0,
    "prompt": "<s>user 2 + 2",
    "tokens": [1, 5, 6, 7, 8, 9, 2],
    "response": "a tool 4</s>",
    "response_length": 5,
    "label": "4",
    "reward": 1.0,
    "loss_mask": [1, 0, 0, 1, 1],
    "status": "completed",
    "metadata": {"index": 3},
    "spec_info": {"spec_draft_token_num": 0},
}
# verifiers, verifiers/v1/trace.py and graph.py; prime-rl writes them, in src/prime_rl/monitors/file.py
TRACE = {
    "task": {"type": "Sum", "data": {"prompt": "2 + 2", "answer": "4"}},
    "agent": {"name": "solver", "trainable": True},
    "nodes": [
        {"message": CHAT[0], "sampled": False, "token_ids": [1, 5], "mask": [False, False]},
        {"parent": 0, "message": {"role": "assistant"}, "sampled": True, "token_ids": [6], "mask": [True]},
        {
            "parent": 1,
            "message": {"role": "tool", "content": [{"type": "text", "text": "4!"}], "tool_call_id": "a"},
            "token_ids": [7],
            "mask": [False],
        },
        {"parent": 0, "message": {"role": "user", "content": "a branch"}, "token_ids": [3], "mask": [False]},
        {"parent": 2, "message": ANSWER, "sampled": True, "token_ids": [8, 9, 2], "mask": [False, True, True]},
    ],
    "rewards": {"right": {"score": 1.0, "weight": 0.5}, "short": {"score": 2.0}, "unscored": None},
    "ok": True,
}
# prime-rl; verifiers/v1/episode.py
EPISODE = {
    "id": "e",
    "env": {"id": "sum"},
    "task": TRACE["task"],
    "traces": [TRACE, {**TRACE, "agent": {"name": "judge", "trainable": False}}],
}
TURNS = ({"role": "assistant", "content": ""}, {"role": "tool", "content": "4!"})


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("record", "text", "replies"),
    [
        ({"prompt": "2 + 2 ="}, "2 + 2 =", ()),
        ({"prompt": "2 + 2 =", "reply": "4", "reward": 1}, "2 + 2 =", (Reply("4", 1.0),)),
        ({"prompt": "2 + 2 =", "completion": "4"}, "2 + 2 =", (Reply("4"),)),
        ({"question": "2 + 2 =", "response": "", "reward": False}, "2 + 2 =", ()),
        # OpenRLHF, openrlhf/cli/batch_inference.py
        ({"input": "2 + 2 =", "output": "4</s>", "reward": 0.5}, "2 + 2 =", (Reply("4</s>", 0.5),)),
        ({"prompt": CHAT}, None, ()),
        ({"messages": CHAT}, None, ()),
        ({"messages": [*CHAT, {"role": "assistant", "content": "4"}]}, None, (Reply("4"),)),
        (
            {"prompt": CHAT, "completion": [{"role": "assistant", "content": "4"}], "reward": 1.0},
            None,
            (Reply("4", 1.0),),
        ),
        # prime-rl of April to June 2026, which wrote verifiers' RolloutOutput (verifiers/utils/save_utils.py)
        (
            {
                "example_id": 0,
                "prompt": CHAT,
                "completion": [ANSWER, {"role": "user", "content": "sure?"}, {"role": "assistant", "content": "yes"}],
                "reward": 1.0,
            },
            None,
            (Reply("yes", 1.0, (ANSWER, {"role": "user", "content": "sure?"})),),
        ),
    ],
)
def test_forms(record: dict[str, Any], text: str | None, replies: tuple[Reply, ...], tmp_path: Path) -> None:
    (prompt,) = read_prompts(lines(tmp_path / "p.jsonl", record))
    assert (prompt.text, prompt.replies) == (text, replies)
    assert list(prompt.messages) == ([] if text else CHAT)


@pytest.mark.parametrize(
    ("record", "state", "reply", "truth", "index"),
    [
        (VERL, "decoded", Reply("4", 0.5), "4", None),
        (TRL, "decoded", Reply("4", 1.5), None, None),
        ({**TRL, "accuracy_reward": None, "format_reward": float("nan")}, "decoded", Reply("4"), None, None),
        (SKYRL, "rendered", Reply("4</s>", 0.75), "4", 3),
        ({**SKYRL, "score": 1}, "rendered", Reply("4</s>", 1.0), "4", 3),
        (SLIME, "rendered", Reply("a tool 4</s>", 1.0, ids=(1, 5, 6, 7, 8, 9, 2), start=5), "4", 3),
        ({**SLIME, "loss_mask": None, "reward": {"score": 0.5, "acc": True}}, "rendered",
         Reply("a tool 4</s>", 0.5, ids=(1, 5, 6, 7, 8, 9, 2), start=2), "4", 3),
        ({**SLIME, "tokens": [], "response_length": 0}, "rendered", Reply("a tool 4</s>", 1.0), "4", 3),
        (EPISODE, "plain", Reply("4", 2.5, TURNS, (1, 5, 6, 7, 8, 9, 2), 5), "4", None),
        (TRACE, "plain", Reply("4", 2.5, TURNS, (1, 5, 6, 7, 8, 9, 2), 5), "4", None),
    ],
)  # fmt: skip
def test_rollouts_of_trainers(
    record: dict[str, Any], state: str, reply: Reply, truth: Any, index: Any, tmp_path: Path
) -> None:
    (prompt,) = read_prompts(lines(tmp_path / "p.jsonl", record))
    assert (prompt.state, prompt.replies) == (state, (reply,))
    assert (prompt.reward_fields["ground_truth"], prompt.reward_fields["extra_info"].get("index")) == (truth, index)
    assert prompt.text == record.get("input", record.get("input_prompt", record.get("prompt")))
    assert list(prompt.messages) == (CHAT if prompt.text is None else [])


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({**SLIME, "reward": {"acc": 1.0}}, "reward has no score, but acc"),
        ({**SLIME, "tokens": [1, -5, 3, 3, 3, 3, 3]}, "tokens must be token ids"),
        ({**SKYRL, "score": [0.0, None]}, "reward must be a finite number"),
        ({**VERL, "score": float("nan")}, "reward must be a finite number"),
        ({"messages": CHAT, "tools": [{"name": "add"}]}, "has tools, which are not passed to the chat template"),
        ({**TRACE, "rewards": {"right": "yes"}}, "rewards must be numbers"),
        (
            {**TRACE, "nodes": [{"message": {"role": "assistant", "tool_calls": [{"name": "add"}]}, "sampled": True}]},
            "has calls of tools without token_ids",
        ),
    ],
)
def test_what_is_wrong_in_rollouts(record: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem):
        read_prompts(lines(tmp_path / "p.jsonl", record))


def test_rollouts_that_failed_are_left_out(tmp_path: Path) -> None:
    failed = [
        {**SLIME, "status": "aborted", "response": ""},
        {**EPISODE, "traces": []},
        {**TRACE, "nodes": [{"message": CHAT[0]}]},
    ]
    assert len(read_prompts(lines(tmp_path / "p.jsonl", *failed, VERL))) == 1


@pytest.mark.needs("torch")
def test_slime_files_are_read_without_executing_pickles(tmp_path: Path, messages: Messages) -> None:
    import torch

    torch.save({"rollout_id": 0, "samples": [SLIME, {**SLIME, "reward": 0.0}]}, tmp_path / "0.pt")
    (prompt,) = read_prompts(tmp_path)
    assert [reply.reward for reply in prompt.replies] == [1.0, 0.0]
    torch.save({"rollout_id": 0, "samples": [{**SLIME, "status": Path.cwd}]}, tmp_path / "1.pt")
    with messages.raises(InputError):
        read_prompts(tmp_path)
    torch.save({"weight": torch.zeros(2)}, tmp_path / "1.pt")
    with messages.raises(InputError):
        read_prompts(tmp_path)


def test_a_pickle_of_another_trainer_is_refused(tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "global_step_1_training_input.pkl").write_bytes(b"\x80\x04.")
    with messages.raises(InputError):
        read_prompts(tmp_path / "global_step_1_training_input.pkl")


def test_steps_are_read_in_numeric_order(tmp_path: Path) -> None:
    for step in (10, 2):
        lines(tmp_path / f"{step}.jsonl", {**VERL, "output": str(step), "step": step})
    lines(tmp_path / "aggregated_results.jsonl", {"eval/all/avg_score": 0.5})
    (prompt,) = read_prompts(tmp_path)
    assert [reply.text for reply in prompt.replies] == ["2", "10"]
    assert prompt.best.text == "10"  # of equal rewards


def test_best_and_newest_distinct_replies_stay(tmp_path: Path) -> None:
    records = [{**VERL, "output": str(place), "score": place % 2} for place in range(200)]
    (prompt,) = read_prompts(lines(tmp_path / "p.jsonl", *records, *records[-5:]))
    assert [int(reply.text) for reply in prompt.replies] == list(range(73, 200, 2))


def test_memory_grows_with_the_draw_only(tmp_path: Path) -> None:
    with (tmp_path / "p.jsonl").open("w") as file:
        for place in range(4_000):
            record = {**VERL, "input": f"{place % 400} {'prompt ' * 100}", "output": f"{place} {'reply ' * 100}"}
            file.write(json.dumps(record) + "\n")
    assert (tmp_path / "p.jsonl").stat().st_size > 5_000_000
    tracemalloc.start()
    drawn = read_prompts(tmp_path / "p.jsonl", 4)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [len(prompt.replies) for prompt in drawn] == [10] * 4
    assert peak < 1_000_000


def test_prompt_gathers_replies_of_all_records(tmp_path: Path) -> None:
    records = [{"input": "a", "output": str(place), "score": place} for place in range(3)]
    first, second = read_prompts(lines(tmp_path / "1.jsonl", *records, {"input": "b", "output": "x", "score": 0}))
    assert first.replies == (Reply("0", 0.0), Reply("1", 1.0), Reply("2", 2.0))
    assert second.text == "b"


def test_rollout_files_are_read_in_order(tmp_path: Path) -> None:
    lines(tmp_path / "2.jsonl", {"input": "b", "output": "y", "score": 1})
    lines(tmp_path / "1.jsonl", {"input": "a", "output": "x", "score": 1})
    (tmp_path / "notes.txt").write_text("not a rollout")
    assert [prompt.text for prompt in read_prompts(tmp_path)] == ["a", "b"]


@pytest.mark.needs("pyarrow")
def test_parquet(tmp_path: Path, messages: Messages) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(
        pyarrow.Table.from_pylist([TRL, {**TRL, "completion": "5"}]), tmp_path / "completions_00005.parquet"
    )
    (prompt,) = read_prompts(tmp_path / "completions_00005.parquet")
    assert (prompt.state, prompt.replies) == ("decoded", (Reply("4", 1.5), Reply("5", 1.5)))
    table = pyarrow.table({"prompt": [CHAT, CHAT], "completion": ["4", "5"], "reward": [1.0, 0.0]})
    parquet.write_table(table, tmp_path / "p.parquet")
    (prompt,) = read_prompts(tmp_path / "p.parquet")
    assert prompt.replies == (Reply("4", 1.0), Reply("5", 0.0))
    (tmp_path / "q.parquet").write_bytes(b"PAR1 or not")
    with messages.raises(InputError):
        read_prompts(tmp_path / "q.parquet")


def test_verl_ground_truth_reaches_the_reward(tmp_path: Path) -> None:
    record = {"prompt": CHAT, "data_source": "sum", "reward_model": {"ground_truth": "4"}, "extra_info": {"index": 3}}
    (prompt,) = read_prompts(lines(tmp_path / "p.jsonl", record))
    assert prompt.reward_fields == {"data_source": "sum", "ground_truth": "4", "extra_info": {"index": 3}}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n\n",
        "{",
        '{"prompt": "a"}\n\n nonsense\n',
        '{"prompt": "a"}\n{"prompt"\n',
        "[1]",
        '{"text": "a"}',
        '{"prompt": ""}',
        '{"prompt": 3}',
        '{"messages": []}',
        '{"messages": [{"role": "user"}]}',
        '{"messages": [{"role": "assistant", "content": "4"}]}',
        '{"prompt": "a", "reply": 4}',
        '{"prompt": "a", "reply": "4", "reward": "high"}',
        '{"prompt": "\\ud800"}',
    ],
)
def test_what_is_wrong_is_named_with_its_line(content: str, tmp_path: Path, messages: Messages) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(content)
    with messages.raises(InputError) as caught:
        read_prompts(path)
    assert str(path) in str(caught.value)


def test_first_ten_problems_are_listed(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_prompts(lines(tmp_path / "p.jsonl", *[{"prompt": ""}] * 13))
    assert len(caught.value.problems) == 11
    assert caught.value.problems[-1] == "and 3 more"


def test_files_that_cannot_be_read(tmp_path: Path, messages: Messages) -> None:
    with messages.raises(InputError):
        read_prompts(tmp_path / "missing.jsonl")
    with messages.raises(InputError):
        read_prompts(tmp_path)


@given(st.permutations([f"p{place}" for place in range(12)]), st.integers(0, 3))
def test_draw_depends_on_prompts_and_seed_only(names: list[str], seed: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = lines(Path(folder, "p.jsonl"), *({"prompt": name} for name in names))
        drawn = [prompt.text for prompt in read_prompts(path, 5, seed)]
        ordered = lines(Path(folder, "q.jsonl"), *({"prompt": name} for name in sorted(names)))
        assert sorted(map(str, drawn)) == sorted(str(prompt.text) for prompt in read_prompts(ordered, 5, seed))
        assert [name for name in names if name in drawn] == drawn
        first, second = halves(read_prompts(path), seed)
        assert (len(first), len(second)) == (6, 6)
        assert {prompt.key for prompt in first}.isdisjoint(prompt.key for prompt in second)


def test_replies_round_trip_without_an_unfinished_line(tmp_path: Path, messages: Messages) -> None:
    exchanges = [Exchange("p:1", (1, 2, 3), 2, "x", 0.5, key="k"), Exchange("p:2", (4, 5), 1, "", held_out=True)]
    path = tmp_path / "replies.jsonl"
    path.write_text(to_lines(exchanges))
    assert read_exchanges(path) == exchanges
    path.write_text(to_lines(exchanges)[:-20])
    assert read_exchanges(path, partial=True) == exchanges[:1]
    with messages.raises(InputError):
        read_exchanges(path)


@pytest.mark.parametrize(
    "line", ["{}", '{"place": "a", "ids": [], "start": 0, "text": ""}', "[]", '{"ids": [1], "start": 5}']
)
def test_damaged_replies_are_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "replies.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match="line 1"):
        read_exchanges(tmp_path / "replies.jsonl")


def test_prompts_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and prompts of a recipe are named with `~` there, in place of the path that was given."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "code.jsonl").write_text('{"prompt": "2 + 2"}\n{"prompt": "3 + 3"}\n')
    (tmp_path / "code").mkdir()
    recipe = {"agents": {"code": str(tmp_path / "code")}, "prompts": {"code": str(tmp_path / "code.jsonl")}}
    models = models_only(open_recipe(recipe))
    assert models.prompts == {"code": "~/code.jsonl"}
    found = prompts_of(models.agents, models.prompts, ramerge.CalibrationSettings())
    assert [prompt.text for prompt in found["code"]] == ["2 + 2", "3 + 3"]


def test_remote_prompts_are_refused() -> None:
    with pytest.raises(InputError, match=r"p\.jsonl: prompts are read from this machine only; download the file first"):
        prompts_of(["code"], {"code": Path("s3://bucket/p.jsonl")}, ramerge.CalibrationSettings())
