"""Serve merges of real agents by vLLM and `transformers serve`, and compare replies with those of the model in memory.

    make serve-check
    PATH=FOLDER/OF/VLLM:$PATH python lab/real/servers.py --work .real/served --base .real/base

All replies are greedy. Four things are tried: a merge with RAM+, served by both servers; a merge of adapters that is an
adapter itself (`--as-adapter`), by vLLM; `ramerge eval --serve`; and `ramerge search --serve`. With --write, results
are kept in lab/results/servers.json, from which `python -m docs.tables` renders the table of docs/results/servers.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import torch
from peft import PeftModel
from reward import compute_score, records
from tasks import ALL_TASKS
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import ramerge
from ramerge.calibration.exchanges import read_exchanges
from ramerge.scoring.serving import RunningServer, serving

AGENTS = ("call", "needle")
ASKED = ("call", "needle", "fact", "steps")
"""Tasks whose prompts are asked: the agents', another one, and one with long replies."""
DTYPES = ("bfloat16", "float32")
MOST_TOKENS = 32
CANDIDATES = "parameters.r=0.1,0.1001"
"""The search has two that mass does not separate, because only then are they asked for replies."""
GAPS = {"bfloat16": 0.5, "float32": 0.01}
"""Two tokens whose logits differ by less are a tie, which kernels may break in two ways."""
SECONDS = 3600.0
"""For a server to start, on a machine that does much else."""
VLLM = ("--max-model-len", "2048", "--enforce-eager")
RESULTS = Path(__file__).parents[1] / "results" / "servers.json"
FUNCTION = f"{Path(__file__).with_name('reward.py')}:compute_score"

Record = dict[str, Any]
"""A prompt in verl's form."""
Row = dict[str, Any]


class Reference:
    """Greedy replies of the model in memory by `model.generate`, one prompt at a time.

    Attributes:
        ids: the tokens of each reply.
        gaps: by token, how far the most likely one was ahead of the next, in logits.
        texts: each reply.
    """

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, asked: Sequence[Record]) -> None:
        self._tokenizer = tokenizer
        self.ids: list[list[int]] = []
        self.gaps: list[list[float]] = []
        for record in asked:
            prompt = tokenizer.apply_chat_template(
                record["prompt"], add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            output = model.generate(
                **prompt,
                max_new_tokens=MOST_TOKENS,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
            )
            self.ids.append(output.sequences[0, prompt["input_ids"].shape[1] :].tolist())
            best = torch.stack([logits[0].float().topk(2).values for logits in output.logits])
            self.gaps.append((best[:, 0] - best[:, 1]).tolist())
        self.texts = [self._text(ids) for ids in self.ids]

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def compare(self, texts: Sequence[str]) -> Row:
        """Compare a server's replies with these: how many are equal, and where each other one differs first."""
        differences = []
        for place, (ids, text) in enumerate(zip(self.ids, texts, strict=True)):
            if text != self.texts[place]:
                same = max(count for count in range(len(ids)) if text.startswith(self._text(ids[:count])))
                gap = round(self.gaps[place][same], 4)
                differences.append({"prompt": place, "token": same, "gap": gap, "texts": [self.texts[place], text]})
        return {"prompts": len(texts), "equal": len(texts) - len(differences), "differences": differences}


def prompts(count: int) -> list[Record]:
    """Held-out problems of all tasks that are asked, with the name of their task in `data_source`."""
    return [record for task in ASKED for record in records(ALL_TASKS[task], count, 0)]


def write_lines(path: Path, lines: Sequence[Record]) -> Path:
    """Write records as JSON Lines."""
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def rewards_of(texts: Sequence[str], asked: Sequence[Record]) -> list[float]:
    """The reward of each reply."""
    return [
        compute_score(record["data_source"], text, record["reward_model"]["ground_truth"], {})
        for text, record in zip(texts, asked, strict=True)
    ]


def server_of(kind: str, dtype: str, *more: str) -> ramerge.ModelServer:
    """A server that computes in a dtype."""
    return ramerge.ModelServer(kind, ["--dtype", dtype, *(VLLM if kind == "vllm" else ()), *more], SECONDS)


def replies(running: RunningServer, model: str, asked: Sequence[Record]) -> list[str]:
    """The replies of a server to chats, one at a time, as any client would ask for them."""
    texts = []
    with httpx.Client(timeout=600, trust_env=False) as client:
        for record in asked:
            body = {"model": model, "messages": record["prompt"], "max_tokens": MOST_TOKENS, "temperature": 0}
            answer = client.post(f"{running.url}/chat/completions", json=body)
            answer.raise_for_status()
            texts.append(answer.json()["choices"][0]["message"]["content"] or "")
    return texts


def asked_of(
    server: ramerge.ModelServer, model: Path, asked: Sequence[Record], log: Path, name: str | None = None
) -> tuple[list[str], Row]:
    """Replies of a server that is started for a folder, and what is to be known of it.

    Args:
        name: of an adapter that the server has loaded; default: the model itself.
    """
    began = time.perf_counter()
    with serving(server, str(model.resolve()), "model", log) as running:
        ready = time.perf_counter()
        texts = replies(running, name or running.model, asked)
        row = {"seconds to start": round(ready - began), "seconds to reply": round(time.perf_counter() - ready, 1)}
        if server.kind == "vllm":
            row["version"] = httpx.get(f"{running.url.removesuffix('/v1')}/version", trust_env=False).json()["version"]
    return texts, row


def run(*words: object) -> float:
    """Run a command of ramerge; the seconds that it took."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "ramerge", *map(str, words)], check=True)
    return round(time.perf_counter() - began)


class Check:
    """The four parts, each with rows of results.

    Args:
        arguments: of the command line.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.base: Path = arguments.base
        self.work: Path = arguments.work
        self.out: Path = arguments.work / "servers"
        self.out.mkdir(parents=True, exist_ok=True)
        self.prompts = prompts(arguments.prompts)
        self.agents = [word for task in AGENTS for word in ("--agent", f"{task}={self.work / 'sft' / task}")]
        self.merge = self.out / "merge"
        self._references: dict[tuple[str, str], Reference] = {}

    def reference(self, dtype: str, adapter: Path | None = None) -> Reference:
        """The replies of the merge, or of the base with an adapter, in memory."""
        key = (dtype, str(adapter))
        if key not in self._references:
            folder = self.merge if adapter is None else self.base
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
            if adapter is not None:
                model = PeftModel.from_pretrained(model, adapter).to(getattr(torch, dtype)).eval()
            self._references[key] = Reference(model, AutoTokenizer.from_pretrained(folder), self.prompts)
        return self._references[key]

    def replies_of_a_merge(self) -> Iterator[Row]:
        """A merge with RAM+, by both servers in both dtypes."""
        run("merge", "--method", "ram+", "--base", self.base, *self.agents, self.merge, "--overwrite", "--quiet")
        for kind in ("vllm", "transformers"):
            for dtype in DTYPES:
                texts, row = asked_of(server_of(kind, dtype), self.merge, self.prompts, self.out / "merge.log")
                compared = self.reference(dtype).compare(texts)
                yield {"what": "merge", "server": kind, "dtype": dtype, **row, **compared}

    def replies_of_an_adapter(self) -> Iterator[Row]:
        """A merge of adapters as an adapter, by vLLM next to its base."""
        adapters = [word for task in AGENTS for word in ("--agent", f"{task}={self.work / 'lora' / task}")]
        adapter = self.out / "adapter"
        words = ["--as-adapter", "--method", "task_arithmetic", "--base", self.base, *adapters]
        run("merge", *words, adapter, "--overwrite", "--quiet")
        rank = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))["r"]
        flags = ["--enable-lora", "--max-lora-rank", str(rank), "--lora-modules", f"adapter={adapter.resolve()}"]
        for dtype in DTYPES:
            server = server_of("vllm", dtype, *flags)
            texts, row = asked_of(server, self.base, self.prompts, self.out / "adapter.log", "adapter")
            compared = self.reference(dtype, adapter).compare(texts)
            yield {"what": "adapter", "server": "vllm", "dtype": dtype, **row, **compared}

    def scores(self) -> Iterator[Row]:
        """`ramerge eval --serve` on the same prompts."""
        from ramerge_eval.logs import read

        lines = write_lines(self.out / "prompts.jsonl", self.prompts)
        expected = rewards_of(self.reference("float32").texts, self.prompts)
        logs = self.out / "scores"
        shutil.rmtree(logs, ignore_errors=True)
        settings = {
            "rewards.prompts": lines,
            "rewards.function": FUNCTION,
            "max_tokens": MOST_TOKENS,
            "temperature": 0,
        }
        flags = [word for name, value in settings.items() for word in ("--task-set", f"{name}={value}")]
        asked = ["--model", f"merge={self.merge}", "--task", "ramerge/rewards", *flags]
        seconds = run("eval", logs, *asked, *served("vllm"), "--quiet")
        samples = read(logs)[0].tasks["rewards", "prompts"]
        by_key = dict(zip(samples.keys, samples.metrics["reward"][:, 0].tolist(), strict=True))
        rewards = [by_key[key] for key in sorted(by_key, key=lambda key: int(key.partition("/")[2]))]
        yield {"server": "vllm", "seconds": seconds, **compared_rewards(rewards, expected)}

    def searches(self) -> Iterator[Row]:
        """`ramerge search --prompts --reward --generate` in memory, and with each server."""
        files = [
            word
            for task in AGENTS
            for path in [write_lines(self.out / f"{task}.jsonl", records(ALL_TASKS[task], 32, 1))]
            for word in ("--prompts", f"{task}={path}")
        ]
        words = ["--base", self.base, *self.agents, *files, "--reward", FUNCTION, "--max-new", MOST_TOKENS]
        words += ["--prompt-count", 8, "--method", "ram+", "--vary", CANDIDATES, "--no-html", "--quiet"]
        folders = {kind: self.out / f"search-{kind}" for kind in ("memory", "vllm")}
        seconds = {}
        for kind, folder in folders.items():
            shutil.rmtree(folder, ignore_errors=True)
            seconds[kind] = run("search", *words, *(["--generate"] if kind == "memory" else served(kind)), folder)
        yield {"server": "vllm", "seconds": seconds["vllm"], **compared_searches(*folders.values())}


def served(kind: str) -> list[str]:
    """Flags of a command for a server in float32, as the model in memory is computed on a CPU."""
    server = server_of(kind, "float32")
    return ["--serve", kind, "--serve-args", shlex.join(server.arguments), "--serve-timeout", str(server.timeout)]


def compared_rewards(rewards: Sequence[float], expected: Sequence[float]) -> Row:
    """Mean rewards, and how many prompts have the same one."""
    equal = sum(one == other for one, other in zip(rewards, expected, strict=True))
    means = [round(sum(each) / len(each), 4) for each in (rewards, expected)]
    return {"prompts": len(rewards), "equal": equal, "mean": means[0], "expected": means[1]}


def compared_searches(first: Path, second: Path) -> Row:
    """The best points of two searches, and how many of the candidates' own replies are equal."""
    best = [json.loads((each / "search.json").read_text(encoding="utf-8"))["best"] for each in (first, second)]
    texts, others = texts_of(first), texts_of(second)
    keys = texts.keys() | others.keys()
    return {"best": best, "prompts": len(keys), "equal": sum(texts.get(key) == others.get(key) for key in keys)}


def texts_of(search: Path) -> Mapping[tuple[str, str, str], str]:
    """Own replies of candidates, by candidate, agent and prompt."""
    return {
        (path.parent.name.partition("-")[0], path.stem, each.key): each.text
        for path in (search / "replies").rglob("*.jsonl")
        for each in read_exchanges(path)
    }


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, default=Path(".real/base"))
    parser.add_argument("--work", type=Path, default=Path(".real/served"), help="folder of sft/TASK and lora/TASK")
    parser.add_argument("--prompts", type=int, default=5, help="prompts of each task")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts; others keep their results"
    )
    parser.add_argument("--write", action="store_true", help=f"keep the results in {RESULTS.name}")
    return parser.parse_args()


PARTS: Mapping[str, Callable[[Check], Iterator[Row]]] = {
    "merge": Check.replies_of_a_merge,
    "adapter": Check.replies_of_an_adapter,
    "eval": Check.scores,
    "search": Check.searches,
}


def main() -> None:
    """Try all parts."""
    arguments = parse_arguments()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GB; vLLM on a CPU reserves half of the memory otherwise
    check = Check(arguments)
    faults = []
    for name in arguments.only:
        rows: list[Row] = []
        for row in PARTS[name](check):
            print(json.dumps(row), flush=True)
            rows.append(row)
            if not agrees(row):
                faults.append(f"{name}: {json.dumps(row)}")
            if arguments.write:
                keep(name, rows)
    if faults:
        raise SystemExit("\n".join(["not the replies of the model in memory:", *faults]))


def agrees(row: Row) -> bool:
    """Whether a server's results are those of the model in memory, but for ties."""
    if "differences" in row:
        return all(each["gap"] <= GAPS[row["dtype"]] for each in row["differences"])
    return 0 < row["prompts"] == row["equal"] and len(set(row.get("best", [0]))) == 1


def keep(part: str, rows: Sequence[Row]) -> None:
    """Keep the results of a part, with the date and the versions that it ran with."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    results[part] = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "versions": {package: version(package) for package in ("ramerge", "transformers", "torch", "peft")},
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
