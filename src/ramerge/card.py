"""The model card of a merged model: README.md with the front matter that the Hugging Face hub reads."""

from __future__ import annotations

import io
import re
from typing import Any

from ruamel.yaml import YAML

from ramerge.planning.model import Plan
from ramerge.record import AgentStatistics, Record

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?")


def model_card(plan: Plan, record: Record) -> str:
    """Markdown with YAML front matter: base models, tags, library, and what was merged with which statistics."""
    front: dict[str, Any] = {
        "base_model": _base_models(plan),
        "base_model_relation": "merge",
        "library_name": "transformers",
        "tags": ["merge", "model-merging", "ramerge", plan.method.name.replace("+", "-plus")],
    }
    stream = io.StringIO()
    yaml = YAML()
    yaml.dump(front, stream)
    parameters = ", ".join(f"{name} = {value}" for name, value in record.parameters.items())
    rows = "\n".join(
        f"| {_cell(agent.name)} | {agent.density:.2%} | {agent.unique_share:.2%} | {agent.rho:.4g} | {_scale(agent)} |"
        for agent in record.statistics
    )
    name = plan.out.name if plan.out else "merged"
    return f"""---
{stream.getvalue()}---

# {name}

Merged with ramerge {record.ramerge_version} by **{plan.method.name}**
({plan.method.title}: {plan.method.formula}; {plan.method.source}), {parameters}.

| agent | density | unique | rho | lambda |
|---|---|---|---|---|
{rows}

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
```

Density: share of parameters that training moved. Unique: share of these that no other agent moved.
The recipe is in `ramerge.yaml`, counts and sizes are in `ramerge.json`.
"""


def _base_models(plan: Plan) -> list[str]:
    """Ids that the hub accepts. A folder on disk stands under the id it was downloaded from, or its own name."""
    ids = []
    for model in (plan.base, *plan.agents.values()):
        candidate = model.hub_id or model.folder.resolve().name
        if _HUB_ID.fullmatch(candidate) and "--" not in candidate and ".." not in candidate:
            ids.append(candidate)
    return list(dict.fromkeys(ids)) or ["base"]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _scale(agent: AgentStatistics) -> str:
    return "one for each part" if agent.lambda_ is None else f"{agent.lambda_:.4f}"
