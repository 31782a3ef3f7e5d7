"""Further checks of a plan: configurations, rules, layers, shard sizes, and files to copy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from ramerge.core.formats.encodings.decode import OF_MODELOPT
from ramerge.core.formats.format import ADAPTER
from ramerge.core.formats.recorded import name_of
from ramerge.core.formats.safetensors import index_of
from ramerge.core.formats.sidecars import (
    companion_files,
    has_tokenizer,
    is_weights,
    left_out,
    modules_with_weights,
    named_files,
    processor_files,
)
from ramerge.core.foundation.dtypes import FROM_FULL_NAME, full_name, widest
from ramerge.core.foundation.errors import CheckpointError, readable
from ramerge.core.foundation.text import brief, brief_list, enumerated, one_line, quantity, quoted
from ramerge.core.methods.base import conditions
from ramerge.core.methods.matrices import is_matrix
from ramerge.core.methods.moved import WHERE_TO_BEGIN
from ramerge.core.output.write import Shard
from ramerge.core.planning.configs import are_related, compare_configs, contradictions, is_accepted_by
from ramerge.core.planning.findings import PlanFinding, note, problem, problems_of, warning
from ramerge.core.planning.inputs import OpenedInputs
from ramerge.core.planning.layout import is_statistic, unlike_base
from ramerge.core.planning.model import (
    TensorPlan,
    Tie,
    dtype_by_rules,
    elements_by_dtype,
    matches_of_rules,
    most_common,
    rules_with_dtype,
)
from ramerge.core.planning.owners import BASE
from ramerge.core.planning.tokens import TokenReader
from ramerge.core.planning.vocabulary import is_vocabulary
from ramerge.core.recipe.document import Key
from ramerge.core.recipe.globs import catches_any
from ramerge.core.recipe.layers import COUNTS, counts_of, layer_of
from ramerge.core.recipe.model import LIKE_BASE, Recipe
from ramerge.core.recipe.points import Point
from ramerge.core.storage.location import Location
from ramerge.core.tensors.access import access
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.embeddings import HEADS, tied_embedding
from ramerge.core.tensors.paths import climbs_out, is_too_long
from ramerge.core.tensors.rounded import Rounding
from ramerge.core.tensors.weighted import is_quantized

_MOST_SHARDS = 10_000
# Names of transformers classes that classify or write text, and names of tensors of heads.
_CLASSIFIES = re.compile(r"For(?:Sequence|Token)Classification$")
_TEXT_ARCHITECTURES = re.compile(r"(?:ForCausalLM|LMHeadModel)$")
_CLASSIFIER = re.compile(r"(?:score|classifier|classification_head)\.(?:\w+\.)*weight")
_NAMED_HEAD = re.compile(r"score|classif|head|regression|reward", re.IGNORECASE)
_COMPARED_BYTES = 16_000_000
# At most this many rules get a note each; a gradient over layers makes more rules.
_MOST_RULES = 3
# Files next to config.json in which ModelOpt, AutoGPTQ and AutoAWQ declare quantized weights.
_OF_QUANTIZATION = (OF_MODELOPT, "quantize_config.json", "quant_config.json")
_ADAPTERS = 'docs/methods/spectral.md, "Adapters"'


def check_configs(
    base: Checkpoint, agents: Mapping[str, Checkpoint], ties: Sequence[Tie], recipe: Recipe
) -> Iterator[PlanFinding]:
    """Refuse differences between configurations that change what the weights mean, and warn of other differences."""
    if not base.config:
        yield note(f"{base.directory}: has no config.json; add one to the output before you load it")
        return
    if misfits := contradictions(base):
        text = f"config.json does not fit the weights, and the output gets it: {'; '.join(misfits)}; correct it"
        yield warning(f"{base.metadata_folder}: {text}", None if recipe.base is None else BASE)
    for name, agent in agents.items():
        if not agent.config:
            yield note(f"{name}: has no config.json to compare with the base's")
            continue
        comparison = compare_configs(base.config, agent.config)
        differing = comparison.refusals | comparison.warnings
        allowances = {key for key in differing if any(is_accepted_by(pattern, key) for pattern in recipe.allow.config)}
        stores_heads = any(key.endswith(HEADS) for key in agent.tensors)
        # the difference is harmless: two embeddings are compared, or one is used for both
        if any(tie.agent == name for tie in ties) or (tied_embedding(agent) is not None and not stores_heads):
            allowances |= {key for key in differing if key.rpartition(".")[2] == "tie_word_embeddings"}
        if recipe.allow.vocabulary is not None or recipe.allow.different_shapes:
            allowances |= {key for key in differing if key.rpartition(".")[2] == "vocab_size"}
        refusals = {key: text for key, text in comparison.refusals.items() if key not in allowances}
        warnings = {key: text for key, text in comparison.warnings.items() if key not in allowances}
        if refusals:
            text = f"{_config_of(agent)} does not fit the base's: {_listed_differences(refusals)}"
            accept = f"allow.config: [{', '.join(refusals)}] accepts it"
            if all(key.rpartition(".")[2] == "vocab_size" for key in refusals) and _has_other_rows(base, agent):
                accept = "accepting the other shapes accepts this too"
            yield problem(f"{text} ({accept})", name)
        if warnings:
            text = f"{_config_of(agent)} differs from the base's, which may change what the weights mean"
            accept = f"the output gets the base's; allow.config: [{', '.join(warnings)}] accepts it"
            yield warning(f"{text}: {_listed_differences(warnings)} ({accept})", name)
        acceptances = comparison.harmless | {key: differing[key] for key in sorted(allowances)}
        if acceptances:
            yield note(f"{name}: config.json differs, which is accepted: {_listed_differences(acceptances)}")
        if any(key.rpartition(".")[2] in COUNTS for key in allowances):
            yield from _depth_warnings(name, base, agent)


def _depth_warnings(name: str, base: Checkpoint, agent: Checkpoint) -> Iterator[PlanFinding]:
    """Warn of layers that only an agent has, or only the base, in a stack that both have."""
    ours, theirs = ({layer for key in each.tensors if (layer := layer_of(key))} for each in (base, agent))
    stacks = {layer.stack for layer in ours} & {layer.stack for layer in theirs}
    for only, text in (
        (
            theirs - ours,
            "it has {} in addition: cut off in the output, although its other layers were trained with that",
        ),
        (ours - theirs, "it lacks {}: taken from the base, although its other layers were trained without that"),
    ):
        if layers := {layer for layer in only if layer.stack in stacks}:
            names = brief_list([str(layer) for layer in sorted(layers)])
            yield warning(f"another depth than the base's: {text.format(names)}; such a merge rarely works", name)


def _config_of(agent: Checkpoint) -> str:
    """The path of a model's config.json, for messages; for an adapter that changes its base's, the adapter."""
    if agent.vocabulary is not None or (agent.untied and agent.format == ADAPTER):
        return f"{agent.directory}: config.json, with what this model changes,"
    own = (agent.companions or {}).get("config.json")  # a delta may have one
    return f"{agent.metadata_folder / 'config.json' if own is None else own}"


def _has_other_rows(base: Checkpoint, agent: Checkpoint) -> bool:
    """Whether an embedding has another number of rows in the agent than in the base."""
    pairs = ((tensor, agent.tensors.get(name)) for name, tensor in base.tensors.items())
    return any(other is not None and is_vocabulary(tensor, other) for tensor, other in pairs)


def refuse_other_architectures(inputs: OpenedInputs, recipe: Recipe) -> tuple[OpenedInputs, list[PlanFinding]]:
    """Remove agents of another architecture from the inputs, so that they only get this one message."""
    base = inputs.opened_base
    if base is None or "model_type" in recipe.allow.config:
        return inputs, []
    relatives = {name: a for name, a in inputs.opened_agents.items() if are_related(base.config, a.config)}
    return replace(inputs, opened_agents=relatives), [
        problem(
            f"{agent.metadata_folder}: is of another architecture: the agent is {_architecture(agent)}, the base "
            f"{_architecture(base)}; give an agent that was trained from this base, or this agent's base "
            "(allow.config: [architectures, model_type] compares the tensors nevertheless)",
            name,
        )
        for name, agent in inputs.opened_agents.items()
        if name not in relatives
    ]


def _architecture(checkpoint: Checkpoint) -> str:
    kind, classes = (checkpoint.config.get(key) for key in ("model_type", "architectures"))
    architecture = classes[0] if isinstance(classes, list) and classes else kind
    return brief(one_line(str(architecture) if architecture == kind else f"{architecture} ({kind})"), 200)


def _listed_differences(differences: Mapping[str, str]) -> str:
    return "; ".join(f"{brief(one_line(key), 200)}: {text}" for key, text in differences.items())


def note_companions(
    inputs: OpenedInputs, recipe: Recipe, owner: str | None, reader: TokenReader
) -> Iterator[PlanFinding]:
    """Note agents whose chat template, tokenizer or end tokens differ from the output's; nothing if the recipe chooses
    whose files the output gets.
    """
    base, agents = inputs.opened_base, inputs.opened_agents
    if base is None or recipe.companions is not None:
        return
    whose = owner or ("the base" if recipe.base is not None else next(iter(agents)))
    source = agents[owner] if owner else base
    try:
        for name, agent in agents.items():
            if agent is not source:
                for text, what in _other_companions(reader, source, agent, whose):
                    yield note(f"{name}: {text}; companions: {name} takes {what} of {name}")
    except CheckpointError as error:
        yield from map(note, error.messages)


def _other_companions(
    reader: TokenReader, source: Checkpoint, agent: Checkpoint, whose: str
) -> Iterator[tuple[str, str]]:
    """Yield the agent's differences as texts, each with the files that `companions` would take from it."""
    # a damaged file cannot be compared: `warn_of_damaged_files` reports it
    ours, own = reader.template_of(source), reader.template_of(agent)
    readable = not reader.damages(source, "chat template") and not reader.damages(agent, "chat template")
    if readable and own not in (None, ours):
        template_effect = "the output gets none" if ours is None else f"the output gets that of {whose}"
        yield f"has {'a' if ours is None else 'another'} chat template, and {template_effect}", "tokenizer and template"
    digests = reader.digest_of(source), reader.digest_of(agent)
    if None not in digests and digests[0] != digests[1]:
        split, other = reader.tokenization_settings(source), reader.tokenization_settings(agent)
        if kinds := [kind for kind in split if kind in other and split[kind] != other[kind]]:
            text = (
                f"its tokenizer splits text in another way ({enumerated(kinds)}), and the output gets that of {whose}"
            )
            yield text, "tokenizer and template"
    if reader.has_generation(agent) and not reader.has_generation(source):
        yield "has a generation_config.json, and the output gets none", "generation config and tokenizer"
    ends, others = reader.stops_of(source), reader.stops_of(agent)
    if ends and others and ends != others:
        text = (
            f"generation_config.json ends answers at eos_token_id {_format_tokens(others)}, and the output gets that "
        )
        yield f"{text}of {whose}, which ends them at {_format_tokens(ends)}", "generation config and tokenizer"


def _format_tokens(tokens: Iterable[int]) -> str:
    return brief_list([str(token) for token in sorted(tokens)])


def check_heads(base: Checkpoint) -> Iterator[PlanFinding]:
    """Warn if the class in `architectures` needs a head that the model lacks, or does not use the head that it has."""
    architectures = base.config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    for name in (name for name in names[:1] if isinstance(name, str)):
        heads = [tensor for tensor in base.tensors if _CLASSIFIER.fullmatch(tensor)]
        if _CLASSIFIES.search(name) and not heads and not any(map(_NAMED_HEAD.search, base.tensors)):
            text = f"names {brief(one_line(name), 200)}, and the model has no head of this class, which would be random"
        elif _TEXT_ARCHITECTURES.search(name) and heads:
            text = f"names {brief(one_line(name), 200)}, which has no {quoted(heads[0])} and would leave it out"
        else:
            continue
        yield warning(f"{base.metadata_folder / 'config.json'}: architectures {text}; correct it in the output")


def check_named_files(inputs: OpenedInputs, companions: Mapping[str, Location]) -> Iterator[PlanFinding]:
    """Warn of files that the output lacks although its JSON files name them, and of agents with other statistics."""
    files_by_name = named_files(companions)
    for name, files in files_by_name.items():
        if absent := [file for file in files if PurePosixPath(file).as_posix() not in companions]:
            owners = [agent for agent, model in inputs.opened_agents.items() if _has_all(model, absent)]
            advice = f", but not from that of {owners[0]}" if owners else ""
            yield warning(
                f"{companions[name]}: needs {brief_list(list(map(quoted, absent)))}, missing from this "
                f"folder{advice}; copy "
                "what is missing into the output, which cannot be loaded without it"
            )
    for agent, model in inputs.opened_agents.items():
        own = processor_files(model.metadata_folder)
        states = named_files(own)
        for name in files_by_name.keys() & states.keys():
            pairs = [(ours, theirs) for ours, theirs in zip(files_by_name[name], states[name], strict=False)]
            others = [
                theirs
                for ours, theirs in pairs
                if _has_different_file(companions.get(ours), model.metadata_folder, theirs)
            ]
            if others:
                yield warning(
                    f"{model.metadata_folder / others[0]}: holds other statistics than the base, whose file the output "
                    "gets: they scale inputs and outputs, and are not merged; copy this file into the output if it is "
                    "for this agent's data",
                    agent,
                )
        files = [file for several in states.values() for file in several]
        lacking = [name for name in (*own, *files) if name not in companions and _has_all(model, [name])]
        if lacking and not files_by_name.keys() & states.keys():
            names = brief_list(list(map(quoted, lacking)))
            yield note(f"{agent}: has {names}, which the output does not get; copy what it needs into the output")


def _has_all(model: Checkpoint, files: Iterable[str]) -> bool:
    folder = model.metadata_folder
    return all(
        not climbs_out(file)
        and not is_too_long(file)
        and (folder / file).is_file()
        and not access(folder / file).leads_outside(folder)
        for file in files
    )


def _has_different_file(path: Location | None, folder: Location, file: str) -> bool:
    """Whether an agent's `file` exists and differs from the file `path`; only the first `_COMPARED_BYTES` are read."""
    if path is None or climbs_out(file) or is_too_long(file) or not (folder / file).is_file():
        return False
    other = folder / file
    if access(other).leads_outside(folder) or path.resolve() == other.resolve():
        return False
    if path.stat().st_size != other.stat().st_size:
        return True
    with readable(path), path.open("rb") as left, readable(other), other.open("rb") as right:
        return left.read(_COMPARED_BYTES) != right.read(_COMPARED_BYTES)


def note_tokenizer(companions: Iterable[str], inputs: OpenedInputs) -> Iterator[PlanFinding]:
    """Note if the output has no tokenizer, and which agent has one."""
    if has_tokenizer(companions):
        return
    reader = TokenReader()
    owners = [name for name, agent in inputs.opened_agents.items() if reader.has_tokenizer(agent)]
    advice = f"companions: {owners[0]} takes that of {owners[0]}" if owners else "add one before you use the output"
    yield note(f"the base has no tokenizer files, so the output has none; {advice}")


def check_rules(recipe: Recipe, tensors: Sequence[TensorPlan], base: Location) -> Iterator[PlanFinding]:
    """Refuse rules that match no tensor, and note how many tensors the other rules match."""
    counts, names = matches_of_rules(recipe, tensors), [tensor.name for tensor in tensors]
    each = brief_list([f"{rule}: {count:,}" for rule, count in zip(recipe.rules, counts, strict=True)])
    origin = recipe.document.rules_from
    if origin and counts:
        yield note(f"{origin} set parameters of {quantity(sum(counts), 'tensor')} ({each})")
    elif len(counts) > _MOST_RULES:
        yield note(f"{len(counts)} rules catch {quantity(sum(counts), 'tensor')} ({each})")
    for number, (rule, count) in enumerate(zip(recipe.rules, counts, strict=True), 1):
        if count:
            if len(counts) <= _MOST_RULES and not origin:
                yield note(f"rule {number} ({rule}) catches {count:,} tensor{'s' if count > 1 else ''}")
            continue
        text = "earlier rules catch all of its tensors" if catches_any(rule, names) else f"{base} has no such tensor"
        yield problem(f"matches no tensor: {rule}: {text}", ("rules", str(number - 1)))
    if recipe.rules and tensors and not any(tensor.merged for tensor in tensors):
        yield note("the rules leave nothing to merge")


def note_methods(points: Sequence[Point]) -> list[PlanFinding]:
    """Note methods that give different results in mergekit with the same parameters."""
    methods = [point.method for point in points if any(point.method.noted(values) for values in point.parameters)]
    return [note(text) for text in dict.fromkeys(f"{method.name}: mergekit's {method.differs}" for method in methods)]


def warn_of_stacks(points: Sequence[Point], tensors: Sequence[TensorPlan], base: Checkpoint) -> Iterator[PlanFinding]:
    """Warn of matrices stacked in three-dimensional tensors that a method should solve for, but cannot."""
    left = [tensor.base for tensor in tensors if tensor.merged and _has_unsolved_stack(points, tensor)]
    if not left:
        return
    share = sum(tensor.elements for tensor in left) / sum(tensor.elements for tensor in base.tensors.values())
    why = (
        "the output is quantized like the base; give another dtype"
        if any(base.orientation.stacks.get(tensor.name) is not None for tensor in left)
        else "neither names nor shapes tell which side meets the inputs; store matrices as tensors of their own"
    )
    yield warning(
        f"{points[0].method.name} does not solve for the matrices that {quoted(left[0].name)} and other tensors stack, "
        f"{share:.0%} of the parameters, and merges them as what is no matrix: {why}"
    )


def _has_unsolved_stack(points: Sequence[Point], tensor: TensorPlan) -> bool:
    """Whether a method would solve for the matrices stacked in a tensor only if they were separate tensors."""
    layer = tensor.layer
    if len(layer.shape) != 3:
        return False
    part = replace(layer, name=name_of(layer.name, 0), shape=layer.shape[1:])
    merges = [(point.method, point.parameters[tensor.rule]) for point in points]
    return any(
        is_matrix(part)
        and method.solves(part, values)
        and not (method.is_transposable and method.solves(layer, values))  # such a method splits stacks itself
        for method, values in merges
    )


def warn_of_idle(points: Sequence[Point]) -> Iterator[PlanFinding]:
    """Warn of parameters in the recipe that have no effect at any point, for any tensor."""
    recipe = points[0].recipe
    merging = {number: rule.parameters or {} for number, rule in enumerate(recipe.rules, 1) if rule.merges}
    # for each parameter, the rules that use its value; 0 stands for all tensors without a rule
    keys: dict[Key, list[int]] = {
        ("parameters", name): [0, *(number for number, own in merging.items() if name not in own)]
        for name in recipe.parameters
    }
    keys |= {
        ("rules", str(number - 1), "parameters", name): [number] for number, own in merging.items() for name in own
    }
    for key, rules in keys.items():
        first, name = points[0].parameters[rules[0]], key[-1]
        requirements = conditions(type(first), name)
        if not requirements or any(name in point.parameters[rule].in_effect() for point in points for rule in rules):
            continue
        now, then = (
            ", ".join(f"{other}: {value}" for other, value in values.items())
            for values in ({other: getattr(first, other) for other in requirements}, requirements)
        )
        yield warning(f"has no effect with {now}; only {then} uses it", key)


def note_one_agent(point: Point) -> Iterator[PlanFinding]:
    """Note the effect of merging a single agent."""
    if len(point.recipe.agents) == 1 and point.method.combines:
        yield note(f"{next(iter(point.recipe.agents))} is the only agent: {point.method.alone}")


def note_ignored_agents(points: Sequence[Point]) -> Iterator[PlanFinding]:
    """Note that a method takes only the first agent and ignores the others, if the recipe does not choose an agent."""
    first, *others = points[0].recipe.agents
    if others and not points[0].method.combines and not points[0].parameters[0].in_effect().get("agent"):
        yield note(
            f"{points[0].method.name} takes one agent: {first}; it leaves out {brief_list(others)} (parameters.agent "
            "names another)"
        )


def note_unchecked(point: Point) -> Iterator[PlanFinding]:
    """Note settings of `allow` that have no effect, because the method does not compare agents with the base."""
    allow = point.recipe.allow
    for key, value in (("swapped_base", allow.swapped_base), ("other_base", allow.other_base)):
        if value and not point.uses_base:
            yield note(f"allow.{key} has no effect: {point.method.name} does not compare agents with the base")


def note_rounding(recipe: Recipe, tensors: Sequence[TensorPlan]) -> Iterator[PlanFinding]:
    """Note the effect of `rounding: stochastic`."""
    if recipe.seed is None:
        return
    if not any(tensor.rounds_updates for tensor in tensors):
        yield note("rounding: stochastic changes nothing here: the output's dtypes hold all that is computed")
        return
    yield note(
        f"rounding: stochastic, seed {recipe.seed}: a draw decides to which of its two neighbors in the output's "
        "dtype a result is rounded, so that updates are kept on average; what the merge does not change stays as it is"
    )


def note_adapters(points: Sequence[Point], inputs: OpenedInputs) -> Iterator[PlanFinding]:
    """Note that adapters make dense updates, if the method is made for sparse updates."""
    if len(inputs.adapters) > 1 and any(point.method.for_sparse for point in points):
        yield note(
            f"{', '.join(inputs.adapters)} are LoRA adapters: they move nearly every element of the matrices that they "
            "change, while RAM is made for the sparse updates of full training with RL (section 3.2 of its paper). "
            "Where several meet, nearly everything is shared and averaged, rho is large (equation 2), and lambda "
            "stands at its limit (equation 6); `ramerge analyze` measures it"
        )


def suit_adapters(points: Sequence[Point], inputs: OpenedInputs) -> tuple[tuple[Point, ...], list[PlanFinding]]:
    """Use the defaults for LoRA adapters if there are several adapters, and warn of parameters that harm them."""
    if len(inputs.adapters) < 2:
        return tuple(points), []
    points_for_adapters = tuple(point.for_adapters for point in points)
    ranks = [str(rank) for rank in sorted(set(inputs.ranks.values()))]
    are = f"{enumerated(inputs.adapters)} are LoRA adapters{' of rank ' if ranks else ''}{enumerated(ranks)}"
    notes, warnings = [], []
    for point, original in zip(points_for_adapters, points, strict=True):
        for now, before in zip(point.parameters, original.parameters, strict=True):
            changes = {name: value for name, value in now.in_effect().items() if value != getattr(before, name)}
            notes += [
                f"{are}, so {point.method.name} takes {name}: {value} as its default, not {getattr(before, name)} "
                f"({_ADAPTERS})"
                for name, value in changes.items()
            ]
            if harm := point.method.harms_adapters(now):
                warnings.append(warning(f"{are}, and {point.method.name} {harm} ({_ADAPTERS}). {WHERE_TO_BEGIN}"))
    return points_for_adapters, [*warnings, *map(note, dict.fromkeys(notes))]


def check_layers(base: Checkpoint, recipe: Recipe) -> Iterator[PlanFinding]:
    """Refuse slices that do not contain all layers of the base."""
    layers = recipe.document.layers
    if layers is None:
        return
    counts = counts_of(base.config)
    if layers not in counts:
        fact = f"the base has {', '.join(map(str, sorted(counts)))}" if counts else "config.json states no number"
        yield problem(f"take layers 0 to {layers}, but {fact}; only whole models can be merged", ("slices",))


def check_shards(recipe: Recipe, tensors: Sequence[TensorPlan]) -> Iterator[PlanFinding]:
    """Refuse a shard size that would make too many files, for example 5 bytes instead of 5 gigabytes."""
    size, total = recipe.shard_size, sum(tensor.bytes_written for tensor in tensors)
    if size is not None and total > _MOST_SHARDS * size:
        text = f"{size:,} bytes per shard are too few for {total:,} bytes of weights; give a size such as 5GB"
        yield problem(text, ("shard_size",))


def check_like_base(base: Checkpoint, recipe: Recipe, *, only_counts: bool) -> Iterator[PlanFinding]:
    """Refuse to quantize like the base if that is not possible; otherwise note how the output is quantized."""
    if recipe.dtype != LIKE_BASE or base.quantized is None:
        return
    for number, rule in enumerate(recipe.rules):
        if rule.dtype is not None:
            text = f"{rule}: tensors that are quantized like the base cannot have a dtype of their own; leave one out"
            yield problem(text, ("rules", str(number), "dtype"))
    if recipe.seed is not None:
        text = (
            "stochastic does not go with dtype: like base: codes are rounded in steps that depend on the largest "
            "number of their block, and only rounding them to nearest is defined; write another dtype, or "
            "rounding: nearest"
        )
        yield problem(text, ("rounding",))
    others = unlike_base(base, only_counts=only_counts)
    if changed_tensors := [repr(tensor.name) for tensor in others if not tensor.encoding]:
        text = (
            f"like base: an adapter changes {brief_list(changed_tensors)}, so the base's codes and scales no longer "
            f"fit; write {full_name(base.quantized.dtype)}, and quantize the result with the base's own tool"
        )
        yield problem(text, ("dtype",))
    elif others:
        names = brief_list([repr(tensor.name) for tensor in others])
        text = (
            f"like base: cannot quantize {names} to {full_name(others[0].encoding)}: only float8 has a rule for scales "
            "that all tools share; write bfloat16, and quantize the result with the base's own tool (ramerge analyze "
            "with dtype: like base counts what would survive)"
        )
        yield problem(text, ("dtype",))
    else:
        yield note(
            "the output is quantized like the base: blocks that the merge does not change keep the base's codes and "
            "scales, and other blocks get scales of their own (largest magnitude / largest code)"
        )


def note_kept_dtypes(tensors: Sequence[TensorPlan], recipe: Recipe) -> Iterator[PlanFinding]:
    """Note tensors whose dtype stays wider than the recipe's dtype."""
    narrow_dtype = FROM_FULL_NAME.get(recipe.dtype or "")
    rules = rules_with_dtype(recipe)
    exceptions = {
        tensor.parts[0].name: full_name(tensor.dtype)
        for tensor in tensors
        if narrow_dtype and tensor.base.is_float and tensor.dtype != narrow_dtype and tensor.rule not in rules
    }
    if exceptions:
        are = quantity(len(exceptions), "tensor is", "tensors are")
        yield note(
            f"dtype: {recipe.dtype}: {are} stored wider than the other weights, as routers and states need it, and "
            f"not narrowed: {brief_list([f'{name} ({dtype})' for name, dtype in exceptions.items()])}; a rule with "
            f"`dtype: {recipe.dtype}` narrows them"
        )


def note_statistics(tensors: Sequence[TensorPlan]) -> Iterator[PlanFinding]:
    """Note statistics of layers' inputs, which are not merged."""
    copies = [tensor for tensor in tensors if is_statistic(tensor.name) and tensor.action == "copy" and not tensor.rule]
    if copies:
        names = brief_list([quoted(tensor.name) for tensor in copies])
        yield note(
            f"statistics of inputs are no weights, so they are not merged, and the output gets the base's: {names}; a "
            "rule with `take: AGENT` takes an agent's"
        )


def note_ruled_dtypes(tensors: Sequence[TensorPlan], recipe: Recipe) -> Iterator[PlanFinding]:
    """Note tensors that are stored in a wider dtype than most weights, because of rules with a dtype.

    Tensors that the base stores wider than its other weights are not mentioned.
    """
    rules = rules_with_dtype(recipe)
    plain = [tensor for tensor in tensors if tensor.base.is_float]
    if not plain or not rules:
        return
    usual = most_common(elements_by_dtype(plain))
    usual_of_base = most_common(elements_by_dtype(plain, of_base=True))
    by_rules = dtype_by_rules(recipe, plain) is not None
    wider = {
        tensor.parts[0].name: full_name(tensor.dtype)
        for tensor in plain
        if by_rules or tensor.rule in rules
        if tensor.dtype != tensor.base.usual_dtype or tensor.dtype == usual_of_base
        if widest({tensor.dtype, usual}) == tensor.dtype != usual
    }
    if wider:
        are = quantity(len(wider), "tensor is", "tensors are")
        yield note(
            f"rules: {are} stored wider than most weights, which are {full_name(usual)}: "
            f"{brief_list([f'{name} ({dtype})' for name, dtype in wider.items()])}; transformers loads all weights in "
            "the dtype of config.json, unless from_pretrained gets another one"
        )


def find_companions(
    inputs: OpenedInputs, recipe: Recipe, shards: Sequence[Shard], owner: str | None
) -> tuple[dict[str, Location], list[PlanFinding]]:
    """The files to copy, as a mapping from relative names to sources. The tokenizer is that of `owner`, if not None."""
    assert inputs.opened_base is not None
    base = inputs.opened_base.metadata_folder
    agent = inputs.opened_agents.get(owner) if owner else None
    names = [shard.name for shard in shards]
    ours = {*names, index_of(names), "README.md", "ramerge.json", "ramerge.yaml"}
    findings = [
        problem(f"{base / name}: is a folder, but the output needs a file of this name; rename the folder")
        for name in sorted(ours)
        if (base / name).is_dir()
    ]
    try:
        files = companion_files(inputs.opened_base, agent)
        left = left_out(base, inputs.opened_base.files)
        if inputs.opened_base.quantized is not None and recipe.dtype != LIKE_BASE:
            left += [name for name in _OF_QUANTIZATION if files.pop(name, None) is not None]
        if left:
            text = "not copied, because they are or belong to weights that are not read, or not as they are"
            findings.append(note(f"{base}: {brief_list(list(map(quoted, left)))}: {text}"))
        states = {file for several in named_files(files).values() for file in several if is_weights(file)}
        if modules := modules_with_weights(files.keys() - states):
            text = f"have weights of their own, which are the base's and are not merged: {brief_list(modules)}"
            findings.append(note(f"{base}: modules {text}"))
        if states := states & files.keys():
            names_text = brief_list(sorted(states))
            findings.append(note(f"{base}: processor states are the base's and are not merged: {names_text}"))
        return files, findings
    except CheckpointError as error:
        return {}, findings + problems_of(error, None)


def note_rounded_base(tensors: Sequence[TensorPlan]) -> Iterator[PlanFinding]:
    """Note tensors of a quantized base that are rounded before the comparison, as the agents' trainers did."""
    rounded_tensors = [tensor for tensor in tensors if isinstance(tensor.base.origin, Rounding)]
    if rounded_tensors:
        first = rounded_tensors[0]
        kind, dtype = full_name(first.base.encoding), full_name(first.base.dtype)
        names = [source.owner for source in first.sources if source.owner != BASE and not is_quantized(source.tensor)]
        are = "is" if len(names) == 1 else "are"
        yield note(
            f"the base is {kind}, and {enumerated(names)} {are} {dtype}: trainers dequantize such a base first, so "
            f"{len(rounded_tensors):,} of its tensors are compared as rounded to {dtype}"
        )


def warn_of_coarse_agents(tensors: Sequence[TensorPlan], points: Sequence[Point]) -> Iterator[PlanFinding]:
    """Warn of agents with a coarser dtype than the base, because their rounding looks like training."""
    coarse = {
        owner: (full_name(tensor.base.dtype), full_name(dtype))
        for tensor in tensors
        if tensor.merged
        for owner, dtype in tensor.coarse.items()
    }
    if coarse and points[0].uses_base:
        (wide, narrow), names = next(iter(coarse.values())), brief_list(list(coarse))
        yield warning(
            f"the base is {wide}, and {names} {'is' if len(coarse) == 1 else 'are'} {narrow}: rounding by itself makes "
            f"most elements differ, and counts as moved. Give the base in {narrow} (ramerge convert BASE OUT --dtype "
            f"{narrow}), or agents in {wide}"
        )
