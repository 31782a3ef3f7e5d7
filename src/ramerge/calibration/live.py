"""A language model in memory, which gets the weights of agents and merges; it scores and generates. Imports torch.

It is loaded once, from the base. Weights of other models replace its own as they are read or merged, so no file is
written, and formats that transformers does not know work, too.
"""

from __future__ import annotations

import hashlib
import inspect
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList
from transformers.utils import logging

import ramerge
from ramerge import CheckpointError, MergedTensor, PlanError
from ramerge.calibration.offload import Offloaded
from ramerge.core.foundation.devices import device_name
from ramerge.core.foundation.dtypes import FLOATS

ADVICE = "use a device with more memory, shorter prompts, or device=cpu"
_MOST_NAMES = 3
_VIEWS = 2  # a fused tensor of experts holds at most so many matrices of each expert


class LiveModel:
    """A language model whose weights can be replaced; made and closed by `LiveBase`.

    Attributes:
        targets: the memory that holds each tensor of a checkpoint, by name.
        offloaded: the weights that stay in main memory; None if all are on the device.
    """

    def __init__(self, folder: Path, device: torch.device, dtype: str, budget: int | None = None) -> None:
        self.folder = folder
        self.device = device
        self.dtype = dtype
        self.model: Any = _load_model(folder, dtype)
        self.offloaded: Offloaded | None = Offloaded(self.model, device, budget) if budget is not None else None
        if self.offloaded is None:
            self.model.to(device)
        if hasattr(self.model, "set_experts_implementation"):  # else experts are multiplied all at once, unseen
            self.model.set_experts_implementation("eager")
        self.targets: dict[str, torch.Tensor] = _writable_parts(self.model)
        self._rows: Mapping[str, int] = {}
        self._untied = False
        self._limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        self._can_limit_logits = "logits_to_keep" in inspect.signature(self.model.forward).parameters

    @property
    def positions(self) -> int | None:
        """The most tokens of a sequence, from the configuration; None if not stated."""
        return self._limit if isinstance(self._limit, int) and self._limit > 1 else None

    @property
    def vocabulary(self) -> int:
        """The number of rows of the input embeddings."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def fit(self, rows: Mapping[str, int], *, untied: bool) -> None:
        """Resize the embeddings for the model whose weights are put in next.

        Args:
            rows: row counts of its embeddings and output head, by name; further rows of a tensor are ignored.
            untied: whether its head is a separate tensor although the model's configuration ties it to the embeddings.
        """
        self._rows = rows
        embeddings, head = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        weight = embeddings.weight
        are_tied = head is not None and head.weight is weight
        if are_tied if untied else self._untied:
            head.weight = torch.nn.Parameter(weight.detach().clone()) if untied else weight
            self._untied, self.targets = untied, _writable_parts(self.model)
        for module in (embeddings, head):
            if module is None:
                continue
            memory = module.weight.untyped_storage().data_ptr()
            names = [name for name, one in self.targets.items() if one.untyped_storage().data_ptr() == memory]
            count = next((rows[name] for name in names if name in rows), len(module.weight))
            if count != len(module.weight):
                module.weight.data = module.weight.data.new_zeros(count, *module.weight.shape[1:])
                self.targets = _writable_parts(self.model)

    def put(self, tensors: Iterable[MergedTensor]) -> None:
        """Replace the weights of the model by those of a merge.

        Raises:
            CheckpointError: a tensor has no counterpart in the model that transformers has made.
        """
        unmatched = []
        prefix = f"{self.model.base_model_prefix}."
        buffers = {name.removeprefix(prefix) for name, _ in self.model.named_buffers()}
        for tensor in tensors:
            target, rows = self.targets.get(tensor.name), self._rows.get(tensor.name)
            shape = tensor.shape if rows is None else (rows, *tensor.shape[1:])
            if target is not None and tuple(target.shape) == shape:
                values = tensor.torch()
                target.copy_(values if rows is None else values[:rows])  # detached, so that no gradient is recorded
            elif tensor.dtype in FLOATS and not (
                tensor.name.removeprefix(prefix) in buffers or tensor.name.endswith("inv_freq")
            ):
                unmatched.append(tensor.name)
        if unmatched:
            more = f" and {len(unmatched) - _MOST_NAMES:,} more" if len(unmatched) > _MOST_NAMES else ""
            raise CheckpointError(
                f"{self.folder}: transformers {transformers.__version__} has no place for "
                f"{', '.join(map(repr, unmatched[:_MOST_NAMES]))}{more} in the model that it makes of this checkpoint; "
                "statistics and agreement need a model that it loads with all weights (merging without prompts works)"
            )

    def losses(self, ids: Sequence[int], start: int) -> torch.Tensor:
        """Return -log p of each token from position `start` on, given the tokens before it; differentiable."""
        labels = torch.tensor(ids[start:], device=self.device)
        # logits of the prompt would take as much memory as all other activations together
        more = {"logits_to_keep": len(labels)} if self._can_limit_logits else {}
        with self._blame_model_code():
            output = self.model(input_ids=torch.tensor([ids[:-1]], device=self.device), **more)
        logits = output.logits[0, -len(labels) :]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none")

    def negative_log_likelihoods(self, ids: Sequence[int], start: int) -> torch.Tensor:
        """Return `losses` without gradients, as float64 on the CPU."""
        with torch.inference_mode(), self._naming_memory(ids):
            return self.losses(ids, start).double().cpu()

    def run_layers(self, ids: Sequence[int]) -> None:
        """Run the layers without the output head, to record their inputs."""
        with torch.inference_mode(), self._naming_memory(ids), self._blame_model_code():
            self.model.base_model(input_ids=torch.tensor([ids], device=self.device), use_cache=False)

    def _naming_memory(self, ids: Sequence[int]) -> AbstractContextManager[None]:
        return explain_memory_errors(f"a prompt with its reply, {len(ids):,} tokens", self.device, ADVICE)

    @contextmanager
    def _blame_model_code(self) -> Iterator[None]:
        """Turn an error in the model's own code into a CheckpointError; errors in ramerge's hooks pass unchanged."""
        try:
            yield
        except (torch.cuda.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            *_, (frame, line) = traceback.walk_tb(error.__traceback__)
            if frame.f_globals.get("__name__", "").partition(".")[0] == ramerge.__name__:
                raise
            what = f"the code of its model, {type(self.model).__name__}, fails"
            where = f"{Path(frame.f_code.co_filename).name}, line {line}"
            reason = str(error).strip().partition("\n")[0]
            text = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
            raise CheckpointError(
                f"{self.folder}: {what} in a forward pass ({where}, transformers {transformers.__version__}): {text}; "
                "run the model alone on a prompt to find why (merging without prompts works)"
            ) from error

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        most: int,
        pad: int,
        ends: Sequence[int],
        draws: LogitsProcessor | None = None,
    ) -> list[list[int]]:
        """Generate continuations of prompts, at most `most` tokens each, including the end token.

        Args:
            pad: the token id that fills shorter prompts on the left; it is masked.
        """
        longest = max(map(len, prompts))
        ids = torch.tensor([[pad] * (longest - len(one)) + list(one) for one in prompts], device=self.device)
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts], device=self.device)
        config = transformers.GenerationConfig(
            max_new_tokens=most, do_sample=False, pad_token_id=pad, eos_token_id=list(ends) or None, use_cache=True
        )
        with torch.inference_mode(), self._blame_model_code():
            token_rows = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=config,
                logits_processor=LogitsProcessorList([draws] if draws is not None else []),
            )
        rows = token_rows[:, longest:].tolist()
        stops = [next((place for place, token in enumerate(row, 1) if token in ends), None) for row in rows]
        return [row[:stop] for row, stop in zip(rows, stops, strict=True)]  # the rest is padding


class SeededDraws(LogitsProcessor):  # type: ignore[misc]  # transformers is not typed for mypy
    """Makes greedy generation sample: with Gumbel noise, the largest logit is a draw from the softmax at a temperature.

    Each prompt has its own noise, so its continuation does not depend on the other prompts of a batch.
    Source: Maddison, Tarlow and Minka, A* Sampling, 2014, arXiv 1411.0030, section 2.
    """

    def __init__(self, temperature: float, seeds: Sequence[str]) -> None:
        self._temperature = temperature
        digests = [hashlib.sha256(seed.encode()).digest() for seed in seeds]
        self._generators = [np.random.default_rng(int.from_bytes(digest, "big")) for digest in digests]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token of each prompt, with noise."""
        noise = np.stack([one.gumbel(size=scores.shape[-1]) for one in self._generators])
        return scores.float() / self._temperature + torch.from_numpy(noise).to(scores.device, torch.float32)


def _writable_parts(model: Any) -> dict[str, torch.Tensor]:
    """Map each name that a checkpoint may have to the part of a parameter or buffer that holds the tensor.

    If transformers splits a fused tensor when it saves (such as an expert's two projections), each part is located in
    the fused tensor by its first row.
    """
    state = model.state_dict()  # also buffers that checkpoints store, such as biases that balance the use of experts
    memory = {each.untyped_storage().data_ptr() for each in state.values()}
    targets: dict[str, torch.Tensor] = {}
    copies: dict[str, torch.Tensor] = {}
    for name, value in rename_to_checkpoint_names(model, state).items():
        shares = value.untyped_storage().data_ptr() in memory
        (targets if shares else copies)[name] = value
    if copies:
        rows = {
            part[start].float().cpu().numpy().tobytes(): part[start:]
            for tensor in state.values()
            if tensor.ndim == 3
            for part in tensor
            for start in range(0, len(part), max(len(part) // _VIEWS, 1))
        }
        for name, value in copies.items():
            part = rows.get(value[0].float().cpu().numpy().tobytes()) if value.ndim == 2 else None
            if part is not None and len(part) >= len(value) and torch.equal(part[: len(value)], value):
                targets[name] = part[: len(value)]
    return targets


# --- loading ----------------------------------------------------------------------------------------------------------


def _load_model(folder: Path, dtype: str) -> Any:
    """Load the model on the CPU, in evaluation mode; refuse it if transformers would initialize missing weights."""
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    key = "dtype" if version >= (4, 56) else "torch_dtype"
    model, report = _load_from_folder(
        AutoModelForCausalLM, folder, output_loading_info=True, **{key: getattr(torch, dtype)}
    )
    if report["missing_keys"]:
        raise CheckpointError(
            f"{folder}: lacks {', '.join(sorted(report['missing_keys']))}; without them its architecture is no causal "
            "language model, and transformers would make random ones"
        )
    model.config.use_cache = False
    return model.eval()


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a folder."""
    return _load_from_folder(AutoTokenizer, folder)


def _load_from_folder(kind: Any, folder: Path, **options: Any) -> Any:
    """Load a model or tokenizer from local files, without running code from the folder."""
    try:
        return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
    except Exception as error:  # transformers and what it calls raise anything over files that are not what they should
        what = "tokenizer" if kind is AutoTokenizer else "causal language model"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"{folder}: transformers {transformers.__version__} cannot load a {what} from it: {reason}"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """A context in which transformers prints no messages and progress bars."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """A context in which torch uses `number` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if number is None else number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def explain_memory_errors(what: str, device: torch.device, advice: str) -> Iterator[None]:
    """A context that reports which data do not fit into a device's memory, with advice."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise PlanError(f"{what}: does not fit into the memory of {device_name(device)}; {advice}") from error


def rename_to_checkpoint_names(model: Any, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors of a model's state dict, or others with these shapes, under all names that a checkpoint may have.

    Versions of transformers rename, fuse and permute weights when they load some architectures. This moves elements and
    changes none, so it can be reverted for weights and for anything computed per weight.
    """
    renamed_values = dict(values)
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before version 5, which began to convert
        pass
    else:
        with suppress(Exception):  # nothing promises that every conversion has a way back; others are found below
            renamed_values |= revert_weight_conversion(model, dict(values))
    prefix = f"{model.base_model_prefix}."
    # transformers loads a checkpoint of the model without its head, which lacks the prefix, as well
    short = {name.removeprefix(prefix): value for name, value in renamed_values.items() if name.startswith(prefix)}
    return {**short, **renamed_values}
