"""Tables of made-up results, the paper's own rows, and every format read back."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from ramerge.core.foundation.errors import EvaluationError
from ramerge.scoring import intervals
from ramerge_eval.samples import Model, Samples
from ramerge_eval.tables import layouts
from ramerge_eval.tables.build import build
from ramerge_eval.tables.compare import compare
from ramerge_eval.tables.merging import retention
from ramerge_eval.tables.render import FORMATS, render
from ramerge_eval.tables.roles import GivenRoles
from ramerge_eval.tables.scores import Table, cell_frame

pytestmark = pytest.mark.full  # clients of models, checkers, the sandbox

PAPER_TABLES = [f"table{number}" for number in (1, *range(3, 11))]


def model(description: Mapping[str, Any], tasks: Mapping[tuple[str, str], Iterable[tuple[str, Any]]]) -> Model:
    """A model as logs would give it."""
    found = {task: gathered([line for _, line in lines]) for task, lines in tasks.items()}
    settings = {task: description.get("settings", {}) for task in tasks}
    about = (description["name"], description.get("model"), description.get("record"))
    return Model(*about, {task: samples for task, samples in found.items() if samples.keys}, settings)


def gathered(lines: Sequence[dict[str, Any]]) -> Samples:
    lines = sorted(lines, key=lambda line: str(line["key"]))
    names = dict.fromkeys(name for line in lines for name in line["metrics"])
    metrics = {name: np.array([line["metrics"].get(name, (0, 0)) for line in lines], dtype=float) for name in names}
    failures = {line["key"]: line["failure"] for line in lines if line.get("failure")}
    return Samples(tuple(line["key"] for line in lines), metrics, failures, item_count=len(lines))


def lines(metric: str, right: Iterable[float]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"line {number}", {"key": f"q{number}", "metrics": {metric: [value, 1]}, "failure": None})
        for number, value in enumerate(right, 1)
    ]


def record(*, agents: Mapping[str, str] | None = None, base: str = "/models/base") -> dict[str, Any]:
    listed = {"tool": "/models/tool-agent", "memory": "/models/memo"} if agents is None else agents
    return {"base": base, "agents": listed}


def made(name: str, tool: Iterable[int] = (), memory: Iterable[int] = (), **description: Any) -> Model:
    """A model with right and wrong answers in one task of each of two suites."""
    tasks = {("tool", "parallel"): lines("accuracy", tool), ("memory", "squad_32k"): lines("sub_em", memory)}
    return model({"name": name, "model": f"/models/{name}", "record": None, **description}, tasks)


def family() -> list[Model]:
    """A base, two agents and three merges."""
    return [
        made("merge-a", [1, 1, 1, 0], [1, 0, 0, 0], record=record()),
        made("merge-b", [1, 1, 0, 0], [1, 1, 1, 0], record=record()),
        made("merge-c", [1, 1, 1, 0], [0, 0, 0, 0], record=record()),
        made("tool-agent", [1, 1, 0, 0], [1, 0, 0, 0]),
        made("memo", [0, 0, 0, 0], [1, 1, 1, 1]),
        made("base", [1, 0, 0, 0], [1, 0, 0, 0]),
    ]


def row(table: Table, name: str) -> list[Any]:
    """The cells of a row."""
    return list(table.cells[table.cells.row == name].itertuples())


def rows(table: Table) -> dict[str, str]:
    """Names and sections, in order."""
    return dict(zip(table.cells.row, table.cells.section, strict=True))


def values(table: Table, name: str) -> dict[str, float | None]:
    return {
        column.title: None if np.isnan(cell.value) else cell.value
        for column, cell in zip(table.columns, row(table, name), strict=True)
    }


def ranks(table: Table, column: str) -> dict[str, tuple[int, bool]]:
    """Rank, and whether the specialist is beaten, of the rows that have either."""
    place = [each.title for each in table.columns].index(column)
    cells = table.cells[table.cells.place == place].itertuples()
    return {cell.row: (cell.rank, cell.beats) for cell in cells if cell.rank or cell.beats}


def interval(cell: Any) -> tuple[float, float] | None:
    return None if np.isnan(cell.low) else (cell.low, cell.high)


# --- the paper's numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_paper_rows_fit_the_layouts(name: str) -> None:
    columns = [column for column in layouts.layout_of(name, []).columns if column.task]
    assert all(all(column.titles) and column.metric for column in columns)
    for quoted in layouts.paper_table(name)["rows"]:
        assert len(quoted["values"]) == len(columns)
        assert all(0 <= value <= 100 for value in quoted["values"])


@pytest.mark.parametrize(
    ("table", "name", "column", "value"),
    [
        ("table1", "RAM+", 5, 70.83),
        ("table1", "CURE (Coding)", 11, 44.22),
        ("table4", "DARE+TIES", 7, 85.50),
        ("table5", "DARE+TIES", 5, 71.97),
        ("table6", "RAM+", 1, 53.64),
        ("table7", "MemAgent", 15, 36.09),
        ("table8", "TIES", 12, 94.50),
        ("table9", "Base", 12, 25.78),
        ("table10", "WUDI", 11, 72.66),
    ],
)
def test_cells_of_the_paper(table: str, name: str, column: int, value: float) -> None:
    assert (
        next(quoted for quoted in layouts.paper_table(table)["rows"] if quoted["name"] == name)["values"][column]
        == value
    )


def test_the_papers_averages_are_means_over_columns() -> None:
    """All but two, which the data file says."""
    unlike = [
        (table, quoted["name"])
        for table in PAPER_TABLES
        for quoted in layouts.paper_table(table)["rows"]
        if "average" in quoted and abs(fmean(quoted["values"]) - quoted["average"]) > 0.00501
    ]
    assert unlike == [("table8", "TIES"), ("table8", "DARE+TA")]
    assert "TIES (72.71) and DARE+TA (76.50)" in " ".join(layouts.paper_table("table8")["inconsistencies"])


def test_the_papers_differences_to_the_base() -> None:
    table = build([ifeval("mine", [1, 0])], "table3", reference=True)
    quoted = [list(cells.itertuples()) for _, cells in table.cells[table.cells.quoted].groupby("line")]
    for shown, source in zip(quoted, layouts.paper_table("table3")["rows"], strict=True):
        differences = [None if np.isnan(cell.difference) else round(cell.difference, 2) for cell in shown]
        assert differences == source.get("differences", [None] * 4)
    assert {row[0].section.split(":")[0] for row in quoted} == {"Qwen2.5-7B-Instruct", "Llama-3.2-3B-Instruction"}


# --- scores -----------------------------------------------------------------------------------------------------------


def test_scores_are_ratios_of_sums_in_per_cent() -> None:
    samples = [("a", {"key": "1", "metrics": {"acc": [2, 4]}}), ("b", {"key": "2", "metrics": {"acc": [0, 1]}})]
    table = build([model({"name": "m"}, {("coding", "livebench"): samples})])
    (cell,) = row(table, "m")
    assert cell.value == 40
    assert interval(cell) == pytest.approx([100 * end for end in intervals.interval([(2, 4), (0, 1)]) or ()], abs=0.6)
    assert (cell.samples, cell.failed) == (2, 0)


def test_averages_by_domain_and_overall() -> None:
    tasks = {
        ("tool", "live_parallel"): lines("accuracy", [1, 0]),
        ("tool", "live_parallel_multiple"): lines("accuracy", [1, 1]),
        ("tool", "parallel"): lines("accuracy", [1, 0, 0, 0]),
        ("tool", "parallel_multiple"): lines("accuracy", [0, 0]),
        **{
            ("memory", task): lines("sub_em", [1]) for task in ("hotpotqa_50", "hotpotqa_100", "squad_32k", "squad_64k")
        },
    }
    whole = model({"name": "whole"}, tasks)
    partial = model({"name": "partial"}, {place: tasks[place] for place in tasks if place != ("memory", "squad_64k")})
    table = build([whole, partial], "table5")
    assert values(table, "whole")["Tool use Avg"] == pytest.approx((50 + 100 + 25 + 0) / 4)
    assert values(table, "whole")["Avg"] == pytest.approx((50 + 100 + 25 + 0 + 400) / 8)
    assert values(table, "partial")["Tool use Avg"] == pytest.approx(43.75)
    assert [values(table, "partial")[title] for title in ("Memory SQuAD 64K", "Memory Avg", "Avg")] == [None] * 3
    assert any("averages over rows with gaps are left out" in note for note in table.notes)


def test_interval_of_an_average_is_narrower_than_those_of_its_columns() -> None:
    right = [1, 0] * 40
    table = build([made("m", right, right)])
    widths = [cell.high - cell.low for cell in row(table, "m")]
    assert widths[2] == pytest.approx(widths[0] / 2**0.5, rel=0.1)


def test_one_sample_has_no_interval_and_neither_has_its_average() -> None:
    table = build([made("m", [1], [1, 0])])
    assert [interval(cell) is None for cell in row(table, "m")] == [True, False, True]


def test_nothing_to_count_is_no_score() -> None:
    empty = [("a", {"key": "1", "metrics": {"acc": [0, 0]}}), ("b", {"key": "2", "metrics": {"acc": [0, 0]}})]
    table = build([model({"name": "m"}, {("coding", "livebench"): empty})], "table4")
    assert set(values(table, "m").values()) == {None}
    assert all("–" in line for line in render(table, "markdown").splitlines() if line.startswith("| m "))


def rubbish() -> Model:
    """A model that never calls a function."""
    tasks = [("tool", column.task) for column in layouts.layout_of("table8", []).columns if column.task]
    return model(
        {"name": "rubbish"},
        {place: lines("accuracy", [float(place[1] in layouts.REFUSALS)] * 2) for place in tasks},
    )


def test_rubbish_has_nothing_in_averages() -> None:
    """BFCL counts every answer that is no call as right in its irrelevance tasks."""
    main = build([rubbish()])
    assert (values(main, "rubbish")["Tool use irrelevance"], values(main, "rubbish")["Avg"]) == (100, 0)
    assert any("in irrelevance and live_irrelevance" in note and "leaves them out" in note for note in main.notes)
    as_paper = build([rubbish()], "table8", reference=True)
    assert values(as_paper, "rubbish")["Avg"] == pytest.approx(200 / 13)
    assert values(as_paper, "RAM (paper)")["Avg"] == 77.51
    assert any("Avg has them" in note for note in as_paper.notes)
    refusals = {("tool", task): lines("accuracy", [1, 1]) for task in layouts.REFUSALS}
    assert "Avg" not in values(build([model({"name": "m"}, refusals)]), "m")


def test_general_layouts_have_what_was_run() -> None:
    tasks = {
        ("memory", "hotpotqa_200"): lines("sub_em", [1]),
        ("memory", "hotpotqa_50"): lines("sub_em", [1]),
        ("zebra", "stripes"): [("a", {"key": "1", "metrics": {"black": [1, 1], "white": [0, 1]}})],
        ("coding", "mbpp"): [("a", {"key": "1", "metrics": {"acc": [1, 1], "ut": [0, 1]}})],
    }
    results = [model({"name": "m"}, tasks)]
    main = build(results)
    assert [column.title for column in main.columns if column.task] == [
        "Coding mbpp",
        "Memory hotpotqa_50",
        "Memory hotpotqa_200",
        "zebra stripes",
    ]
    assert [column.metric for column in main.columns if column.task] == ["acc", "sub_em", "sub_em", "black"]
    whole = [column.title for column in build(results, "all").columns]
    assert whole[:2] == ["Coding mbpp acc", "Coding mbpp ut"] and "Avg" not in whole


# --- roles and marks --------------------------------------------------------------------------------------------------


def test_roles_from_merge_records() -> None:
    table = build(family())
    assert list(rows(table).items()) == [
        ("base", "Base and task models"),
        ("tool-agent", "Base and task models"),
        ("memo", "Base and task models"),
        ("merge-a", "Merged models"),
        ("merge-b", "Merged models"),
        ("merge-c", "Merged models"),
    ]
    assert "Specialists: tool-agent (tool), memo (memory)." in table.notes


def test_best_second_best_and_marks_against_agents() -> None:
    table = build(family())
    assert ranks(table, "Tool use parallel") == {"merge-a": (1, True), "merge-c": (1, True), "merge-b": (2, False)}
    assert ranks(table, "Memory squad_32k") == {"merge-b": (1, False), "merge-a": (2, False)}
    alone = build(family(), models=["base", "merge-a"])
    assert not alone.cells["rank"].any(), "one merge is not the best of merges"


def test_roles_as_the_user_says() -> None:
    models = [made(name, right, right) for name, right in (("x", [1, 0]), ("y", [0, 0]), ("z", [1, 1]), ("w", [1, 0]))]
    table = build(models, explicit_roles=GivenRoles("y", {"tool": "x"}, ["z", "w"]))
    assert list(rows(table)) == ["y", "x", "z", "w"]
    assert ranks(table, "Tool use parallel") == {"z": (1, True), "w": (2, False)}
    assert "No specialist is known for memory." in table.notes


@pytest.mark.parametrize("roles", [{"base": "nobody"}, {"specialists": {"tool": "nobody"}}, {"merges": ["nobody"]}])
def test_unknown_names(roles: dict[str, Any]) -> None:
    with pytest.raises(EvaluationError, match="no results of 'nobody'; there are merge-a, "):
        build(family(), explicit_roles=GivenRoles(**roles))


def test_models_in_the_order_asked_for() -> None:
    table = build(family(), models=["merge-c", "merge-a", "base"])
    assert list(rows(table)) == ["base", "merge-c", "merge-a"]
    with pytest.raises(EvaluationError, match="no results of 'merge-z'"):
        build(family(), models=["merge-z"])


def test_agents_of_two_models_with_one_folder_name_are_not_guessed() -> None:
    merge = made("merge", [1], [1], record=record(agents={"tool": "/elsewhere/final"}))
    models = [made("one", [1], [1], model="/a/final"), made("two", [1], [1], model="/b/final")]
    assert "No specialist is known for tool, memory." in build([merge, *models]).notes


def ifeval(name: str, right: Sequence[int], **description: Any) -> Model:
    metrics = [f"{level}_{how}" for level in ("instruction", "prompt") for how in ("loose", "strict")]
    samples = [
        (str(number), {"key": str(number), "metrics": {metric: [value, 1] for metric in metrics}})
        for number, value in enumerate(right)
    ]
    return model({"name": name, **description}, {("ifeval", "ifeval"): samples})


def test_table_3_has_a_section_and_differences_for_each_base() -> None:
    models = [
        ifeval("base", [1, 0, 0, 0]),
        ifeval("llama", [1, 1, 1, 0]),
        ifeval("qwen-ram", [1, 1, 0, 0], record=record()),
        ifeval("llama-ram", [1, 1, 0, 0], record=record(base="/models/llama", agents={})),
        ifeval("qwen-ties", [1, 0, 0, 0], record=record()),
    ]
    table = build(models, "table3")
    assert rows(table) == {
        "base": "base: Base and task models",
        "qwen-ram": "base: Merged models",
        "qwen-ties": "base: Merged models",
        "llama": "llama: Base and task models",
        "llama-ram": "llama: Merged models",
    }
    assert [row(table, name)[0].difference for name in ("qwen-ram", "llama-ram")] == [25, -25]
    assert ranks(table, "Instructions Instruction Loose") == {"qwen-ram": (1, False), "qwen-ties": (2, False)}
    assert "50.00* (+25.00)" in render(table, "text")
    assert "25.00+ (0.00)" in render(table, "text")


def test_a_base_that_is_not_there_is_noted() -> None:
    table = build([ifeval("alone", [1, 0]), ifeval("merge", [1, 1], record=record(agents={}))], "table3")
    assert "No base model to compare with in this table: alone, merge." in table.notes


# --- notes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_a_model_whose_samples_failed_has_a_dash(form: str) -> None:
    models = family()
    tasks = dict(models[0].tasks)
    tasks["tool", "parallel"] = replace(tasks["tool", "parallel"], failures={"q4": "HTTP 500"})
    models[0] = replace(models[0], tasks=tasks)
    reason = "1 of 4 samples failed: HTTP 500"
    for table, line, title in (
        (build(models), "merge-a", "Tool use parallel"),
        (retention(models), "merge-a", "Retention tool/parallel"),
        (retention(models), "merge-a", "Over all Composite"),
        (compare(models, "merge-a", "merge-b"), "Tool use parallel", "merge-a"),
        (compare(models, "merge-a", "merge-b"), "Tool use parallel", "p"),
    ):
        assert values(table, line)[title] is None
        text = render(table, form)
        if form != "csv":
            assert "–" in text and any(reason in note for note in table.notes)
    assert reason in render(build(models), form)


def test_a_model_without_any_answer_stays_in_the_table() -> None:
    other = replace(made("other"), tasks={("tool", "parallel"): Samples(("q1",), {}, {"q1": "HTTP 500"}, item_count=1)})
    assert values(build([*family(), other]), "other")["Tool use parallel"] is None
    alone = build([other])
    assert [cell.failure for cell in row(alone, "other")] == ["1 of 1 samples failed: HTTP 500"]
    assert "–" in render(alone, "text")


def test_failures_and_fewer_samples_are_noted() -> None:
    limited = made("limited", [1], [1, 0])
    failing = model(
        {"name": "failing"},
        {
            ("tool", "parallel"): [
                ("a", {"key": "q1", "metrics": {"accuracy": [0, 1]}, "failure": "no answer"}),
                ("b", {"key": "q2", "metrics": {"accuracy": [1, 1]}, "failure": None}),
            ]
        },
    )
    table = build([limited, failing])
    assert "No score of failing in tool/parallel: 1 of 2 samples failed: no answer." in table.notes
    assert "Fewer samples than others: limited 1 in tool/parallel." in table.notes
    assert "Samples: tool/parallel 2, memory/squad_32k 2." in table.notes
    assert row(table, "failing")[0].failed == 1


def test_settings_that_differ_are_noted() -> None:
    hot, cold = {"temperature": 1.0, "seed": 0}, {"temperature": 0.0, "seed": 0}
    table = build([made("a", [1, 0], settings=hot), *(made(name, [1, 0], settings=cold) for name in "bcd")])
    differing = [note for note in table.notes if note.startswith("Different")]
    assert differing == ["Different settings of tool/parallel: temperature is 1.0 for a; 0.0 for b, c, d."]


# --- the paper next to measured rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAPER_TABLES)
@pytest.mark.parametrize("form", FORMATS)
def test_every_table_with_the_papers_rows_in_every_format(name: str, form: str) -> None:
    columns = [column for column in layouts.layout_of(name, []).columns if column.task]
    tasks: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    for column in columns:
        metrics = {each.metric: [1, 2] for each in columns if (each.suite, each.task) == (column.suite, column.task)}
        tasks[column.suite, column.task] = [("line", {"key": str(key), "metrics": metrics}) for key in range(2)]
    mine = model({"name": "mine", "record": record(agents={})}, tasks)
    text = render(build([mine], name, reference=True), form)
    assert "mine" in text and "50.0" in text
    assert text.count("(paper)") >= len(layouts.paper_table(name)["rows"])
    assert "2601.13572" in text


def test_quoted_rows_are_not_ranked() -> None:
    table = build(family(), "table5", reference=True)
    assert set(ranks(table, "Tool use Non-Live Para")) == {"merge-a", "merge-b", "merge-c"}
    assert all(cell.quoted == ("(paper)" in cell.row) for cell in table.cells.itertuples())


def test_specialists_of_each_base_are_apart() -> None:
    """The second merge is not above its own specialist, only above the first one's."""
    models = [
        made("one", [1, 0]),
        made("two", [1, 0]),
        made("one-tool", [1, 0]),
        made("two-tool", [1, 1]),
        made("one-merge", [1, 1], record=record(agents={"tool": "/models/one-tool"}, base="/models/one")),
        made("two-merge", [1, 1], record=record(agents={"tool": "/models/two-tool"}, base="/models/two")),
    ]
    assert ranks(build(models, "table5"), "Tool use Non-Live Para") == {"one-merge": (0, True)}


def test_quoted_averages_are_the_printed_ones() -> None:
    tasks = {("tool", "simple_java"): lines("accuracy", [1, 0])}
    table = build([model({"name": "m"}, tasks)], "table8", reference=True)
    assert values(table, "TIES (paper)")["Avg"] == 72.71
    assert any("cut off, not rounded" in note for note in table.notes)


def test_there_are_no_quoted_rows_for_general_layouts() -> None:
    with pytest.raises(EvaluationError, match="has no rows for the table 'main'; it has table1, "):
        build(family(), reference=True)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_refusals_name_what_there_is() -> None:
    assert layouts.names() == ["main", "all", *PAPER_TABLES]
    with pytest.raises(EvaluationError, match="there are no results"):
        build([])
    with pytest.raises(EvaluationError, match="there is no table 'table2'; there are main, all, table1, "):
        build(family(), "table2")
    with pytest.raises(
        EvaluationError, match=r"none of the columns of table7 was run; .* memory/squad_32k, tool/parallel"
    ):
        build(family(), "table7")
    with pytest.raises(EvaluationError, match="there is no format 'word'; there are text, markdown"):
        render(build(family()), "word")
    with pytest.raises(EvaluationError, match="hold no scored sample"):
        build([made("m")])


# --- comparison -------------------------------------------------------------------------------------------------------


def test_paired_comparison() -> None:
    first, second = made("a", [1, 1, 1, 0] * 10, [1, 0] * 9), made("b", [1, 0, 1, 0] * 10, [1, 0] * 10)
    table = compare([first, second], "a", "b")
    assert list(rows(table)) == ["Tool use parallel", "Memory squad_32k", "Avg"]
    tool = values(table, "Tool use parallel")
    assert (tool["a"], tool["b"], tool["Difference"], tool["Items"]) == (75, 50, 25, 40)
    assert tool["from"] > 0 and tool["p"] < 0.01  # type: ignore[operator]
    memory = values(table, "Memory squad_32k")
    assert (memory["Difference"], memory["p"], memory["Items"]) == (0, 1, 18)
    assert values(table, "Avg")["Difference"] == 12.5
    assert "Left out, because the other has not got them: 2 of b in memory/squad_32k." in table.notes
    both = np.array([[(first, 1.0), (second, 1.0)] for first, second in [(1, 1), (1, 0), (1, 1), (0, 0)] * 10])
    drawn = intervals.replicates(both)
    expected = intervals.difference(25.0, 100 * (drawn[:, 0] - drawn[:, 1]))
    figures = (expected.value, expected.low, expected.high)
    assert [tool[name] for name in ("Difference", "from", "to")] == pytest.approx(figures, abs=0.6)


def test_comparison_needs_common_items() -> None:
    with pytest.raises(EvaluationError, match="cannot be compared with itself"):
        compare(family(), "base", "base")
    with pytest.raises(EvaluationError, match="no results of 'nobody'"):
        compare(family(), "base", "nobody")
    with pytest.raises(EvaluationError, match="have no two items in common"):
        compare([made("a", [1, 0]), made("b", [], [1, 0])], "a", "b")


# --- formats ----------------------------------------------------------------------------------------------------------

HOSTILE = '<script>alert("x")</script> & | `a`_b_*c* \\d{e}$f$ #g%h^i~j\nk\x1b[31m\ud800 --'


def hostile() -> Table:
    return build([made(HOSTILE, [1, 0], [1, 1], record=record()), made("b|c", [1, 1], [0, 0], record=record())])


def test_names_are_escaped_in_every_format() -> None:
    for form in FORMATS:
        text = render(hostile(), form, intervals=True)
        text.encode("utf-8")
        assert "\x1b" not in text and "j\nk" not in text
    assert "<script>" not in render(hostile(), "html")
    assert "\\<script\\>alert" in render(hostile(), "markdown")


def test_markdown_rows_have_as_many_cells_as_the_head() -> None:
    table = [line for line in render(hostile(), "markdown").splitlines() if line.startswith("|")]
    assert len(table) == 5
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {5}


def test_marks_in_every_format() -> None:
    table = build(family())
    assert re.search(r"merge-a +\| +\*\*75.00\*\*† +\| +<u>25.00</u>", render(table, "markdown"))
    cells = re.findall("<td[^>]*>(.*?)</td>", render(table, "html"))
    assert cells[cells.index("<strong>75.00</strong>†") + 1] == "<u>25.00</u>"
    assert re.search(r"merge-a +75.00\*† +25.00\+", render(table, "text"))
    assert "75.00 [25.00, 100.00]" in render(build(family(), models=["base", "merge-a"]), "text", intervals=True)


def test_csv_has_all_numbers_plainly() -> None:
    table = build(family())
    lines = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    assert len(lines) == 6 * 3
    first = next(line for line in lines if line["row"] == "merge-a" and line["task"] == "parallel")
    cell = row(table, "merge-a")[0]
    assert (float(first["value"]), float(first["low"]), float(first["high"])) == (75, cell.low, cell.high)
    assert (first["samples"], first["failed"], first["quoted"], first["difference"]) == ("4", "0", "no", "")
    assert (first["suite"], first["metric"], first["section"]) == ("tool", "accuracy", "Merged models")
    average = next(line for line in lines if line["row"] == "merge-a" and line["column"] == "Avg")
    assert (average["samples"], average["failed"], average["task"]) == ("", "", "")


def test_cells_without_a_value() -> None:
    table = Table("t", "Model", build(family()).columns, cell_frame([({"row": "m"}, [{}] * 3)]))
    assert render(table, "csv").count("\n") == 1
    assert re.search(r"\| m +\| +– \| +– \| +– \|", render(table, "markdown"))


@pytest.mark.parametrize("width", [80, 120, 200])
def test_tables_keep_to_the_width_of_a_terminal(width: int) -> None:
    table = build(family(), "table1", reference=True)
    whole, folded = render(table, "text"), render(table, "text", width=width)
    assert max(map(len, folded.splitlines())) <= width
    scores_of = re.compile(r"(?<!\d)\d{1,3}\.\d\d(?!\d)|–")
    assert sorted(scores_of.findall(whole)) == sorted(scores_of.findall(folded))


def test_what_a_spreadsheet_would_compute_is_text() -> None:
    table = build([made("=1+1", [1, 0]), made("@x", [1, 0])])
    lines = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    assert {line["row"] for line in lines} == {"'=1+1", "'@x"}


# --- what merges have kept --------------------------------------------------------------------------------------------


def test_retention_worst_task_and_composite() -> None:
    table = retention(family())
    kept = values(table, "merge-a")
    # tool: 3 of 4 against the specialist's 2 of 4; memory: 1 of 4 against 4 of 4
    assert kept["Retention tool/parallel"] == pytest.approx(150)
    assert kept["Retention memory/squad_32k"] == pytest.approx(25)
    assert kept["Over all Mean"] == pytest.approx(87.5)
    assert kept["Over all Composite"] == pytest.approx(100 * (1.5 * 0.25) ** 0.5)
    assert kept["Over all Worst"] == pytest.approx(25)
    assert kept["Over all Imbalance"] == pytest.approx(62.5)
    assert values(table, "merge-c")["Over all Composite"] == 0, "a lost skill is not made up for"
    assert "Worst task of merge-a: memory/squad_32k (25.0 %)." in table.notes
    low, high = interval(row(table, "merge-a")[1]) or (0, 0)
    assert low == 0 and 25 < high <= 100
    assert render(table, "csv").count("merge-b") >= 6


def test_skills_that_nobody_trained_and_tokens() -> None:
    def with_more(each: Model, right: list[int], tokens: int) -> Model:
        extra = gathered([line for _, line in lines("em", right)])
        tasks = {name: replace(samples, tokens=tokens) for name, samples in each.tasks.items()}
        return replace(each, tasks={**tasks, ("search", "nq"): extra})

    merge, tool, memo, base = (family()[place] for place in (0, 3, 4, 5))
    whole = [with_more(merge, [1, 0, 0, 0], 80), with_more(tool, [1] * 4, 40), with_more(memo, [1] * 4, 160)]
    table = retention([*whole, with_more(base, [1, 1, 0, 0], 4)])
    assert values(table, "merge-a")["Untrained Points"] == -25
    assert values(table, "merge-a")["Tokens Ratio"] == pytest.approx((80 / 40 + 80 / 160) / 2)


def test_merging_needs_merges_and_specialists() -> None:
    with pytest.raises(EvaluationError, match="--merged"):
        retention([made("a", [1, 0])])
    with pytest.raises(EvaluationError, match="--specialist"):
        retention([made("a", [1, 0]), made("b", [1, 0])], GivenRoles(merges=["a"]))
    told = retention([made("a", [1, 0]), made("b", [1, 1])], GivenRoles(None, {"tool": "b"}, ["a"]))
    assert values(told, "a")["Retention tool/parallel"] == 50


def test_tasks_of_one_package_have_specialists_of_their_own() -> None:
    def scored(name: str, sums: list[int], rules: list[int], **description: Any) -> Model:
        tasks = {("evals", "sums"): lines("acc", sums), ("evals", "rules"): lines("acc", rules)}
        return model({"name": name, "model": f"/models/{name}", "record": None, **description}, tasks)

    agents = [scored("sums", [1, 1], [0, 1]), scored("other", [0, 1], [1, 1]), scored("base", [0, 0], [1, 0])]
    whole = [scored("merge", [1, 0], [1, 0], record=record(agents={each.name: f"/{each.name}" for each in agents[:2]}))]
    by_name = values(retention([*whole, *agents]), "merge")
    assert by_name["Retention evals/sums"] == 50 and "Retention evals/rules" not in by_name
    assert by_name["Untrained Points"] == 0
    told = values(retention([*whole, *agents], GivenRoles(None, {"rules": "other"})), "merge")
    assert (told["Retention evals/sums"], told["Retention evals/rules"]) == (50, 50)
    of_suite = values(retention([*whole, *agents], GivenRoles(None, {"evals": "other"})), "merge")
    assert (of_suite["Retention evals/sums"], of_suite["Retention evals/rules"]) == (100, 50)
