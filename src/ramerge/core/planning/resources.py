"""Choose workers and blocks that fit the processors and the memory, and the device that solves for whole matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ramerge.core.foundation.devices import choose_device, device_name, may_have_gpu, read_device
from ramerge.core.foundation.errors import RecipeError
from ramerge.core.foundation.machine import memory, processors
from ramerge.core.foundation.settings import ResourceLimits, too_little
from ramerge.core.linalg.solver import SIDE_BY_SIDE, is_slow_in_float64, is_sound
from ramerge.core.methods.base import FEW, Statistic
from ramerge.core.planning.findings import PlanFinding, note, problem, warning
from ramerge.core.planning.inputs import OpenedInputs
from ramerge.core.planning.model import Resources, TensorPlan, matrices_of, method_bytes
from ramerge.core.planning.rounds import rounds
from ramerge.core.recipe.points import Point
from ramerge.core.storage.location import is_far
from ramerge.core.tensors.reader import AHEAD_BYTES, KEPT_BYTES, MOST_KEPT

# Resident memory of the process without buffers: Python, NumPy, numba, the compilation of kernels, which grows with the
# number of agents, and the plan's memory for each tensor of each input. Measured; tests compare peaks with plans.
BASELINE_BYTES = 230_000_000
_BYTES_PER_AGENT = 6_000_000
_BYTES_PER_TENSOR = 700
# Memory to compile the kernels that decode and write quantized weights.
_BYTES_OF_CODES = 50_000_000

# Memory for parts of a file that is uploaded, and for the library that uploads it.
_BYTES_OF_SENDING = 80_000_000

# Memory of a worker for the response to a request to each model, before it is copied into the buffer. Measured.
_BYTES_OF_ANSWER = 1_500_000

# With blocks of this many elements, the buffers of all workers fit into the last-level cache. With smaller blocks,
# the overhead of calls is larger than the gain. Larger blocks do not fit.
_LARGEST_BLOCK = 1 << 19
# A block of a delta takes many short steps, and after each the thread waits for Python's lock.
_LARGEST_BLOCK_OF_DELTAS = 1 << 20
# A block of a remote tensor that is computed from others takes one request or several. The cost of requests is larger
# than the gain from caches.
_LARGEST_REMOTE_BLOCK = 1 << 22
# Bytes of a remote file that a worker reads in one request, as consecutive blocks. Many more would not save servers
# work, and would leave some workers idle at the end.
_RUN = 32_000_000
# The least number of runs per worker, so that all workers are busy until the end.
_RUNS = 4
# At least this many workers must have memory for the largest remote blocks.
_FEW = 4
SMALLEST_BLOCK = 1 << 12
# Threads in addition to one per processor, because some wait for disks or servers.
_SPARE = 2
_DEFAULT_BUFFERS = 150_000_000
# The share of the machine's memory that whole matrices may take if the user sets no limit.
_SHARE_OF_MEMORY = 0.5

LARGE = 10**11
"""The number of multiply-adds from which `auto` looks for a GPU, if each whole matrix is multiplied by its transpose.

Torch takes several seconds to start. The matrices of a model of 0.5B parameters need 3 x 10^11 multiply-adds, and
methods take 20 seconds to three minutes for them on two cores.
"""
_SHARE_OF_DEVICE = 0.9  # of a device's free memory

_Round = Mapping[int, Sequence[Statistic]]


def choose_resources(
    points: Sequence[Point],
    inputs: OpenedInputs,
    tensors: Sequence[TensorPlan],
    limits: ResourceLimits,
    *,
    in_memory: bool,
    observations: Sequence[Statistic],
    is_remote: bool,
    fewest: int,
    after: int,
    smaller: str,
) -> tuple[Resources, list[PlanFinding]]:
    """Choose the largest blocks, then the most workers, that fit into memory.

    Without a limit, the budget for buffers is small even for a laptop. If inputs are remote, few workers with large
    blocks are better than many workers with small blocks.

    Args:
        in_memory: whether whole merged tensors are passed to a function instead of being written.
        observations: statistics that are counted instead of merging.
        is_remote: whether the output is uploaded.
        fewest: elements of the smallest useful block.
        after: peak memory of the process after merging, in bytes.
        smaller: how to reduce `after`, as an addition to the advice to give more memory.
    """
    agents, models, observations = len(inputs.agents), 1 + len(inputs.agents) + len(inputs.sides), tuple(observations)
    # includes statistics with cached counts, so that blocks do not depend on the cache
    reads = [*rounds(tensors, points), dict.fromkeys(range(len(tensors) if observations else 0), observations)]
    fixed_bytes = _fixed_bytes(inputs, tensors, reads, _bytes_of_counts(observations, agents), is_remote=is_remote)
    if in_memory:  # the current merged tensor, and the next one
        fixed_bytes += (
            2 * len(points) * max((sum(part.whole_nbytes for part in each.parts) for each in tensors), default=0)
        )
    remote = any(map(is_far, inputs.files))
    deltas = sum(agent.delta is not None for agent in inputs.opened_agents.values())
    scratch = _scratch_bytes(points, tensors, agents)
    own = scratch + min(deltas, MOST_KEPT) * KEPT_BYTES
    own += models * _BYTES_OF_ANSWER + deltas * AHEAD_BYTES if remote else 0
    # each worker has one set of counts that it fills, and one that waits to be added up
    own += 2 * max(
        _bytes_of_counts(group, agents) for group in {observations}.union(*(read.values() for read in reads))
    )
    needs = _MemoryNeeds(tuple({tensor.likeness: tensor for tensor in tensors}.values()), fixed_bytes, own)
    # there must be room for one whole matrix; several at a time are faster, if they leave memory to other processes
    budget = limits.memory or max(fixed_bytes + _DEFAULT_BUFFERS, int(memory() * _SHARE_OF_MEMORY) if scratch else 0)
    # a processor that solves for a matrix is always busy; otherwise threads wait for disks, servers, or operators
    solves_matrices = scratch and any(each.matrix and not each.recorded for each in tensors)
    workers = limits.threads or processors() + (0 if solves_matrices else _SPARE)
    block = _LARGEST_REMOTE_BLOCK if remote else _LARGEST_BLOCK_OF_DELTAS if deltas else _LARGEST_BLOCK
    fewest = max(fewest, *(source.tensor.origin.grain for tensor in tensors for source in tensor.sources), 1)
    least = min(workers, _FEW) if remote and not limits.threads else workers
    while block > fewest and needs.resources(least, block).peak_memory_bytes > budget:
        block //= 2
    while workers > 1 and needs.resources(workers, block).peak_memory_bytes > budget:
        workers -= 1
    resources, refusals = needs.resources(workers, block), list[PlanFinding]()
    if after > resources.peak_memory_bytes:
        resources = replace(resources, peak_memory_bytes=after)
    if limits.memory and resources.peak_memory_bytes > limits.memory:
        why = smaller if after == resources.peak_memory_bytes else " (compiling in a first run counts, too)"
        refusals = [problem(f"{too_little(limits.memory, resources.peak_memory_bytes)}{why}")]
    if not remote or scratch:  # a worker that solves for a matrix would let responses to its requests wait
        return resources, refusals
    run_bytes = min(models * _RUN, sum(each.bytes_read for each in tensors) // (workers * _RUNS))
    return replace(resources, run_bytes=run_bytes), refusals


@dataclass(frozen=True)
class _MemoryNeeds:
    """The memory that a merge needs.

    Attributes:
        kinds: one tensor for each different size of buffers.
        fixed_bytes: bytes of the process that workers share.
        own: bytes of each worker besides its buffer.
    """

    kinds: tuple[TensorPlan, ...]
    fixed_bytes: int
    own: int

    def resources(self, workers: int, block: int) -> Resources:
        """The resources of this many workers, with blocks of this many elements."""
        buffer = max((tensor.buffer_bytes(block) for tensor in self.kinds), default=0)
        each = buffer + self.own
        return Resources(workers, block, buffer, self.fixed_bytes + workers * each, each)


def _fixed_bytes(
    inputs: OpenedInputs,
    tensors: Sequence[TensorPlan],
    reads: Sequence[_Round],
    observed_bytes: int,
    *,
    is_remote: bool,
) -> int:
    """Bytes of the process that its workers share; `observed_bytes` are kept for each tensor."""
    agents = len(inputs.agents)
    models = 1 + sum(max(1, len(model.members)) for model in inputs.agents.values()) + len(inputs.sides)
    inputs_of_loops = min(1 + agents + len(inputs.sides), 1 + FEW)  # kernels take no more inputs at once
    nbytes = BASELINE_BYTES + _BYTES_PER_AGENT * inputs_of_loops + _BYTES_PER_TENSOR * len(tensors) * (1 + models)
    nbytes += len(tensors) * observed_bytes + max(_open_sum_bytes(tensors, read, agents) for read in reads)
    nbytes += _BYTES_OF_CODES if any(checkpoint.quantized for checkpoint in inputs.opened) else 0
    return nbytes + (_BYTES_OF_SENDING if is_remote else 0)


def _open_sum_bytes(tensors: Sequence[TensorPlan], statistics_by_tensor: _Round, agents: int) -> int:
    """The most bytes that 64-bit sums of incomplete parts of the model take at once."""
    last = {
        (each, tensors[i].part(each.scope)): i for i in sorted(statistics_by_tensor) for each in statistics_by_tensor[i]
    }
    sizes: dict[Statistic, int] = {}
    open_parts: dict[tuple[Statistic, str], int] = {}
    most = 0
    for i in sorted(statistics_by_tensor):
        for each in statistics_by_tensor[i]:
            if each not in sizes:
                sizes[each] = 8 * each.blank(agents).size
            open_parts[each, tensors[i].part(each.scope)] = sizes[each]
        most = max(most, sum(open_parts.values()))
        for key in [key for key in open_parts if last[key] == i]:
            del open_parts[key]
    return most


def _bytes_of_counts(statistics: Sequence[Statistic], agents: int) -> int:
    return sum(statistic.blank(agents).nbytes for statistic in statistics)


def _scratch_bytes(points: Sequence[Point], tensors: Sequence[TensorPlan], agents: int) -> int:
    """Bytes that the method takes for its largest tensor, in addition to a worker's buffer.

    Operators from recorded inputs are held for all points at once, because each point merges each block.
    """
    return max(
        (
            (sum if tensor.recorded else max)(
                point.method.scratch(tensor.layer, point.parameters[tensor.rule], agents) for point in points
            )
            for tensor in tensors
            if tensor.merged and tensor.unit > 1
        ),
        default=0,
    )


def place_matrices(
    text: str, points: Sequence[Point], tensors: Sequence[TensorPlan], agents: int, resources: Resources
) -> tuple[Resources, list[PlanFinding]]:
    """Add the device that solves for whole matrices to the resources. `text`: the user's choice of device."""
    read_device(text)
    matrices = matrices_of(points, tensors)
    large = len(points) * sum(_gram_operations(each.matrix) for each in matrices) >= LARGE
    if text == "cpu" or not matrices or (text == "auto" and not (large and may_have_gpu())):
        return resources, []
    try:
        device = choose_device(text)
    except RecipeError as error:
        return resources, [problem(text) for text in error.messages]
    if device.type == "cpu" or (text == "auto" and device.type != "cuda"):
        return resources, []
    if not is_sound(str(device)):
        text = f"{device_name(device)} does not compute as the CPU does; the CPU solves for all matrices"
        return resources, [warning(text)]
    room = _device_room(str(device))
    needs = [method_bytes(points, each, agents) for each in matrices]
    too_large = sum(need > room for need in needs)
    text = (
        f"{too_large} of {len(needs)} matrices need more than the {room / 1e9:.1f} GB that {device} has for one; "
        "the CPU solves for them"
    )
    precision = ", large matrices refined from float32" if is_slow_in_float64(str(device)) else ""
    resources_on_device = replace(
        resources, device=str(device), device_name=device_name(device) + precision, device_bytes=room
    )
    return resources_on_device, [note(text)] if too_large else []


def _device_room(device: str) -> int:
    """Bytes of a device's memory for one matrix, if several are on it at a time."""
    import torch

    free = torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else torch.mps.recommended_max_memory()
    return int(_SHARE_OF_DEVICE * free / SIDE_BY_SIDE)


def _gram_operations(shape: Sequence[int]) -> int:
    """The number of multiply-adds of a matrix times its transpose, in the order with the smaller product."""
    short, long = sorted((math.prod(shape[:-1]), shape[-1]))
    return short * short * long
