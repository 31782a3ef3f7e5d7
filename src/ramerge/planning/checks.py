"""What else would make a merge fail: quantised inputs, configurations that differ, the output's place and disk."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ramerge.checkpoint.companions import canonical_key, companion_files, compare_configs, quantisation
from ramerge.checkpoint.dtypes import INTEGERS
from ramerge.checkpoint.index import SAFETENSORS_INDEX, Checkpoint
from ramerge.checkpoint.stage import conflict
from ramerge.foundation.errors import CheckpointError
from ramerge.foundation.text import brief, one_line
from ramerge.planning.findings import Findings
from ramerge.planning.model import Plan, Tie
from ramerge.recipe.model import Recipe

_PACKED = re.compile(r"\.(qweight|qzeros|g_idx|absmax|quant_map|weight_packed|SCB)$")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_MOST_SHARDS = 10_000
_ADVICE = "merge the unquantised checkpoints and quantise the result"


def check_arithmetic(name: str, checkpoint: Checkpoint, recipe: Recipe, findings: Findings) -> None:
    """Refuse quantised weights, and dtypes that merging has no arithmetic for."""
    folder = checkpoint.directory
    packed = sorted({found[1] for key in checkpoint.tensors if (found := _PACKED.search(key))})
    declared = quantisation(checkpoint.config)
    if (declared or packed) and "quantization_config" not in recipe.allow.config:
        what = declared or f"tensors named {', '.join(packed)}"
        findings.problem(f"{folder}: quantised weights ({what}) cannot be merged; {_ADVICE}", name)
    dtypes = Counter(tensor.dtype for tensor in checkpoint.tensors.values())
    for dtype in sorted(dtypes):
        if dtype not in INTEGERS and not dtype.startswith(("BF16", "F16", "F32", "F64")):
            kind = "float8, whose scales merging would ignore" if dtype.startswith("F8") else "not a type of weights"
            text = f"{folder}: {dtypes[dtype]} tensors of dtype {dtype} ({kind}); convert to bfloat16, or {_ADVICE}"
            findings.problem(text, name)


def check_configs(
    base: Checkpoint, agents: Mapping[str, Checkpoint], ties: Sequence[Tie], recipe: Recipe, findings: Findings
) -> None:
    """Refuse differences between configurations that change what the weights mean; show the others."""
    if not base.config:
        findings.notes.append(f"{base.directory}: has no config.json, so the output will not load by itself")
        return
    for name, agent in agents.items():
        if not agent.config:
            findings.notes.append(f"{name}: has no config.json to compare with the base's")
            continue
        serious, harmless = compare_configs(base.config, agent.config)
        given = [canonical_key(key) for key in recipe.allow.config]
        allowed = {key for key in serious if any(f"{key}.".startswith(f"{start}.") for start in given)}
        refused = {key: text for key, text in serious.items() if key not in allowed}
        if refused:
            accept = f"allow.config: [{', '.join(refused)}] accepts it"
            if tie := next((tie for tie in ties if tie.agent == name and _has_tie(refused)), None):
                accept += f" if {tie.head.name!r} equals {tie.embedding.name!r}; if not, {tie.untie}"
            text = f"config.json differs from the base's in what the weights mean: {_pairs(refused)} ({accept})"
            findings.problem(f"{agent.directory}/{text}", name)
        accepted = harmless | {key: serious[key] for key in allowed}
        if accepted:
            findings.notes.append(f"{name}: config.json differs, which is accepted: {_pairs(accepted)}")


def _has_tie(keys: Iterable[str]) -> bool:
    return any(key.endswith("tie_word_embeddings") for key in keys)


def _pairs(differences: Mapping[str, str]) -> str:
    return "; ".join(f"{brief(one_line(key), 200)}: {text}" for key, text in differences.items())


def check_rules(plan: Plan, findings: Findings) -> None:
    """Refuse rules that catch no tensor; show what the others caught."""
    for number, (rule, count) in enumerate(zip(plan.recipe.rules, plan.caught, strict=True), 1):
        if count:
            findings.notes.append(f"rule {number} ({rule}) catches {count:,} tensor{'s' if count > 1 else ''}")
            continue
        earlier = any(rule.catches(tensor.name) for tensor in plan.tensors)
        text = "earlier rules catch all of them" if earlier else f"{plan.base.place} has no such tensor"
        problem = findings.document.where(("rules", str(number - 1)), f"{rule}: catches nothing: {text}")
        findings.problems.append(problem)
    if plan.recipe.rules and plan.tensors and not any(tensor.merged for tensor in plan.tensors):
        findings.notes.append("the rules leave nothing to merge")


def note_one_agent(plan: Plan, findings: Findings) -> None:
    """Say what is unusual about a merge of one agent."""
    if len(plan.agents) == 1:
        findings.notes.append(f"{next(iter(plan.agents))} is the only agent: {plan.method.alone}")


def check_layers(base: Checkpoint, findings: Findings) -> None:
    """Refuse slices that are not of all layers of the base."""
    asked = findings.document.layers
    if asked is None:
        return
    configs = [base.config, *(part for part in base.config.values() if isinstance(part, Mapping))]
    stated = {config[key] for config in configs for key in _LAYERS if isinstance(config.get(key), int)}
    if asked not in stated:
        known = f"the base has {', '.join(map(str, sorted(stated)))}" if stated else "config.json states no number"
        text = f"take layers 0 to {asked}, and {known}; only whole models can be merged"
        findings.problems.append(findings.document.where(("slices",), text))


def check_shards(plan: Plan, findings: Findings) -> None:
    """Refuse a size of shards that no file system is meant for, such as bytes where gigabytes were."""
    size, total = plan.recipe.shard_size, sum(tensor.bytes_written for tensor in plan.tensors)
    if size is not None and total > _MOST_SHARDS * size:
        text = f"{size:,} bytes a shard are too few for {total:,} bytes of weights; give a size such as 5GB"
        findings.problems.append(findings.document.where(("shard_size",), text))


def companions(plan: Plan, findings: Findings) -> dict[str, Path]:
    """Relative name to source of the files to copy."""
    chosen = plan.recipe.companions
    source = plan.agents[chosen].folder if chosen and chosen in plan.agents else None
    ours = {*(shard.name for shard in plan.shards), SAFETENSORS_INDEX, "README.md", "ramerge.json", "ramerge.yaml"}
    for name in sorted(ours):
        if (plan.base.folder / name).is_dir():
            findings.problem(f"{plan.base.folder / name}: is a folder, where the output has a file of that name")
    try:
        return companion_files(plan.base.folder, source, allow_outside_links=plan.recipe.allow.outside_links)
    except CheckpointError as error:
        for text in error.problems:
            findings.problem(text)
        return {}


def check_out(plan: Plan, findings: Findings) -> int:
    """Refuse an output that would touch an input or something else of the user's; the bytes free on its disk."""
    out = plan.out
    assert out is not None
    place = out.resolve()
    inputs = [model.directory for model in (plan.base, *plan.agents.values()) if model.directory is not None]
    if (text := conflict(out, inputs, overwrite=plan.overwrite)) is not None:
        findings.problem(f"{out}: {text}")
    ancestor = next(folder for folder in (place.parent, *place.parent.parents) if folder.exists())
    if not ancestor.is_dir():
        findings.problem(f"{out}: {ancestor} is a file")
    elif not os.access(ancestor, os.W_OK | os.X_OK):
        findings.problem(f"{out}: no right to write in {ancestor}")
    free = shutil.disk_usage(ancestor).free
    if plan.bytes_written > free:
        findings.problem(f"{out}: needs {plan.bytes_written:,} bytes of disk, {free:,} are free")
    return free
