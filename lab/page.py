"""docs/findings.md and the pages with all figures, from results: `python -m lab page`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab import details, distilled, overview, predictions, rules, sections, smollm, summary, tables
from lab.claims import DOES_NOT, HOLDS, MARGIN, OPEN, Claim, claims, signed_text
from lab.results import Outcome, Results
from lab.rows import ALL, NO_MERGE, SHARED_RULES
from lab.settings import KINDS, MAIN, SETTINGS
from lab.statistics import nemenyi
from ramerge.core.foundation.files import write_file

_CODE, _PLACEHOLDER = re.compile(r"`[^`]+`"), "\0"
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
DOCS = Path(__file__).parents[1] / "docs"


def write(results: Results) -> None:
    """The page with its figures."""
    from lab.figures import FIGURES, figures  # drawing needs more than the text does

    for name, content in figures(results):
        write_file(FIGURES / name, content)
    for name, content in pages(results).items():
        write_file(DOCS / name, content)


def pages(results: Results) -> dict[str, str]:
    """By file name in docs/."""
    parts = {
        "findings.md": [overview.text()],
        "findings-prompts.md": [overview.appendix()],
        "findings-distill.md": [distilled.text()],
        "findings-tiny-agents.md": _tiny(results),
        "findings-real-agents.md": _on_real(results),
    }
    whole = {name: "\n\n".join(each) for name, each in parts.items()}
    homes = {_anchor(heading): name for name, content in whole.items() for heading in _HEADING.findall(content)}
    return {
        name: "\n\n".join(map(_fill, _with_links(content, name, homes).split("\n\n"))) + "\n"
        for name, content in whole.items()
    }


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


def _with_links(content: str, page: str, homes: Mapping[str, str]) -> str:
    """Links to headings of other pages name the page."""
    return re.sub(
        r"\]\(#([^)]+)\)", lambda match: f"]({'' if homes[match[1]] == page else homes[match[1]]}#{match[1]})", content
    )


def _fill(block: str) -> str:
    """Prose and items of lists in lines of at most 120 characters; tables, headings, code and figures as they are."""
    if block.startswith("- "):
        items = block[2:].split("\n- ")
        return "\n".join(_wrap(f"- {item}", "  ") for item in items)
    is_prose = block[0].isalnum() or (block[0] == "`" and block[1] != "`")
    return _wrap(block) if is_prose else block


def _wrap(text: str, indent: str = "") -> str:
    """Lines of at most 120 characters that break outside of code."""
    one_line = " ".join(map(str.strip, text.splitlines()))
    whole = _CODE.sub(lambda code: code[0].replace(" ", _PLACEHOLDER), one_line)
    lines = textwrap.fill(whole, 120, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    return lines.replace(_PLACEHOLDER, " ")


def _tiny(results: Results) -> Iterator[str]:
    yield "# Findings on tiny agents"
    main = results.setting(MAIN)
    if main is None:
        yield "No results are kept yet: `python -m lab run`."
        return
    yield (
        "What merges of tiny agents show about the claims of the [RAM paper](https://arxiv.org/abs/2601.13572), about "
        "all methods of ramerge, and about rules that could be better."
    )
    findings = "\n".join(f"- {line}" for line in summary.lines(results))
    if findings:
        yield f"## In short\n\n{findings}"
    yield _beginning(results, main)
    all_claims = list(claims(results))
    yield _summary(all_claims)
    yield tables.of_claims(all_claims)
    yield _agents(results)
    yield _methods(results, main)
    yield _details(results, main)
    if main.has_regions:
        yield _geometry(results, main)
    if main.has_ablations:
        yield _ablations(main)
    yield _counts(results)
    yield _better_rule(results)
    yield _LIMITS
    yield _rules(all_claims, main)


def _on_real(results: Results) -> Iterator[str]:
    yield "# Findings on real agents"
    yield "Merges without prompts, on real agents of two small models. [Findings](findings.md) has merges with prompts."
    yield _real(results)
    yield sections.of_kinds(results)
    yield sections.of_second_base(results)
    yield sections.of_runs(results)


def _beginning(results: Results, main: Outcome) -> str:
    sizes, seconds = results.run["sizes"], results.run["seconds"]
    minutes = sum(seconds.values()) / len(seconds) / 60 if seconds else 0.0
    return f"""## How it was measured

{len(main.seeds)} seeds{_plan_note(main, sizes)} were measured, with {sizes["test"]} held-out prompts for each task and
greedy answers.

`make lab` produces the results: it trains, merges and scores, and an interrupted run resumes. It took {minutes:.1f}
minutes of one core ({results.run["processor"]}) per seed. `python -m lab page` computes everything on this page from
`lab/results`.

A score is the percentage of prompts that are answered exactly. Intervals in brackets are 95 % intervals of a bootstrap
over seeds and, within seeds, prompts. Differences are paired: both scores are on the same seeds and prompts. They are
computed before rounding, so they may deviate by 0.1 from the difference of two scores on this page."""


def _plan_note(main: Outcome, sizes: Mapping[str, Any]) -> str:
    return f" of {sizes['seeds']} that are planned" if len(main.seeds) < sizes["seeds"] else ""


def _summary(all_claims: Sequence[Claim]) -> str:
    count = {verdict: sum(one.verdict == verdict for one in all_claims) for verdict in (HOLDS, DOES_NOT, OPEN)}
    return f"""## The claims, one by one

On these agents, {count[HOLDS]} of {len(all_claims)} claims hold, {count[DOES_NOT]} do not, and {count[OPEN]} are not
decided by this data. The [appendix](#appendix-the-rules-of-the-verdicts) defines the rules of these verdicts."""


def _rules(all_claims: Sequence[Claim], main: Outcome) -> str:
    difference = nemenyi(len([row for row in ALL if row.name in main.best]), len(main.seeds))
    apart = (
        f"two mean ranks differ by Nemenyi's test if they are {difference:.1f} apart"
        if difference is not None
        else "Nemenyi's test can tell no two mean ranks apart, since so few seeds were measured"
    )
    return f"""## Appendix: the rules of the verdicts

The rules were written before the results. One comparison was corrected after two seeds: densities are now those of
agents of the same tasks.

{tables.of_rules(all_claims)}
- *The table of all methods*: p-values have Holm's correction over all methods; {apart}."""


def _agents(results: Results) -> str:
    sizes = results.run["sizes"]
    lines = [
        f"- **{kind}**: {KINDS[kind]}; {how['steps']} steps, first rates {', '.join(map(str, how['rates']))}."
        for kind, how in sizes["kinds"].items()
    ]
    return f"""## The agents

Every model is a transformer of 0.1 million parameters with one token per character. There are five tasks: `add` and
`subtract` numbers of two digits, `reverse` seven letters, `sort` seven digits, and `shift` seven letters by one. Each
seed has its own base, trained for {sizes["schooling"]["steps"]} steps on the answers of a teacher that often makes
mistakes, so that it has every skill in part. Each seed also has its own agents, each trained on one task from the
base's bfloat16 weights:

{chr(10).join(lines)}

RL is REINFORCE with standardized advantages over {sizes["kinds"]["rl"]["group"]} completions for each of
{sizes["kinds"]["rl"]["prompts"]} prompts per step, and a reward of 1 for exactly the right answer. *bfloat16 steps*
means that weights are rounded after each step, as in trainers that keep weights in bfloat16. Sizes, rates and steps
were chosen by the scores of the agents of one seed, before anything was merged, so that agents learn their tasks
quickly. The settings are:

{_settings(results)}"""


def _settings(results: Results) -> str:
    rows = []
    for setting in SETTINGS:
        outcome = results.setting(setting.name)
        if outcome is not None:
            rows.append(
                (
                    f"`{setting.name}`",
                    setting.kind,
                    ", ".join(outcome.agents),
                    outcome.dtype,
                    str(len(outcome.seeds)),
                )
            )
    return tables.table(("setting", "agents are", "agents", "output", "seeds"), rows)


def _methods(results: Results, main: Outcome) -> str:
    exclusions = "; ".join(f"`{name}` {why}" for name, why in NO_MERGE.items())
    failures = "".join(f"\n\n`{name}` failed: {why}" for name, why in main.failures.items())
    missing = [f"`{row.name}`" for row in ALL if row.name not in main.best.keys() | main.failures.keys()]
    unmeasured = f"\n\nNot measured yet: {', '.join(missing)}." if missing else ""
    return f"""## All methods, three agents

This section repeats the paper's table 1 in miniature. For each seed and method, parameters are chosen on
{results.run["sizes"]["validation"]} validation prompts per task from a small grid (`lab/rows.py`; scales from 0.3 to
3), and scored on the test prompts; the last column shows scores with default parameters. p-values belong to the
difference from RAM+ and are corrected for the number of methods; ranks are means over seeds
([appendix](#appendix-the-rules-of-the-verdicts)). Some methods cannot be compared: {exclusions}; `slerp` and `nuslerp`
take two agents.

{tables.of_methods(main)}{unmeasured}{failures}

![Mean ranks of all methods](results/figures/lab-ranks.svg)

The next table has the means in all settings, with the best of each column in bold:

{tables.of_settings(results)}

The next figure repeats figure 9 of the paper, with merging times from [the benchmarks](../benchmarks/README.md):

![Time and score](results/figures/lab-time.svg)"""


def _details(results: Results, main: Outcome) -> str:
    parts = "\n\n".join(
        f"`{task}`:\n\n{tables.of_details(results, main, task)}" for task in main.tasks if task in details.KINDS
    )
    return f"""## Each agent's own domain in detail

This section repeats the paper's tables 7 to 9 in miniature, with kinds of prompts of one task in place of benchmarks
of one domain. Each task is divided in two ways: by the prompt's last character, which determines how often the base's
teacher made mistakes, and by properties that may make the task hard. Parameters are chosen as above. The last column is
the difference from the agent that was trained on the task.{_kept_gains(results, main)}

{parts}"""


def _kept_gains(results: Results, main: Outcome) -> str:
    methods = [method for method in ("linear", "ram", "ram+", "task_arithmetic") if method in main.best]
    gains = details.kept_gains(results, main, methods)
    text = ", ".join(f"`{method}` {share:.0f} %" for method, share in gains.items())
    return text and (
        " The base is weak where the teacher made many mistakes. Merges keep these shares of the agents' gains there "
        "(means"
        f" over tasks): {text}."
    )


def _geometry(results: Results, main: Outcome) -> str:
    return f"""## What training changes

This section repeats the paper's figures 2 and 7 in miniature. The table counts elements that moved by more than 1e-5,
as means over seeds. An element is *unique* if no other agent of that kind moved it; the column *of* has the number of
agents. Fewer elements are unique among more agents, so compare *unique* only between rows with the same *of*. Kinds
with Adam also have other steps and rates than those with SGD.

{tables.of_geometry(results, KINDS)}

![Densities and overlaps](results/figures/lab-overlap.svg)

Like figure 8 of the paper, the next table shows another architecture: one seed of SmolLM2-135M, trained with GRPO and
Adam in float32 and saved in bfloat16 ([What RL did to three agents](results/smollm2.md)).

{tables.of_real()}

Like figure 3, the next table adds the unique region of one agent to the base, in full and divided by
N = {len(main.agents)}. It lists differences from the base in points:

{tables.of_regions(main)}

Like table 3, the next table has tasks that none of the three agents was trained on:

{tables.of_others(main)}"""


def _ablations(main: Outcome) -> str:
    return f"""## r, alpha and epsilon

This section repeats the paper's table 2 in miniature, and does the same for alpha and epsilon. All other parameters
are those of the paper. RAM+ with r = 0 is RAM.

{tables.of_ablation(main, "r")}

{tables.of_ablation(main, "alpha")}

{tables.of_ablation(main, "epsilon")}"""


def _counts(results: Results) -> str:
    return f"""## Two to five agents

Parameters are chosen on validation prompts, separately for each number of agents.

{tables.of_counts(results)}

![Scores by the number of agents](results/figures/lab-counts.svg)"""


def _better_rule(results: Results) -> str:
    choice = rules.choose(results)
    if choice is None:
        return "## A better rule for shared elements\n\nNot measured for enough seeds yet."
    total, over_sum = choice.against["all"], choice.against_sum["all"]
    if choice.winner == rules.REFERENCE or (total.low <= 0 and total.high >= 0):
        verdict = "So no candidate is better than RAM+ beyond what chance would give."
    elif total.low > 0:
        verdict = f"So `{choice.winner}` is better than RAM+ on these agents."
    else:
        verdict = f"So `{choice.winner}` did not stand the test: it is worse than RAM+ on the other seeds."
    return f"""## A better rule for shared elements

The candidates were fixed before anything was measured and have no parameters to choose: RAM and RAM+ with `shared` as
{", ".join(f"`{one}`" for one in SHARED_RULES)}, and the sum of task vectors times a factor. The table has their mean
scores on the seeds {", ".join(map(str, choice.choosing))}, on which the best candidate is chosen:

{tables.of_candidates(choice)}

`{choice.winner}` has the best mean over settings. The next table has its lead in points on the other seeds
({", ".join(map(str, choice.testing))}); `all` is the mean over settings, and intervals are over seeds only:

{tables.of_choice(choice)}

Over all settings `{choice.winner}` differs from RAM+ by {signed_text(total)} points, and from Task Arithmetic with a
scale chosen on validation prompts
by {signed_text(over_sum)}. {verdict} The next section tests `{smollm.CANDIDATE}` on other agents."""


def _real(results: Results) -> str:
    real = smollm.read(results)
    if real is None:
        return "## On the real agents\n\nNot measured yet: `python lab/real/compare.py`."
    parts = "\n\n".join(
        f"Agents and output in {dtype}{_fewer(real, dtype)}:\n\n{tables.of_real_merges(real, dtype, methods)}\n\n"
        f"{_below(real, dtype, methods)}".rstrip()
        for dtype, methods in real.merges.items()
    )
    return f"""## On the real agents

The rule for shared elements was chosen on tiny agents. This section tests it on agents of another kind: SmolLM2-135M,
trained with GRPO on one task each ([Real agents](results/real-agents.md)). {_which(real)} They were saved and merged
both in bfloat16 and in float32. All parameters are the defaults, so these scores did not influence any choice. Scores
are mean rewards in percent over held-out prompts, the same for all models: {_prompt_counts(real)}. Partly right replies
get part of the reward.

```sh
# for each seed; needs the agents that `make agents SEED=1` trains
python lab/real/compare.py --work .real --agents {" ".join(real.agents)} --prompts {real.prompt_count}
```

{tables.of_real_models(real)}

{parts}

{summary.on_real(real)}. {summary.confirmation(real)}
{summary.on_real(real, smollm.SUM, "the sum of the task vectors")}.

{summary.equal_on_real(real)}

{_how_often(real)}{_unscored(real)}

{_predictions(real)}{_serving(results, real)}"""


def _unscored(real: smollm.Real) -> str:
    """Merges that the next scoring adds, by the dtype of the output."""
    sentences = []
    for dtype, methods in real.merges.items():
        if names := [f"`{name}`" for name in smollm.asked_merges() if name not in methods]:
            sentences.append(f"Not scored yet in {dtype}: {', '.join(names)}.")
    return f"\n\n{' '.join(sentences)} The next run of `compare.py` adds them." if sentences else ""


def _like_for_like(real: smollm.Real, dtype: str, methods: Sequence[str]) -> str:
    """All merges on the trainings of the latest ones, where some were scored on fewer trainings than others."""
    names = [f"{method}, {dtype}" for method in methods]
    newest = real.having(min(names, key=lambda name: len(real.seeds_by_model[name])))
    if not tables.trainings(real, names) or dtype not in newest.merges:
        return ""
    seeds = f"seed{'s' * (len(newest.seeds) > 1)} {', '.join(map(str, newest.seeds))}"
    return f"""Rows with fewer trainings cover fewer agents, so do not compare their means. Compare their
differences from `ram+`, which are on the same trainings, or the means on the training of {seeds} only:

{tables.of_real_merges(newest, dtype, newest.merges[dtype])}"""


def _fewer(real: smollm.Real, dtype: str) -> str:
    """The trainings that were merged in a dtype, where there are more."""
    seeds = {
        seed for name, own_seeds in real.seeds_by_model.items() if name.endswith(f", {dtype}") for seed in own_seeds
    }
    return "" if seeds == set(real.seeds) else f" (trainings of seeds {', '.join(map(str, sorted(seeds)))})"


def _below(real: smollm.Real, dtype: str, methods: Sequence[str]) -> str:
    """Paragraphs under a table of merges."""
    return "\n\n".join(filter(None, (_at_the_top(real, dtype, methods), _like_for_like(real, dtype, methods))))


def _predictions(real: smollm.Real) -> str:
    """Predictions that were written before the new trainings were scored."""
    return f"""The next table compares [predictions](../lab/experiments/010-predictions-for-ties-and-core.md) with
measurements on the trainings after seed {predictions.SEEDS_BEFORE}. They were written before these trainings were
scored. A prediction failed if the difference is outside of the range.

{tables.of_predictions(real)}"""


def _serving(results: Results, real: smollm.Real) -> str:
    """The same models over an endpoint."""
    on_server = smollm.read(results, "served")
    if on_server is None or on_server.agents != real.agents or not set(on_server.seeds) <= set(real.seeds):
        return ""
    seeds = f"seed{'s' * (len(on_server.seeds) > 1)} {', '.join(map(str, on_server.seeds))}"
    return f"""

The same models were also scored over an endpoint, with vLLM on a CPU (trainings of {seeds}). Models and merges are in
bfloat16, and vLLM computes in bfloat16; `compare.py` above computes in float32:

```sh
python lab/real/compare.py --work .real --agents {" ".join(real.agents)} --prompts {real.prompt_count} --serve vllm
```

{tables.of_serving(real.of_seeds(on_server.seeds), on_server)}"""


def _prompt_counts(real: smollm.Real) -> str:
    """How many prompts of each task there are."""
    counts = ", ".join(f"{count} of `{task}`" for task, count in real.prompts.items())
    fewer = [f"`{task}`" for task, count in real.prompts.items() if count < real.prompt_count]
    return f"{counts} ({' and '.join(fewer)} have no more)" if fewer else counts


def _how_often(real: smollm.Real) -> str:
    """Scope of the real agents' intervals."""
    seeds = ", ".join(map(str, real.seeds))
    if len(real.seeds) == 1:
        return (
            f"There is one training of each agent (seed {seeds}). Intervals are over prompts only. They say how\n"
            "well these models can be told apart, and nothing about other trainings, other tasks or larger models."
        )
    return (
        f"Each agent was trained {real.trainings} (seeds {seeds}). Intervals are over trainings and prompts; with so\n"
        "few trainings they are too narrow. They say nothing about other tasks or larger models."
    )


def _at_the_top(real: smollm.Real, dtype: str, methods: Sequence[str]) -> str:
    """Tasks that all merges have learned, and that tell nothing apart."""
    least = np.min([real.by_task(f"{method}, {dtype}") for method in methods], axis=0)
    full = [f"`{task}`" for task, score in zip(real.agents, least, strict=True) if score >= 100 - MARGIN]
    return f"All these merges solve {' and '.join(full)}, which therefore does not distinguish them." if full else ""


def _which(real: smollm.Real) -> str:
    left = [agent["name"] for agent in tables.real_agents() if agent["name"] not in real.agents]
    text = f"The merged agents are {_enumeration(real.agents)}"
    return f"{text}; {_enumeration(left)} was not measured." if left else f"{text}."


def _enumeration(names: Sequence[str]) -> str:
    ticked = [f"`{name}`" for name in names]
    return " and ".join(filter(None, (", ".join(ticked[:-1]), ticked[-1])))


_LIMITS = """## What toys cannot show

- The agents are tiny, their tasks are short and separate, and their base was trained to have the skills. Large agents
  may interfere more, or less. The paper's agents have 7 billion parameters and act over many turns.
- Densities depend on optimizer, rates and rounding, which we chose, so they do not show how sparse RL is in practice.
- With few seeds, intervals over seeds are too narrow and p-values too small: with fewer than ten seeds, they are only
  descriptive.
- Methods have different numbers of parameters to choose. Those with a free scale have an advantage over those
  without.
- Some parts of the paper have no counterpart here: tables 4 and 5 (other pairs than that of setting `two`), and, from
  tables 7 to 9, metrics of code (unit tests, best of N), calls of several functions, and contexts of up to 896K
  tokens. All prompts of a task have one length, and an answer is right or wrong.
- SmolLM2-135M was trained with few seeds and is scored by rewards, so it is not part of the tables of tiny agents;
  [Real agents](results/real-agents.md) describes it."""
