"""Prompts and rollouts: which forms are read, what is wrong with others, and what is drawn of many."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramerge.calibration.exchanges import Exchange, read_exchanges, to_lines
from ramerge.calibration.prompts import Reply, halves, read_prompts
from ramerge.foundation.errors import InputError

CHAT = [{"role": "user", "content": "2 + 2"}]


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("record", "text", "replies"),
    [
        ({"prompt": "2 + 2 ="}, "2 + 2 =", ()),
        ({"prompt": "2 + 2 =", "reply": "4", "reward": 1}, "2 + 2 =", (Reply("4", 1.0),)),
        ({"prompt": "2 + 2 =", "completion": "4"}, "2 + 2 =", (Reply("4"),)),
        ({"input": "2 + 2 =", "output": "4", "score": 0.5, "step": 3}, "2 + 2 =", (Reply("4", 0.5),)),
        ({"input_prompt": "2 + 2 =", "output_response": "", "reward": False}, "2 + 2 =", (Reply("", 0.0),)),
        ({"prompt": CHAT}, None, ()),
        ({"messages": CHAT}, None, ()),
        ({"messages": [*CHAT, {"role": "assistant", "content": "4"}]}, None, (Reply("4"),)),
        (
            {"prompt": CHAT, "completion": [{"role": "assistant", "content": "4"}], "reward": 1.0},
            None,
            (Reply("4", 1.0),),
        ),
    ],
)
def test_forms(record: dict[str, Any], text: str | None, replies: tuple[Reply, ...], tmp_path: Path) -> None:
    (prompt,) = read_prompts(lines(tmp_path / "p.jsonl", record))
    assert (prompt.text, prompt.replies) == (text, replies)
    assert list(prompt.messages) == ([] if text else CHAT)


def test_a_prompt_of_several_records_has_all_their_replies(tmp_path: Path) -> None:
    records = [{"input": "a", "output": str(place), "score": place} for place in range(3)]
    first, second = read_prompts(lines(tmp_path / "1.jsonl", *records, {"input": "b", "output": "x", "score": 0}))
    assert first.replies == (Reply("0", 0.0), Reply("1", 1.0), Reply("2", 2.0))
    assert second.text == "b"


def test_a_folder_of_rollouts_is_read_in_the_order_of_its_files(tmp_path: Path) -> None:
    lines(tmp_path / "2.jsonl", {"input": "b", "output": "y", "score": 1})
    lines(tmp_path / "1.jsonl", {"input": "a", "output": "x", "score": 1})
    (tmp_path / "notes.txt").write_text("not a rollout")
    assert [prompt.text for prompt in read_prompts(tmp_path)] == ["a", "b"]


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"prompt": [CHAT, CHAT], "completion": ["4", "5"], "reward": [1.0, 0.0]})
    parquet.write_table(table, tmp_path / "p.parquet")
    (prompt,) = read_prompts(tmp_path / "p.parquet")
    assert prompt.replies == (Reply("4", 1.0), Reply("5", 0.0))
    (tmp_path / "q.parquet").write_bytes(b"PAR1 or not")
    with pytest.raises(InputError, match="is not Parquet"):
        read_prompts(tmp_path / "q.parquet")


def test_verl_s_ground_truth_is_kept_for_the_reward(tmp_path: Path) -> None:
    record = {"prompt": CHAT, "data_source": "sum", "reward_model": {"ground_truth": "4"}, "extra_info": {"index": 3}}
    (prompt,) = read_prompts(lines(tmp_path / "p.jsonl", record))
    assert prompt.about == {"data_source": "sum", "ground_truth": "4", "extra_info": {"index": 3}}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "holds no prompts"),
        ("\n\n", "holds no prompts"),
        ("{", "line 1: "),
        ("[1]", "line 1: must be a JSON object"),
        ('{"text": "a"}', "has no prompt or messages; has text"),
        ('{"prompt": ""}', "prompt is empty"),
        ('{"prompt": 3}', "must be text, or a list of messages"),
        ('{"messages": []}', "must be text, or a list of messages"),
        ('{"messages": [{"role": "user"}]}', "message 1 must be an object with a text role and a text content"),
        ('{"messages": [{"role": "assistant", "content": "4"}]}', "holds a reply and no prompt"),
        ('{"prompt": "a", "reply": 4}', "the reply must be text"),
        ('{"prompt": "a", "reply": "4", "reward": "high"}', "reward must be a finite number"),
        ('{"prompt": "\\ud800"}', "surrogate"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(content: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=problem) as caught:
        read_prompts(path)
    assert str(path) in str(caught.value)


def test_the_first_ten_problems_and_the_number_of_the_others(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_prompts(lines(tmp_path / "p.jsonl", *[{"prompt": ""}] * 13))
    assert len(caught.value.problems) == 11
    assert caught.value.problems[-1] == "and 3 more"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_prompts(tmp_path / "missing.jsonl")
    with pytest.raises(InputError, match="holds no files of rollouts"):
        read_prompts(tmp_path)


@given(st.permutations([f"p{place}" for place in range(12)]), st.integers(0, 3))
def test_a_draw_depends_on_prompts_and_seed_and_not_on_their_order(names: list[str], seed: int) -> None:
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


def test_replies_are_read_as_they_were_written_and_an_unfinished_line_is_left_out(tmp_path: Path) -> None:
    exchanges = [Exchange("p:1", (1, 2, 3), 2, "x", 0.5, key="k"), Exchange("p:2", (4, 5), 1, "", held_out=True)]
    path = tmp_path / "replies.jsonl"
    path.write_text(to_lines(exchanges))
    assert read_exchanges(path) == exchanges
    path.write_text(to_lines(exchanges)[:-20])
    assert read_exchanges(path, partial=True) == exchanges[:1]
    with pytest.raises(InputError, match="line 2: is no reply"):
        read_exchanges(path)


@pytest.mark.parametrize(
    "line", ["{}", '{"place": "a", "ids": [], "start": 0, "text": ""}', "[]", '{"ids": [1], "start": 5}']
)
def test_damaged_replies_are_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "replies.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match="line 1"):
        read_exchanges(tmp_path / "replies.jsonl")
