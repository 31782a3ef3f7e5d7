"""Find linear weights that are stored as (in, out) instead of (out, in), as in GPT-2, and in many stacks of experts.

Libraries store a projection of all experts in one tensor of shape (experts, out, in) or (experts, in, out), under the
same names. Headers do not say which; it follows from the shapes of a module's projections.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ramerge.core.tensors.text_config import Config, text_configs

# Architectures whose linear layers are stored as (in, out).
_CONV1D = ("gpt2", "openai-gpt", "imagegpt", "clvp", "decision_transformer")
_IN_LAYER = re.compile(r"(^|\.)\d+\.")
_QUERIES_KEYS_VALUES = ".c_attn.weight"
# For each projection of experts: which multiples of the inner size its output may have; empty for down projections.
_PROJECTIONS: Mapping[str, tuple[int, ...]] = {
    "gate_up_proj": (2,),
    "w13": (2,),
    "input_linear": (2, 1),
    "fc1": (2, 1),
    "gate_proj": (1,),
    "up_proj": (1,),
    "w1": (1,),
    "w3": (1,),
    "down_proj": (),
    "w2": (),
    "output_linear": (),
    "fc2": (),
}
_STACK = re.compile(rf"(?P<module>(?:.*\.)?\d+\..+)\.(?P<projection>{'|'.join(_PROJECTIONS)})(?:\.weight)?")


@dataclass(frozen=True)
class Orientation:
    """The orientation of a model's linear weights.

    Attributes:
        is_conv1d: whether weights in numbered layers are (in, out), as in the GPT-2 family. Heads never are.
        stacks: for each tensor that stacks experts, whether it is (experts, in, out); None if shapes do not show it.
    """

    is_conv1d: bool
    stacks: Mapping[str, bool | None]

    def of(self, name: str) -> bool | None:
        """Whether a linear weight, or each matrix in a stack, is stored as (in, out); None if that is unknown."""
        return self.stacks.get(name, self.is_conv1d and _IN_LAYER.search(name) is not None)


def orientation_of(shapes: Mapping[str, Sequence[int]], config: Config) -> Orientation:
    """Find the orientation of a model's linear weights, from shapes and `config.json`.

    Args:
        shapes: the shapes of all tensors by name.
        config: the model's `config.json`. If it is empty, as in memory, the GPT-2 family is recognized by shapes, and
            some stacks of experts stay unknown.

    Examples:
        >>> shapes = {"layers.0.mlp.experts.gate_up_proj": (8, 32, 32), "layers.0.mlp.experts.down_proj": (8, 16, 32)}
        >>> orientation_of(shapes, {}).stacks
        {'layers.0.mlp.experts.gate_up_proj': True, 'layers.0.mlp.experts.down_proj': True}
        >>> orientation_of({"h.0.attn.c_attn.weight": (16, 48)}, {}).of("h.0.mlp.c_fc.weight")
        True
    """
    fusions = [shape for name, shape in shapes.items() if name.endswith(_QUERIES_KEYS_VALUES) and len(shape) == 2]
    is_conv1d = any(shape[1] == 3 * shape[0] for shape in fusions) and not config
    return Orientation(is_conv1d or config.get("model_type") in _CONV1D, _stack_orientations(shapes, config))


def _stack_orientations(shapes: Mapping[str, Sequence[int]], config: Config) -> dict[str, bool | None]:
    modules: dict[str, dict[str, str]] = defaultdict(dict)
    for name, shape in shapes.items():
        if len(shape) == 3 and all(shape) and (match := _STACK.fullmatch(name)) is not None:
            modules[match["module"]][match["projection"]] = name
    sizes = {size for part in text_configs(config) if isinstance(size := part.get("hidden_size"), int)}
    stacks: dict[str, bool | None] = {}
    for names in modules.values():
        transposed = _orientation({projection: shapes[name] for projection, name in names.items()}, sizes)
        stacks.update(dict.fromkeys(names.values(), transposed))
    return stacks


def _orientation(shapes: Mapping[str, Sequence[int]], sizes: Collection[int]) -> bool | None:
    """Whether the projections of a module are stored as (experts, in, out); None if unknown.

    If shapes allow both, the hidden sizes in `config.json` decide.
    """
    hidden_sizes = {transposed: _hidden_size(shapes, transposed) for transposed in (False, True)}
    possible = [transposed for transposed, size in hidden_sizes.items() if size is not None]
    if len(possible) > 1:
        possible = [transposed for transposed in possible if hidden_sizes[transposed] in sizes]
    return possible[0] if len(possible) == 1 else None


def _hidden_size(shapes: Mapping[str, Sequence[int]], transposed: bool) -> int | None:
    """The hidden size if the projections of a module have this orientation; None if their shapes contradict it."""
    sizes: set[int] = set()
    inner: list[set[int]] = []
    for projection, (_experts, rows, columns) in shapes.items():
        out, width = (columns, rows) if transposed else (rows, columns)
        times = _PROJECTIONS[projection]
        sizes.add(width if times else out)
        inner.append({out // n for n in times if out % n == 0} if times else {width})
    return sizes.pop() if len(sizes) == 1 and set.intersection(*inner) else None
