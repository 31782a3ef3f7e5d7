"""Gradients of likelihoods: what needs torch and transformers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from ramerge.calibration.encode import EncodedExample, ExampleEncoder
from ramerge.calibration.jsonl import Example
from ramerge.calibration.layout import floats_of
from ramerge.calibration.live import called, choose_device, load_model, load_tokenizer, naming_memory, quiet, threads
from ramerge.calibration.names import as_stored, check_names
from ramerge.calibration.record import ExampleResult, FisherSettings
from ramerge.foundation import dtypes
from ramerge.foundation.errors import InputError, PlanError, WeightsError
from ramerge.foundation.limits import ResourceLimits
from ramerge.tensors.checkpoint import Checkpoint

# rows of probabilities that are sampled from at a time: 40 MB for a vocabulary of 150,000
_ROWS = 64
_NAMED = 10
_SUM = 4  # bytes of a float32 sum


def run(
    checkpoint: Checkpoint,
    data: str,
    read: Callable[[], Iterator[Example]],
    settings: FisherSettings,
    limits: ResourceLimits,
    listen: Callable[[int], None],
    write: Callable[[str, NDArray[np.float32]], None],
) -> ExampleResult:
    """Estimate the Fisher information of a checkpoint."""
    device = choose_device(settings.device, settings.dtype)
    _check_memory(checkpoint, settings, device, limits.memory)
    with quiet(), threads(limits.threads):
        assert isinstance(checkpoint.directory, Path)  # a remote model was downloaded
        encoder = ExampleEncoder(load_tokenizer(checkpoint.directory), settings.max_length)
        tokens, truncated = _count(encoder, read, data)
        model = load_model(checkpoint.directory, settings.dtype).requires_grad_(True)
        untrained = check_names(model, checkpoint)
        advice = "use a smaller max_length, dtype=bfloat16, or device=cpu"
        with naming_memory(str(checkpoint.directory), device, advice):
            squares = SquareSums(model.to(device))
            likelihood = _Likelihood(model, settings)
            total = 0.0
            listen(0)
            for done, example in enumerate(_encoded(encoder, read, data), 1):
                total += _add(likelihood, squares, example, data, checkpoint)
                listen(done)
        unused = _write(model, squares.mean(settings.examples), checkpoint, untrained, write)
    return ExampleResult(
        device=called(device),
        tokens=tokens,
        truncated=truncated,
        mean_log_likelihood=total / tokens,
        notes=tuple(_notes(untrained, unused)),
        torch=str(torch.__version__),
        transformers=str(transformers.__version__),
    )


# --- memory ----------------------------------------------------------------------------------------------------------


def _check_memory(checkpoint: Checkpoint, settings: FisherSettings, device: torch.device, most: int | None) -> None:
    """Refuse what certainly needs more than `most` bytes: the model, and on a CPU its squares and one gradient."""
    sizes = [tensor.elements for tensor in floats_of(checkpoint)]
    wide = dtypes.itemsize(dtypes.FROM_FULL_NAME[settings.dtype])
    need = sum(sizes) * wide
    if device.type == "cpu":
        need += sum(sizes) * _SUM + max(sizes) * wide
    if most is not None and need > most:
        raise PlanError(
            f"--max-memory: {most:,} bytes do not suffice; {checkpoint.directory} in {settings.dtype} with its sums "
            f"needs at least {need:,}, and more for activations: use a larger limit, or a narrower dtype"
        )


# --- examples --------------------------------------------------------------------------------------------------------


def _count(encoder: ExampleEncoder, read: Callable[[], Iterator[Example]], data: str) -> tuple[int, int]:
    tokens, truncated, problems = 0, 0, []
    for example in read():
        encoded = encoder(example)
        if isinstance(encoded, str):
            problems.append(f"{data}: line {example.number}: {encoded}")
        else:
            tokens += len(encoded.ids) - encoded.start
            truncated += encoded.truncated
    if problems:
        raise InputError(problems)
    return tokens, truncated


def _encoded(encoder: ExampleEncoder, read: Callable[[], Iterator[Example]], data: str) -> Iterator[EncodedExample]:
    for example in read():
        encoded = encoder(example)
        if isinstance(encoded, str):
            raise InputError(f"{data}: line {example.number}: {encoded}; did the file change?")
        yield encoded


# --- the estimate ----------------------------------------------------------------------------------------------------


class SquareSums:
    """Sums of squared gradients, float32, one for each parameter, which take in every backward pass of the model.

    A gradient is squared, added and freed as soon as it is complete, so there is one at a time.
    """

    def __init__(self, model: Any) -> None:
        """Take the gradients of `model` away from now on; the sums are on its device."""
        # identity and not name: a tied parameter has several names and one gradient
        self._sums = {
            id(parameter): torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
            for parameter in model.parameters()
        }
        self._names = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
        self._peaks: dict[int, torch.Tensor] = {}
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._take) for parameter in model.parameters()]

    def _take(self, parameter: torch.Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        gradient = gradient.to(torch.float32)
        total = self._sums[id(parameter)].addcmul_(gradient, gradient)
        if total.numel():
            self._peaks[id(parameter)] = total.amax()

    def non_finite(self) -> list[str]:
        """Names of the parameters whose sum holds NaN or Inf; one synchronization with the device if there are none."""
        if bool(torch.isfinite(torch.stack(tuple(self._peaks.values()))).all()):
            return []
        return [name for name, key in self._names.items() if key in self._peaks and not math.isfinite(self._peaks[key])]

    def mean(self, examples: int) -> dict[str, torch.Tensor]:
        """The sums divided by the number of examples, by the parameters' names; ends the collecting."""
        for hook in self._hooks:
            hook.remove()
        for total in self._sums.values():
            total.div_(examples)
        return {name: self._sums[key] for name, key in self._names.items()}


class _Likelihood:
    def __init__(self, model: Any, settings: FisherSettings) -> None:
        self._model = model
        self._vocabulary = model.get_input_embeddings().weight.shape[0]
        # sampled on the CPU, so that the seed means the same on every device
        self._generator = torch.Generator().manual_seed(settings.seed) if settings.labels == "sampled" else None
        # logits of the prompt would take as much memory as all other activations together
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(self, example: EncodedExample) -> torch.Tensor:
        """The sum over labels, a scalar to differentiate."""
        if max(example.ids) >= self._vocabulary:
            raise InputError(
                f"token {max(example.ids)} is beyond the model's vocabulary of {self._vocabulary:,}; "
                "the tokenizer belongs to another model"
            )
        ids = torch.tensor(example.ids, device=self._model.device)
        count = len(example.ids) - example.start
        # the last token is a label only, and what it would predict is unused
        logits = self._model(input_ids=ids[None, :-1], **({"logits_to_keep": count} if self._keeps else {})).logits
        logits = logits[0, -count:]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        labels = ids[example.start :] if self._generator is None else self._sampled(logits.detach())
        return -torch.nn.functional.cross_entropy(logits, labels, reduction="sum")

    def _sampled(self, logits: torch.Tensor) -> torch.Tensor:
        """A label for each row of `logits` (labels, vocabulary); NaN gives any, and shows in the likelihood."""
        drawn = [
            torch.multinomial(torch.softmax(rows.cpu(), -1).nan_to_num(1.0), 1, generator=self._generator)[:, 0]
            for rows in logits.split(_ROWS)
        ]
        return torch.cat(drawn).to(logits.device)


def _add(
    likelihood: _Likelihood, squares: SquareSums, example: EncodedExample, data: str, checkpoint: Checkpoint
) -> float:
    """Add one example's squared gradient, and return its log-likelihood."""
    line = f"{data}: line {example.number}"
    try:
        value = likelihood(example)
    except InputError as error:
        raise InputError(f"{line}: {error}") from error
    result = float(value.detach())
    if not math.isfinite(result):
        raise WeightsError(
            f"{line}: its log-likelihood under {checkpoint.directory} is {result}; the weights are damaged, or "
            "overflow in this dtype: use float32"
        )
    value.backward()
    if names := squares.non_finite():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise WeightsError(
            f"{line}: its squared gradient is NaN or Inf in {', '.join(map(repr, names[:_NAMED]))}{more} of "
            f"{checkpoint.directory}; the weights are damaged, or overflow in this dtype: use float32"
        )
    return result


def _write(
    model: Any,
    fisher: dict[str, torch.Tensor],
    checkpoint: Checkpoint,
    untrained: frozenset[str],
    write: Callable[[str, NDArray[np.float32]], None],
) -> list[str]:
    """Write the tensors that the checkpoint stores, and return the names of those that are zero throughout."""
    model.to("meta")  # its weights are done with, and what was fused is copied now
    stored = as_stored(model, fisher)
    unused = []
    for tensor in floats_of(checkpoint):
        if tensor.name in untrained:
            values = np.zeros(tensor.shape, np.float32)
        else:
            values = stored[tensor.name].cpu().contiguous().numpy()
            if not values.any():
                unused.append(tensor.name)
        write(tensor.name, values)
    return unused


def _notes(untrained: frozenset[str], unused: list[str]) -> Iterator[str]:
    for names, what in ((sorted(untrained), "are buffers and not trained"), (unused, "no example depends on")):
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            yield f"zero: tensors that {what}: {', '.join(names[:_NAMED])}{more}"
