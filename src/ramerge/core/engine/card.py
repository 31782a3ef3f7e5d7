"""The model card of a merged model: README.md with the front matter that the Hugging Face hub reads."""

from __future__ import annotations

import io
import re
from collections.abc import Collection

from ruamel.yaml import YAML

from ramerge.core.engine.columns import columns_of, figure_text, meanings
from ramerge.core.engine.record import Record
from ramerge.core.formats.sidecars import has_tokenizer
from ramerge.core.foundation.jsontext import dumped
from ramerge.core.foundation.text import markdown
from ramerge.core.planning.model import MergePlan
from ramerge.core.recipe.points import Point
from ramerge.core.storage.resolve import FoundModel

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?")


def model_card(
    plan: MergePlan,
    point: Point,
    record: Record,
    usage: str = "",
    folder: str | None = None,
    *,
    recipe: str = "ramerge.yaml",
    adapts: bool = False,
) -> str:
    """Return Markdown with YAML front matter (base models, tags, library), then method, inputs and statistics.

    Args:
        plan: the plan that was carried out.
        point: the plan's point that the card describes.
        record: the point's record.
        usage: text on how to use the folder; by default, code that loads it with transformers.
        folder: a placeholder for the model's folder if the user chooses it later; by default the output's name.
        recipe: the name of the recipe's file in the output.
        adapts: whether the output is an adapter for PEFT on the base, not a model.
    """
    front: dict[str, object] = {}
    if adapts or plan.method.combines or plan.inputs.base.hub_id:
        front["base_model"] = _hub_ids(plan.inputs.base) if adapts else _base_models(plan)
    if adapts or plan.method.combines:
        front["base_model_relation"] = "adapter" if adapts else "merge"
    method = plan.method.name.replace("+", "-plus").replace("_", "-")
    tags = ["merge", "model-merging", "ramerge", method] if plan.method.combines else ["ramerge"]
    stream = io.StringIO()
    YAML().dump({**front, "library_name": "peft" if adapts else "transformers", "tags": tags}, stream)
    inputs = ", ".join(f"{markdown(name)} {dtype}" for name, dtype in record.input_dtypes.items())
    name = literal = point.name or (plan.output.target.name if plan.output.target else "merged")
    if folder is not None:
        name, literal = "A merged model", folder
    literal = dumped(literal).strip()
    rounding = "" if record.rounding_seed is None else f", rounded stochastically with seed {record.rounding_seed}"
    warnings = "".join(f"\n> **Warning:** {markdown(' '.join(each.split()))}\n" for each in record.warnings)
    return f"""---
{stream.getvalue()}---

# {markdown(name)}

{_recipe_of_card(plan, record)}
Inputs: {inputs}. Output: {record.dtype}{rounding}.

{_table_of_agents(record) if plan.method.combines else ""}
{warnings}
{usage or _loading_code(literal, plan.companions)}
The recipe is in `{recipe}`, counts and sizes are in `ramerge.json`.

The licenses of the base and of all agents apply to these weights.
"""


def _loading_code(literal: str, companions: Collection[str]) -> str:
    if "config.json" not in companions:
        return ""
    has = has_tokenizer(companions)
    tokenizer = f"\ntokenizer = AutoTokenizer.from_pretrained({literal})" if has else ""
    return f"""```python
from transformers import AutoModelForCausalLM{", AutoTokenizer" if has else ""}

model = AutoModelForCausalLM.from_pretrained({literal}){tokenizer}
```
"""


def _recipe_of_card(plan: MergePlan, record: Record) -> str:
    if not plan.method.combines:
        return (
            f"Written with ramerge {record.ramerge_version} from {markdown(_base_models(plan)[0])}; nothing was merged."
        )
    parameters = markdown(", ".join(f"{name} = {value}" for name, value in record.parameters.items()))
    return (
        f"Merged with ramerge {record.ramerge_version} by **{plan.method.name}**\n"
        f"({plan.method.title}: {plan.method.formula}; {plan.method.source}), {parameters}."
    )


def _table_of_agents(record: Record) -> str:
    columns = columns_of(record)
    rows = [["agent", *[column.title for column in columns]], ["---"] * (1 + len(columns))]
    agents = record.agents.values()
    rows += [[markdown(agent.name), *[figure_text(agent, column) for column in columns]] for agent in agents]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    explanations = meanings(columns, record)
    return "\n".join([*lines, "", *[f"- {line}" for line in explanations]] if explanations else lines)


def _base_models(plan: MergePlan) -> list[str]:
    return _hub_ids(plan.inputs.base, *plan.inputs.agents.values())


def _hub_ids(*models: FoundModel) -> list[str]:
    """Return ids that the hub accepts. A local folder gets the id it was downloaded from, or its own name."""
    ids = []
    for model in (part for model_part in models for part in model_part.parts):
        candidate = model.hub_id or model.folder.resolve().name
        if _HUB_ID.fullmatch(candidate) and "--" not in candidate and ".." not in candidate:
            ids.append(candidate)
    return list(dict.fromkeys(ids)) or ["base"]
