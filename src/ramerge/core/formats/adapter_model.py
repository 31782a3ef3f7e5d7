"""Applies a LoRA adapter to a base: changed, replaced and added tensors.

Changed tensors are computed from the base in float32 (`tensors.lowrank`), replaced tensors are as stored, and all
others are the base's own. Sources: `peft.utils.save_and_load`, `peft.tuners.lora.layer` and `peft.utils.other` of
peft 0.21.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import permutations

from ramerge.core.formats.adapter_pairs import AdaptedParameter, Pair
from ramerge.core.formats.expert_adapters import BaseExperts, ExpertPlace, Projection, projection_of
from ramerge.core.formats.files import UNGATHERED
from ramerge.core.formats.peft import CONFIG, AdapterSettings
from ramerge.core.formats.views import unwrapped_name
from ramerge.core.foundation.text import few_quoted, quantity, quoted
from ramerge.core.storage.location import Location
from ramerge.core.tensors.checkpoint import Checkpoint
from ramerge.core.tensors.embeddings import EMBEDDINGS, head_of, tied_embedding, untied
from ramerge.core.tensors.lowrank import WIDENABLE, Factor, LowRank, OtherRows, Region
from ramerge.core.tensors.name_aliases import TOWERS, interleaves_gates, name_aliases
from ramerge.core.tensors.origins import reshaped, stack
from ramerge.core.tensors.prefixes import align
from ramerge.core.tensors.tensor import Tensor

PREFIX = "base_model.model."
"""The prefix of names in an adapter's file."""
# Markers of a layer's copies. PEFT saves embeddings that were resized and trained three times: the current values, the
# original values, and the current values again under the wrapper's name.
_BASE_LAYER, _BEFORE = ".base_layer.", ".original_module."
_MODULES_TO_SAVE = re.compile(r"\.modules_to_save(\.default)?(?=\.)")
# Ranks up to this are read for any matrix. A larger rank is useful only up to the longer side of the matrix.
_ANY_RANK = 1024
# The ending of names of models that are quantized for training adapters.
IN_4_BITS = re.compile(r"-(?:unsloth-)?bnb-4bit$")
_PART = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_[A-Za-z_]+|trainable_tokens_delta)(?:\.default)?(?:\.(?P<leaf>weight|bias))?"
)
_PARTS = {
    ("lora_A", "weight"): "A",
    ("lora_B", "weight"): "B",
    ("lora_B", "bias"): "bias",
    ("lora_embedding_A", None): "embedding A",
    ("lora_embedding_B", None): "embedding B",
    ("lora_magnitude_vector", None): "magnitudes",
    ("lora_magnitude_vector", "weight"): "magnitudes",
    ("trainable_tokens_delta", None): "tokens",
}
_PAIRS = (("A", "B"), ("embedding A", "embedding B"))
# Parameters of all experts; files may have tensors for each expert instead, stacked by rows.
_EXPERTS = {"gate_up_proj": "gate_up", "down_proj": "down"}
# Projections that files may store as one tensor, stacked by rows, or separately; and two of them with equal heights.
_ROWS = (
    ("qkv_proj", ("q_proj", "k_proj", "v_proj"), ("k_proj", "v_proj")),
    ("gate_up_proj", ("gate_proj", "up_proj"), ("gate_proj", "up_proj")),
    ("in_proj_qkv", ("in_proj_q", "in_proj_k", "in_proj_v"), ("in_proj_q", "in_proj_k")),
)
# Parts of multimodal models besides the text model.
_TOWER = re.compile(rf"(?:^|\.)(?:{TOWERS})\.")
# The order in which modules of transformers declare parameters. PEFT wraps the first parameter first.
_DECLARATION_ORDER = ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")


@dataclass
class AdaptedModel:
    """The tensors of a base while an adapter is applied to them, and the problems so far.

    Tied embeddings of the base are treated as two tensors, because PEFT trains them separately.
    """

    path: Location
    settings: AdapterSettings
    base: Checkpoint
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    products: int = 0
    ranks: set[int] = field(default_factory=set)
    others: int = 0
    additions: list[str] = field(default_factory=list)
    scaled_names: set[str] = field(default_factory=set)
    operations: dict[tuple[str, str], str] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=dict)
    heights: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.original_base, embedding = self.base, tied_embedding(self.base)
        # the names of output and input embeddings, if the base ties them
        self.ties: tuple[str, ...] = (head_of(self.base, embedding), embedding.name) if embedding is not None else ()
        self.base = untied(self.base)
        self.tensors: dict[str, Tensor] = dict(self.base.tensors)
        self.experts: BaseExperts = BaseExperts(self._base_name, self.base.tensors)

    def description(self) -> str:
        """Describe for a note how many tensors are changed and replaced, and how."""
        ranks = sorted(self.ranks)
        of_rank = f" of rank {ranks[0]}" if len(ranks) == 1 else f" of ranks {ranks[0]} to {ranks[-1]}" if ranks else ""
        kind = "DoRA" if self.settings.use_dora else "LoRA"
        more = f", {quantity(self.others, 'other')} replaced" if self.others else ""
        more += (
            f", {len(self.additions)} added that the base does not have: {_format_first_ten(self.additions)}"
            if self.additions
            else ""
        )
        return f"{quantity(self.products, 'tensor')} changed by {kind}{of_rank}, computed in float32{more}"

    @property
    def vocabulary(self) -> int | None:
        """The number of rows of the embeddings, which the adapter may have resized."""
        for name, tensor in self.base.tensors.items():
            if name.endswith(EMBEDDINGS) and self.tensors[name].shape[:1] != tensor.shape[:1]:
                return self.tensors[name].shape[0]
        return self.base.vocabulary

    @property
    def changes(self) -> set[str]:
        """The base's tensors that the adapter changes or replaces; both tied embeddings if it changes one of them."""
        names = {name for name, tensor in self.base.tensors.items() if self.tensors.get(name) is not tensor}
        return names.union(self.ties) if names.intersection(self.ties) else names

    @contextmanager
    def _collect_problems(self, what: str) -> Iterator[None]:
        """Within the block, collect a ValueError as a problem of a module or tensor."""
        try:
            yield
        except ValueError as error:
            self.problems.append(f"{quoted(what)}: {error}")

    def _note_change(self, kind: str, name: str, what: str) -> None:
        """Note a change of one of the base's tensors. Raises ValueError for a second change of the same kind."""
        if (before := self.operations.get((kind, name))) is not None:
            both = f"as {quoted(before)} and as {quoted(what)}"
            raise ValueError(f"{kind} {quoted(name)} twice, {both}; only one of them can be meant")
        self.operations[kind, name] = what

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Apply the tensors of the adapter's file to the model; problems and notes are collected."""
        modules, others = self._split_by_module(tensors)
        if IN_4_BITS.search(self.settings.base_model_name_or_path):
            self.notes.append(
                f"{self.path}: was trained on the base in 4 bits (QLoRA); as its trainer's merge in 16 bits does, its "
                "updates are added to the base as it is"
            )
        for key, tensor in sorted(others.items(), key=lambda item: self._is_trained(item[1])):
            with self._collect_problems(key):
                self._replace_tensor(key, tensor)
        pairs_of_modules: dict[str, list[Pair]] = {}
        empty = [
            name
            for name, parts in modules.items()
            if not any(tensor.elements for tensor in parts.values()) and not self._is_in_base(name)
        ]
        if empty:
            self.notes.append(
                f"{self.path}: {few_quoted(empty)}: placeholders without elements for what the base lacks; skipped"
            )
        modules = {name: parts for name, parts in modules.items() if name not in empty}
        if towers := self._absent_towers(modules):
            self.notes.append(
                f"{self.path}: {few_quoted(towers)}: changes towers that the base, a text model, does not have; dropped"
            )
            modules = {name: parts for name, parts in modules.items() if name not in towers}
        for module, parts in modules.items():
            plain = module.replace(".base_layer", "")
            with self._collect_problems(module):
                if (pair := self._lora_pair(module, parts)) is not None:
                    pairs_of_modules.setdefault(plain, []).append(pair)
                if "tokens" in parts:
                    self._replace_rows(plain.removesuffix(".token_adapter"), parts["tokens"])
        self._align_prefixes(pairs_of_modules)
        experts: dict[Projection, dict[int | None, Pair]] = {}
        for module, pairs in pairs_of_modules.items():
            with self._collect_problems(module):
                if targets := self._targeted_names(module):
                    self._add_to_parameters(module, pairs, targets)
                    continue
                of_experts = projection_of(module) if self._base_name(f"{module}.weight") is None else None
                for pair in pairs:
                    if of_experts is not None:
                        experts.setdefault(of_experts[0], {})[of_experts[1]] = pair
                    else:
                        self._add_to_module(pair, modules[pair.module])
        for projection, expert_pairs in experts.items():
            with self._collect_problems(
                f"{projection.stem} ({projection.kind})" if None not in expert_pairs else expert_pairs[None].module
            ):
                self._add_to_experts(projection, expert_pairs)
        if not modules and not others:
            self.problems.append("holds no tensors")

    # --- what the file holds -----------------------------------------------------------------------------------------

    def _split_by_module(self, tensors: Sequence[Tensor]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]:
        """Split tensors into parts of LoRA, by module, and tensors that replace others, by name in the file."""
        modules: dict[str, dict[str, Tensor]] = {}
        others: dict[str, Tensor] = {}
        before = set()
        for tensor in tensors:
            key = unwrapped_name(tensor.name).removeprefix(PREFIX)
            match = _PART.fullmatch(key)
            if match is None:
                if _BEFORE in key:
                    before.add(key.replace(_BEFORE, "."))
                else:
                    others[tensor.name] = Tensor(key, tensor.dtype, tensor.shape, tensor.origin)
                continue
            with self._collect_problems(tensor.name):
                part = _PARTS.get((match["part"], match["leaf"]))
                if part is None:
                    raise ValueError("is of a kind of adapter that is not read")
                if part in modules.setdefault(match["module"], {}):
                    raise ValueError("is there twice")
                if tensor.dtype not in WIDENABLE:
                    raise ValueError(f"has dtype {tensor.dtype}, where one of {', '.join(WIDENABLE)} is read")
                modules[match["module"]][part] = tensor
        keys = {tensor.name for tensor in others.values()}
        again = {key for key in keys if (name := _MODULES_TO_SAVE.sub("", key)) != key and name in keys & before}
        return modules, {name: tensor for name, tensor in others.items() if tensor.name not in again}

    def _absent_towers(self, modules: Iterable[str]) -> list[str]:
        """Return modules of towers that a base without towers lacks; empty if there are no other modules."""
        if any(map(_TOWER.search, self.base.tensors)):
            return []
        towers = [name for name in modules if _TOWER.search(name) and not self._is_in_base(name)]
        return towers if set(modules) - set(towers) else []

    def _is_in_base(self, module: str) -> bool:
        """Whether the base has the target of a module."""
        plain = module.replace(".base_layer", "")
        if self._base_name(f"{plain}.weight") or self._base_name(plain) or self._targeted_names(plain):
            return True
        projection = projection_of(plain)
        with self._collect_problems(module):
            return projection is not None and bool(self.experts.places_of(projection[0]))
        return True  # its problem was collected

    @staticmethod
    def _lora_pair(module: str, parts: Mapping[str, Tensor]) -> Pair | None:
        """Return A and B of a module, if it has them. Raises ValueError if one is missing, or shapes do not fit."""
        for a, b in _PAIRS:
            if (a in parts) != (b in parts):
                raise ValueError(f"has {a if a in parts else b}, but not the other factor")
            if a in parts:
                pair = Pair(module, parts[a], parts[b], is_embedding=a != "A")
                shapes = f"A has the shape {list(pair.a.shape)}, B {list(pair.b.shape)}"
                if 0 in (*pair.a.shape, *pair.b.shape) or min(len(pair.a.shape), len(pair.b.shape)) < 2:
                    raise ValueError(f"{shapes}; {UNGATHERED}")
                if projection_of(pair.plain) is not None and {len(pair.a.shape), len(pair.b.shape)} == {3}:
                    if pair.a.shape[1] != pair.b.shape[2]:
                        raise ValueError(f"{shapes}, which are no factors of a product for each expert")
                    return pair
                if len(pair.a.shape) > 2 or len(pair.b.shape) > 2:
                    raise ValueError(f"{shapes}; adapters of convolutions are not read")
                if pair.a.shape[0] != pair.b.shape[1]:
                    raise ValueError(f"{shapes}, which are no factors of a product")
                return pair
        return None

    # --- names -------------------------------------------------------------------------------------------------------

    def _base_name(self, name: str) -> str | None:
        with_prefixes = (new + name[len(old) :] for old, new in self.prefixes.items() if name.startswith(old))
        return next(
            (alias for start in (name, *with_prefixes) for alias in name_aliases(start) if alias in self.base.tensors),
            None,
        )

    def _align_prefixes(self, pairs_of_modules: Mapping[str, Sequence[Pair]]) -> None:
        """Find prefixes that map names of modules to the base's names, for modules that no known alias matches."""
        shapes = {
            f"{module}.weight": (pair.b.shape[0], pair.a.shape[1])
            for module, (pair, *_) in pairs_of_modules.items()
            if not pair.is_stacked and self._base_name(f"{module}.weight") is None
        }
        self.heights = {module: pair.b.shape[0] for module, (pair, *_) in pairs_of_modules.items()}
        if shapes:
            self.prefixes = align(shapes, {name: tensor.shape for name, tensor in self.base.tensors.items()})[1]

    def tie_again(self) -> None:
        """Restore the tied base if the adapter leaves input and output embeddings equal."""
        if not self.ties:
            return
        head, embedding = (self.tensors[name] for name in self.ties)
        if head.origin != embedding.origin:
            start = self.base.tensors[embedding.name].origin
            names = " and ".join(quoted(one.name) for one in (embedding, head) if one.origin != start)
            self.notes.append(
                f"{self.path}: changes {names} by itself, although the base ties input and output embeddings: as a "
                "model of its own it has both, and a config.json that says tie_word_embeddings: false"
            )
            if head.shape != embedding.shape:
                both = f"{quoted(embedding.name)} {list(embedding.shape)} and {quoted(head.name)} {list(head.shape)}"
                self.problems.append(f"leaves {both} with other numbers of rows; save it with save_embedding_layers")
            return
        del self.tensors[head.name]
        before = self.original_base.tensors
        if head.name in before and embedding.origin == before[embedding.name].origin:
            self.tensors = {name: self.tensors.get(name, before[name]) for name in before}
        self.base = self.original_base

    def _tied_names(self, name: str) -> tuple[str, ...]:
        return self.ties if name in self.ties else (name,)

    def _tied_trained_names(self, name: str) -> tuple[str, ...]:
        return self._tied_names(name) if self.settings.ensure_weight_tying else (name,)

    # --- what replaces -----------------------------------------------------------------------------------------------

    def _replace_tensor(self, key: str, tensor: Tensor) -> None:
        plain = _plain_name(tensor)
        name = self._base_name(plain) or plain
        together = self._tied_trained_names(name) if self._is_trained(tensor) else self._tied_names(name)
        if len(together) > 1 and any(("replaces", each) in self.operations for each in together):
            return  # a single tensor that PEFT saves under both names
        self._note_change("replaces", name, key)
        if name in self.base.tensors:
            self.others += 1
        else:
            self.additions.append(name)
        for each in together:
            self.tensors[each] = Tensor(each, tensor.dtype, tensor.shape, tensor.origin)

    def _is_trained(self, tensor: Tensor) -> bool:
        """Whether a tensor is a trained copy, and not the base's own tensor with resized rows."""
        return _BASE_LAYER not in tensor.name and self.settings.saves(_plain_name(tensor).rpartition(".")[0])

    def _replace_rows(self, module: str, values: Tensor) -> None:
        rows = self.settings.tokens_of(module)
        name = self._base_name(f"{module}.weight")
        if name is None:
            raise ValueError("the base has no such tensor, of which tokens have values")
        if name in self.ties[:1] and not self._has_own_rows():
            return  # the rows are those of the input embeddings
        tensor = self.tensors[name]
        if len(rows) != len(set(rows)) or values.shape != (len(rows), *tensor.shape[1:]):
            raise ValueError(
                f"the values of tokens have the shape {list(values.shape)}, but trainable_token_indices names "
                f"{quantity(len(set(rows)), 'row')} of {list(tensor.shape)}"
            )
        if rows and not (min(rows) >= 0 and max(rows) < tensor.shape[0]):
            raise ValueError(f"trainable_token_indices names rows that {list(tensor.shape)} does not have")
        self._check_wide(name)
        self._note_change("replaces rows of", name, module)
        places = sorted(range(len(rows)), key=rows.__getitem__)
        origin = OtherRows(tensor, tuple(rows[place] for place in places), tuple(places), values)
        for each in (name,) if self._has_own_rows() else self._tied_names(name):
            self.tensors[each] = Tensor(each, "F32", tensor.shape, origin)
        self.others += 1

    def _has_own_rows(self) -> bool:
        if not self.ties or not isinstance(self.settings.trainable_token_indices, dict):
            return False
        head, embedding = (self.settings.tokens_of(name.removesuffix(".weight")) for name in self.ties)
        return bool(head) and head != embedding

    # --- additions ---------------------------------------------------------------------------------------------------

    def _check_wide(self, name: str) -> None:
        dtype = self.tensors[name].dtype
        if dtype not in WIDENABLE:
            raise ValueError(
                f"changes {quoted(name)}, which is {dtype} in the base; it must be one of {', '.join(WIDENABLE)}"
            )

    def _scaling(self, name: str, rank: int) -> float:
        """Return the factor of a product. Raises ValueError if the weights have another rank than stated."""
        self.scaled_names.add(name)
        if rank != (expectation := self.settings.rank(name)):
            raise ValueError(
                f"has the rank {rank}, but by r and rank_pattern in {CONFIG} it is {expectation}, so its factor, alpha "
                "by rank, is not known; correct them to what it was trained with"
            )
        return self.settings.scaling(name, rank)

    def _add_product(self, name: str, origin: LowRank) -> None:
        most = max(_ANY_RANK, *origin.base.shape[-2:])
        if origin.ranks > most:
            raise ValueError(
                f"has the rank {origin.ranks:,} for {quoted(name)} of {list(origin.base.shape)}; "
                f"more than {most:,} add nothing to such a matrix, and no training makes them with PEFT; is it damaged?"
            )
        for each in self._tied_trained_names(name):
            self.tensors[each] = Tensor(each, "F32", origin.base.shape, origin)
        self.products += 1
        self.ranks.add(origin.ranks)

    def _add_to_module(self, pair: Pair, parts: Mapping[str, Tensor]) -> None:
        name = self._base_name(f"{pair.plain}.weight")
        if name is None and self._add_to_rows(pair):
            return
        if self.settings.ensure_weight_tying and name in self.ties[:1]:
            return  # the same change as for the input embeddings, which PEFT's merge_and_unload would apply twice
        self._note_change("changes", name or f"{pair.plain}.weight", pair.module)
        if name is None:
            missing = quoted(f"{pair.plain}.weight")
            raise ValueError(f"the base has no tensor {missing}; give the base that the adapter was trained on")
        tensor = self.tensors[name]
        out, width = pair.b.shape[0], pair.a.shape[1]
        fits = [
            transposed_orientation
            for transposed_orientation in (False, True)
            if tensor.shape == ((width, out) if transposed_orientation else (out, width))
        ]
        if pair.is_embedding:
            fits = [transposed_orientation for transposed_orientation in fits if transposed_orientation]
        if not fits:
            raise ValueError(
                f"A {list(pair.a.shape)} and B {list(pair.b.shape)} do not fit the base's {list(tensor.shape)}; "
                f"{_slice_of(pair, tensor) or 'is it an adapter of another model?'}"
            )
        # a square matrix fits both ways
        is_turned = self.settings.fan_in_fan_out or self.base.orientation.is_conv1d
        transposed = fits[0] if len(fits) == 1 else is_turned
        magnitudes = parts.get("magnitudes")
        if (magnitudes is not None) != self.settings.use_dora:
            what = "lacks the magnitudes of DoRA" if magnitudes is None else "has magnitudes, but use_dora is not set"
            raise ValueError(what)
        if magnitudes is not None and math.prod(magnitudes.shape) != tensor.shape[1 if transposed else 0]:
            raise ValueError(f"{list(magnitudes.shape)} magnitudes for {list(tensor.shape)}")
        self._check_wide(name)
        left, right, rank = pair.factors(1, transposed=transposed)
        scaling = self._scaling(pair.plain, rank)
        self._add_product(name, LowRank(tensor, left, right, rank, scaling, magnitudes, by_column=transposed))
        if (bias := parts.get("bias")) is None:
            return
        name = self._base_name(f"{pair.plain}.bias")
        if name is None or self.tensors[name].shape != bias.shape:
            what = "has no bias" if name is None else f"has the shape {list(self.tensors[name].shape)}"
            raise ValueError(f"changes a bias of {list(bias.shape)}, but the base's {what}")
        self._check_wide(name)
        factor = Factor(bias, index=1, rank=bias.elements)
        self._add_product(name, LowRank(self.tensors[name], None, factor, 1, scaling))

    def _add_to_rows(self, pair: Pair) -> bool:
        """Add a projection's product to its rows of a fused matrix, or a fused product's rows to each projection.

        Returns:
            Whether the base has such matrices.
        """
        stem, _, last = pair.plain.rpartition(".")
        out = pair.b.shape[0]
        places: list[tuple[str, int, Region | None]] = []
        for whole, parts, twins in _ROWS:
            if last in parts and (name := self._base_name(f"{stem}.{whole}.weight")) is not None:
                known_heights = {part: self.heights[at] for part in parts if (at := f"{stem}.{part}") in self.heights}
                heights = _projection_rows(parts, twins, known_heights, self.tensors[name].shape[0])
                if self.tensors[name].shape != (sum(heights), pair.a.shape[1]):
                    return False  # the rows before it are not known
                places = [(name, 0, Region(sum(heights[: parts.index(last)]), 1, out))]
            elif last == whole and all(names := [self._base_name(f"{stem}.{part}.weight") for part in parts]):
                row = 0
                for name in filter(None, names):
                    places.append((name, row, None))
                    row += self.tensors[name].shape[0]
                if row != out or any(self.tensors[name].shape[1:] != pair.a.shape[1:] for name, _, _ in places):
                    return False
        if places and self.settings.use_dora:
            raise ValueError("is DoRA of a projection that is one tensor with others in base or adapter; not read")
        for name, row, region in places:
            self._check_wide(name)
            self._note_change("changes" if region is None else f"changes row {region.first} on of", name, pair.module)
            left, right, rank = pair.factors(1, transposed=False, row=row)
            self._add_product(
                name, LowRank(self.tensors[name], left, right, rank, self._scaling(pair.plain, rank), region=region)
            )
        return bool(places)

    # --- parameters by name ------------------------------------------------------------------------------------------

    def _targeted_names(self, module: str) -> list[str]:
        paths = [name.rpartition(".") for name in self.settings.target_parameters]
        names = {last for start, _, last in paths if f".{module}".endswith(f".{start}" if start else "")}
        return sorted(
            names, key=lambda name: (_DECLARATION_ORDER.index(name) if name in _DECLARATION_ORDER else -1, name)
        )

    def _add_to_parameters(self, module: str, pairs: Sequence[Pair], targets: Sequence[str]) -> None:
        """Add the pairs of a module to the parameters that it targets.

        Keys do not name the parameters: PEFT wraps each targeted parameter in another layer, the first innermost.
        """
        parameters = [parameter for name in targets if (parameter := self._parameter(module, name)) is not None]
        assignment = self._assign_pairs(sorted(pairs, key=lambda pair: -pair.depth), parameters)
        clear = [fits for pair, parameter in assignment if len(fits := parameter.orientations(pair)) == 1]
        evidence = set[bool]().union(*clear)
        for pair, parameter in assignment:
            fits = parameter.orientations(pair)
            if len(fits) > 1:
                fits = (
                    evidence
                    or ({True} if self.settings.is_older else self._stored_orientations(*parameter.parts[0][:2]))
                    or fits
                )
            if len(fits) > 1:
                raise ValueError(
                    f"{parameter.name} is square, {list(parameter.shape)}, so its shape does not tell which factor is "
                    "on which side; merge the adapter into its base with PEFT"
                )
            (transposed,), experts = fits, parameter.experts
            scaling = self._scaling(f"{pair.plain}.{parameter.name}", pair.rank(experts))
            for name, expert, row in parameter.parts:
                self._check_wide(name)
                self._note_change("changes", name, pair.module)
                left, right, rank = pair.factors(experts, transposed=transposed, expert=expert or 0, row=row)
                self._add_product(name, LowRank(self.tensors[name], left, right, rank, scaling))

    def _add_to_experts(self, projection: Projection, pairs: Mapping[int | None, Pair]) -> None:
        """Add pairs of single experts, or a pair of all experts, to a projection of experts."""
        places = self.experts.places_of(projection)
        every = pairs.get(None)
        example = every or next(iter(pairs.values()))
        shapes = f"A {list(example.a.shape)}, B {list(example.b.shape)}"
        if not places:
            raise ValueError(f"is an adapter of experts ({shapes}), and the base has no such projection of experts")
        if self.settings.use_dora:
            raise ValueError(f"is an adapter of experts ({shapes}), and DoRA of experts is not read")
        if every is not None and len(pairs) > 1:
            raise ValueError("has factors for all experts, and others for single ones; only one of them can be meant")
        last = places[-1].expert
        count = self.base.tensors[places[0].name].shape[0] if last is None else 1 + last
        if every is not None:
            if not every.is_stacked and every.a.shape[0] == count * self.settings.rank(every.plain) and count > 1:
                raise ValueError(
                    f"{shapes} have ranks for {count} experts in an order that is not said; name the parameter in "
                    "target_parameters if PEFT wrote them"
                )
            stack = every.as_stack
            if {stack.a.shape[0], stack.b.shape[0]} - {1, count}:
                raise ValueError(f"has a pair of factors for each expert ({shapes}), and the base has {count} experts")
            self._add_stack(projection, places, every.plain, stack)
        elif places[0].expert is None:
            self._add_stack(projection, places, *self._stack_experts(pairs, count))
        else:
            if beyond := [expert for expert in pairs if expert not in {place.expert for place in places}]:
                raise ValueError(f"changes expert {beyond[0]}, and the base has {count}")
            for expert, pair in pairs.items():
                here = [replace(place, expert=0) for place in places if place.expert == expert]
                self._add_stack(projection, here, pair.plain, pair.as_stack)

    @staticmethod
    def _stack_experts(pairs: Mapping[int | None, Pair], count: int) -> tuple[str, Pair, tuple[int, ...]]:
        """Stack the pairs of single experts; return a module's name, the stack, and the index of each expert in it."""
        numbers = sorted(expert for expert in pairs if expert is not None)
        if numbers[-1] >= count:
            raise ValueError(f"changes expert {numbers[-1]}, and the base has {count}")
        expert_pairs = [pairs[number] for number in numbers]
        kinds = {(pair.a.shape, pair.b.shape, pair.a.dtype, pair.b.dtype) for pair in expert_pairs}
        if len(kinds) > 1:
            raise ValueError("has other shapes, ranks or dtypes for some experts, which are one tensor in the base")
        a, b = (
            reshaped(stack("", factors), (len(expert_pairs), *factors[0].shape))
            for factors in ([pair.a for pair in expert_pairs], [pair.b for pair in expert_pairs])
        )
        places = tuple(numbers.index(expert) if expert in pairs else -1 for expert in range(count))
        return expert_pairs[0].plain, replace(expert_pairs[0], a=a, b=b), places

    def _add_stack(
        self,
        projection: Projection,
        places: Sequence[ExpertPlace],
        name: str,
        stack: Pair,
        order: tuple[int, ...] = (),
    ) -> None:
        (_, rank, width), out = stack.a.shape, stack.b.shape[1]
        rows = max(place.row + place.shape[0] for place in places) if places[0].expert is not None else out
        scaling = self._scaling(name, rank)
        for place in places:
            fits = place.orientations(out, width) if place.expert is None else {False}
            if not fits:
                raise ValueError(
                    f"a projection of {[out, width]} does not fit the base's {quoted(place.name)} {list(place.shape)} "
                    "for each expert; is it an adapter of another model?"
                )
            if len(fits) > 1:
                fits = self._stored_orientations(place.name, None) or fits
            if len(fits) > 1:
                raise ValueError(
                    f"{quoted(place.name)} is square for each expert, {list(place.shape)}, so its shape does not tell "
                    "which factor is on which side; merge the adapter into its base with its trainer's tools"
                )
            if place.expert is not None and (place.shape[1] != width or rows != out):
                raise ValueError(
                    f"A {list(stack.a.shape)} and B {list(stack.b.shape)} do not fit the base's "
                    f"{quoted(place.name)} {list(place.shape)}; is it an adapter of another model?"
                )
            (is_transposed,) = fits
            self._check_wide(place.name)
            kind = "changes" if place.half is None else f"changes the {projection.kind} of"
            self._note_change(kind, place.name, stack.module)
            left, right = stack.factors_of_expert(transposed=is_transposed, expert=place.expert or 0, row=place.row)
            interleaved = interleaves_gates(self.base.config)
            region = place.region(out, transposed=is_transposed, interleaved=interleaved)
            self._add_product(
                place.name, LowRank(self.tensors[place.name], left, right, rank, scaling, region=region, places=order)
            )

    def _stored_orientations(self, name: str, expert: int | None) -> set[bool]:
        """Whether the base stores experts as (in, out), as a set with one value; empty if unknown.

        Experts with separate tensors are (out, in).
        """
        transposed = self.base.orientation.stacks.get(name) if expert is None else False
        return set() if transposed is None else {transposed}

    @staticmethod
    def _assign_pairs(
        group: Sequence[Pair], parameters: Sequence[AdaptedParameter]
    ) -> list[tuple[Pair, AdaptedParameter]]:
        """Assign the pairs of a module to parameters: in order of declaration, or in the only way that shapes allow."""
        if len(parameters) < len(group):
            names = ", ".join(parameter.name for parameter in parameters) or "none"
            raise ValueError(
                f"changes {quantity(len(group), 'parameter')}, but of those that target_parameters names the base "
                f"has {names}"
            )
        orders = [
            list(zip(group, order, strict=True))
            for order in permutations(parameters[:6], len(group))
            if all(parameter.orientations(pair) for pair, parameter in zip(group, order, strict=True))
        ]
        orders_of_declaration = [order for order in orders if [parameter for _, parameter in order] == list(parameters)]
        if orders_of_declaration and all(parameter.name in _DECLARATION_ORDER for parameter in parameters):
            return orders_of_declaration[0]
        if len(orders) == 1:
            return orders[0]
        shapes = "; ".join(f"A {list(pair.a.shape)}, B {list(pair.b.shape)}" for pair in group)
        descriptions = "; ".join(f"{parameter.name} {list(parameter.shape)}" for parameter in parameters)
        why = "fit them in more than one way" if orders else "do not fit them; is it an adapter of another model?"
        raise ValueError(f"the base has {descriptions}, and the factors ({shapes}) {why}")

    def _parameter(self, module: str, name: str) -> AdaptedParameter | None:
        whole = self._base_name(f"{module}.{name}")
        if whole is not None:
            shape = self.base.tensors[whole].shape
            return AdaptedParameter(name, shape, ((whole, None, 0),)) if len(shape) in (2, 3) else None
        kind = _EXPERTS.get(name)
        if kind is None or (kind == "gate_up" and interleaves_gates(self.base.config)):
            return None
        places = self.experts.separate_places(module, kind)
        heights: dict[int | None, int] = {}
        for place in places:
            heights[place.expert] = place.row + place.shape[0]
        shapes = {(heights[place.expert], place.shape[1]) for place in places}
        parts = tuple((place.name, place.expert, place.row) for place in places)
        return AdaptedParameter(name, (len(heights), *shapes.pop()), parts) if len(shapes) == 1 else None


def module_of(factor: Tensor) -> str | None:
    """Return the name of the module that a stored LoRA factor belongs to, as in the trained model."""
    match = _PART.fullmatch(unwrapped_name(factor.name).removeprefix(PREFIX))
    return match["module"].replace(".base_layer", "") if match is not None else None


def _projection_rows(
    parts: Sequence[str], twins: Sequence[str], known_heights: Mapping[str, int], whole: int
) -> list[int]:
    """Return the row counts of projections in a matrix of `whole` rows; the two in `twins` have equal counts."""
    rows = dict(known_heights)
    for one, other in (twins, twins[::-1]):
        if one in rows:
            rows.setdefault(other, rows[one])
    absent = [part for part in parts if part not in rows]
    left = whole - sum(rows.values())
    rows |= {part: max(left // len(absent), 0) for part in absent}
    return [rows[part] for part in parts]


def _slice_of(pair: Pair, tensor: Tensor) -> str | None:
    """Return advice for a pair that seems to hold only one tensor-parallel rank's part; otherwise None."""
    if len(tensor.shape) != 2:
        return None
    for extent, whole, same in (
        (pair.b.shape[0], tensor.shape[0], pair.a.shape[1] == tensor.shape[1]),
        (pair.a.shape[1], tensor.shape[1], pair.b.shape[0] == tensor.shape[0]),
    ):
        if same and extent < whole and whole % extent == 0:
            return (
                f"it looks like one rank's part of the adapter, of {whole // extent} ranks (tensor parallel): save it "
                "again with the parts of all ranks gathered; otherwise it is an adapter of another model"
            )
    return None


def _format_first_ten(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names[:10])) + (" and others" if len(names) > 10 else "")


def _plain_name(tensor: Tensor) -> str:
    return _MODULES_TO_SAVE.sub("", tensor.name.replace(_BASE_LAYER, ".").replace(".token_adapter.", "."))
