"""What Inspect finds by the entry point `ramerge`: tasks, and the sandbox `bubblewrap`.

All tasks take `subsets` (names, with commas between them; `all`), `data` (files by the name of a data set), generation
settings such as `temperature`, which Inspect's own options override, `seed`, and the parameters of their settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from inspect import signature
from typing import Any

from inspect_ai import Task, task

from ramerge.evaluation.benchmark import Benchmark
from ramerge.evaluation.sandbox import provider as provider
from ramerge.evaluation.tasks.bridge import benchmark_task
from ramerge.foundation.errors import EvaluationError
from ramerge.foundation.text import unknown

Data = Mapping[str, str] | None

_BENCHMARKS = {
    "coding": "coding.benchmark:CodingBenchmark",
    "tool": "tool.benchmark:ToolBenchmark",
    "memory": "memory.benchmark:MemoryBenchmark",
    "search": "search:SearchBenchmark",
    "ifeval": "ifeval:IfevalBenchmark",
    "math": "math:MathBenchmark",
    "rewards": "rewards:RewardsBenchmark",
}


def benchmark(name: str) -> type[Benchmark[Any]]:
    """The class of a benchmark, which is imported when it is needed."""
    if name not in _BENCHMARKS:
        raise EvaluationError(unknown("task", f"ramerge/{name}", [f"ramerge/{each}" for each in _BENCHMARKS]))
    module, _, attribute = _BENCHMARKS[name].partition(":")
    found: type[Benchmark[Any]] = getattr(import_module(f"ramerge.evaluation.tasks.{module}"), attribute)
    return found


def parameters(name: str) -> list[str]:
    """What the task ramerge/NAME can be given, files of the user included.

    Raises:
        EvaluationError: there is no such task.
    """
    found = benchmark(name)
    return [*signature(globals()[name]).parameters, *found.settings_type.model_fields, *found.data]


@task
def coding(subsets: str | None = None, data: Data = None, sandbox: str = "bubblewrap", **parameters: Any) -> Task:
    """Programs and unit tests, run against each other and the truth (CURE).

    Args:
        subsets: of livebench, livecodebench (these two by default), mbpp, codecontests, codeforces and humaneval.
        data: files in CURE's layout, or MBPP's own.
        sandbox: where programs run: `bubblewrap`, `docker`, or `local`, which is none.
        **parameters: of `CodingSettings`, such as `programs`, `tests` and `bon`.
    """
    return benchmark_task(benchmark("coding"), subsets, data, parameters, sandbox=sandbox)


@task
def tool(subsets: str | None = None, data: Data = None, **parameters: Any) -> Task:
    """Function calls (BFCL), judged by bfcl-eval's own checker; by default the four parallel subsets of 13.

    `data` may have `bfcl`, a folder like bfcl_eval/data; parameters are those of `ToolSettings`, such as `mode`.
    """
    return benchmark_task(benchmark("tool"), subsets, data, parameters)


@task
def memory(subsets: str | None = None, data: Data = None, tokenizer: str | None = None, **parameters: Any) -> Task:
    """Questions on long contexts, read chunk by chunk (MemAgent on RULER).

    Args:
        subsets: hotpotqa_50 to hotpotqa_6400 (documents), squad_8k to squad_128k (tokens).
        data: `hotpotqa`, `hotpotqa_questions`, `squad`.
        tokenizer: the model's tokenizer.json or its folder; `ramerge eval` takes it from the model.
        **parameters: of `MemorySettings`, such as `samples` and `chunk_tokens`.
    """
    return benchmark_task(benchmark("memory"), subsets, data, parameters, tokenizer=tokenizer)


@task
def search(subsets: str | None = None, data: Data = None, **parameters: Any) -> Task:
    """Questions with a search tool, turn by turn (ZeroSearch): nq and 2wiki.

    `data` may have `nq`, `2wiki`, and `documents`, which are searched; parameters are those of `SearchSettings`.
    """
    return benchmark_task(benchmark("search"), subsets, data, parameters)


@task
def ifeval(data: Data = None, **parameters: Any) -> Task:
    """Instructions that a program can check (IFEval, with lm-eval's checkers), of `data`'s `ifeval` or the hub."""
    return benchmark_task(benchmark("ifeval"), None, data, parameters)


@task
def math(subsets: str | None = None, data: Data = None, **parameters: Any) -> Task:
    """GSM8K and MATH500 (gsm8k, math500), with lm-eval's prompts and checkers.

    `data` may have `gsm8k`, `gsm8k_train` and `math500`; parameters are those of `MathSettings`, such as `fewshot`.
    """
    return benchmark_task(benchmark("math"), subsets, data, parameters)


@task
def rewards(prompts: str | None = None, function: str = "", **parameters: Any) -> Task:
    """Your own prompts, scored by a reward function in verl's form.

    Args:
        prompts: JSON lines or verl's parquet: prompt, reward_model with ground_truth, data_source, extra_info.
        function: file.py:compute_score or module:compute_score.
        **parameters: of `RewardsSettings`.
    """
    data = {"prompts": prompts} if prompts else None
    return benchmark_task(benchmark("rewards"), None, data, {"function": function, **parameters})
