"""The task `search`: open-domain questions, NQ and 2WikiMultiHopQA, with a search tool in ZeroSearch's turn format.

The protocol is ZeroSearch's (Sun et al. 2025, arXiv:2505.04588; github.com/Alibaba-NLP/ZeroSearch, Apache-2.0), whose
prompt and environment replies are quoted verbatim from `inference.py` and `llm_agent/generation.py`. The
model thinks, searches between `<search>` tags, gets documents between `<information>` tags, and answers between
`<answer>` tags. Defaults are those of its validation: greedy, five searches of five documents, then one last turn, 500
tokens each.

Differences from the original:

- `em` is an exact match; the original counts an answer that contains a gold answer. `match=contains` does too.
- Answers are searched only in the model's own text. The original searches the whole text, where its prompt and its
  remark on invalid turns hold such tags too: a model that never answers has answered "Beijing" or "and".
- A gold answer that is empty after normalization ("A+", "---") is compared unnormalized, not as an empty text.
- Documents are cut at `max_information` characters, the original's text between its tags at 2048 tokens. It also drops
  the start of prompts over 4096 tokens; here, a conversation that is too long for the server is a failed request.
- `continuation=turn` passes documents in a user's turn, since a chat cannot continue an unfinished text. With
  `prefill`, the model continues its own text, as it was trained, if the server supports it (vLLM, SGLang).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessage, ChatMessageAssistant, ChatMessageUser, GenerateConfig, ModelOutput
from inspect_ai.scorer import Score, Scorer, Target, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from pydantic import Field

from ramerge_eval.data import from_hub, read_records, refuse, refuse_duplicates
from ramerge_eval.tasks import common, short_answers
from ramerge_eval.tasks.retrievers import Retriever, open_retriever

PROMPT = (
    "Answer the given question. "
    "You must conduct reasoning inside <think> and </think> first every time you get new information. "
    "After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query </search> "
    "and it will return the top searched results between <information> and </information>. "
    "You can search as many times as your want. "
    "If you find no further external knowledge needed, you can directly provide the answer inside <answer> and "
    "</answer>, without detailed illustrations. For example, <answer> Beijing </answer>. SearchQuestion: {question}\n"
)
INVALID = (
    "\nMy previous action is invalid. "
    "If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
NO_DOCUMENTS = "No information available"

_HUB = "RUC-NLPIR/FlashRAG_datasets"
_HUB_FILES = {"nq": "nq/test.jsonl", "2wiki": "2wikimultihopqa/dev.jsonl"}
_STOP = "</search>"
# as vLLM and SGLang name it
_CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
_LONGEST_QUERY = 2000  # characters; about what a turn of 500 tokens holds


@task
@common.with_validation
def search(
    subsets: common.Subsets = "nq,2wiki",
    nq: Path | None = None,
    wiki: Path | None = None,
    documents: Path | None = None,
    engine: Annotated[str, Field(pattern="^(bm25|https?://.+)$")] = "bm25",
    max_turns: Annotated[int, Field(ge=0)] = 5,
    topk: common.Count = 5,
    max_information: common.Count = 8192,
    match: Literal["exact", "contains"] = "exact",
    continuation: Literal["turn", "prefill"] = "turn",
    seed: common.Seed = 0,
) -> Task:
    """The task `search`: questions with a search tool, turn by turn (ZeroSearch).

    Args:
        subsets: nq, 2wiki, or both.
        nq: NQ-open, question and answer, or FlashRAG's layout; by default the hub's.
        wiki: 2WikiMultiHopQA, in its own or FlashRAG's layout; by default the hub's.
        documents: the documents to search: contents, or title and text.
        engine: bm25 over the documents, or a retriever's address.
        max_turns: the number of turns that are answered; one more turn ends the conversation.
        topk: documents per search.
        max_information: characters of documents per search.
        match: the answers that em counts; `contains` is the original's rule.
        continuation: how the model gets documents.
        seed: the seed of sampling.
    """
    files = {"nq": nq, "2wiki": wiki}
    names = common.choice(subsets, files)
    retriever = open_retriever(engine, documents)
    samples = common.for_each(names, lambda name: _samples(name, files[name]))
    return Task(
        dataset=[each for group in samples.values() for each in group],
        solver=_converse(retriever, max_turns, topk, max_information, continuation, seed),
        scorer=_answers(match),
        config=GenerateConfig(temperature=0.0, top_p=1.0, max_tokens=500),
    )


@solver(name="ramerge/search")
def _converse(
    retriever: Retriever, max_turns: int, topk: int, max_information: int, continuation: str, seed: int | None
) -> Solver:
    """Solver: turns of the model, with replies to searches. Stores each turn's kind: `search`, `answer` or None."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        messages: list[ChatMessage] = list(state.messages)
        turns: list[str] = []
        actions: list[str | None] = []
        while True:
            going_on = _CONTINUE if messages[-1].role == "assistant" else None  # with its own text
            output = await common.ask(state, messages, seed, len(turns), stop_seqs=[_STOP], extra_body=going_on)
            turns.append(_cut(output))
            action, content = _action(turns[-1])
            actions.append(action)
            if action == "answer" or len(turns) > max_turns:
                state.store.set("turns", turns)
                state.store.set("actions", actions)
                state.messages, state.output = [*messages, output.message], output
                return state
            response = INVALID
            if action == "search":  # the reply is worded as in the original
                results = await retriever.search(content[:_LONGEST_QUERY], topk) if content else ()
                lines = (" ".join(f"{each.title} {each.text}".split()) for each in results)
                documents = "\n".join(f"Doc {number}: {line}" for number, line in enumerate(lines, 1))
                response = f"\n\n<information>{documents[:max_information] or NO_DOCUMENTS}</information>\n\n"
            if continuation == "turn":
                messages += [ChatMessageAssistant(content=turns[-1]), ChatMessageUser(content=response.strip())]
            else:
                text = "".join(message.text for message in messages[1:])
                messages = [messages[0], ChatMessageAssistant(content=text + turns[-1] + response)]

    return solve


@scorer(name="ramerge/search", metrics=[common.shares()])
def _answers(match: str) -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        nothing = dict.fromkeys(("em", "f1"), (0.0, 1.0))
        if common.is_failed(state):
            return common.score_of(state, nothing, problem=common.FAILURE)
        actions = state.store.get("actions")
        details = {"searches": actions.count("search"), "invalid_turns": actions.count(None)}
        answers = [each for turn in state.store.get("turns") for each in _answers_in(turn)]
        if not answers:
            return common.score_of(state, nothing, problem="the model gave no answer between <answer> tags", **details)
        answer = answers[-1].strip()
        right = any(matches(answer, gold, is_partial=match == "contains") for gold in target)
        overlap = max(short_answers.f1(comparable(answer), comparable(gold)) for gold in target)
        return common.score_of(state, {"em": (float(right), 1.0), "f1": (overlap, 1.0)}, answer, **details)

    return score


def comparable(text: str) -> str:
    """Return a text normalized for `matches`, as in ZeroSearch's `qa_em.py`; unnormalized if nothing would be left."""
    return short_answers.normalized(text) or text.strip().lower()


def matches(answer: str, gold: str, *, is_partial: bool = False) -> bool:
    """Whether the answer of the task `search` equals, or contains, the gold answer, both normalized."""
    return comparable(gold) in comparable(answer) if is_partial else comparable(gold) == comparable(answer)


def _cut(output: ModelOutput) -> str:
    """Cut a turn of the model after its first search or, without a search, its first answer.

    Servers leave out the text at which they stop, so an open search gets its closing tag back.
    """
    text = common.text_of(output)
    is_open = text.rfind("<search>") > max(text.rfind("</search>"), text.rfind("</answer>"))
    if is_open and not common.is_cut(output):
        text += "</search>"
    for end in ("</search>", "</answer>"):
        if end in text:
            return text[: text.index(end)] + end
    return text


def _action(turn: str) -> tuple[str | None, str]:
    """Return the first complete search or answer of a turn, and its content; or None and an empty text.

    Equivalent to a search for `<(search|answer)>(.*?)</\\1>`, which takes quadratic time if many tags stay open.
    """
    actions = []
    for name in ("search", "answer"):
        start = turn.find(f"<{name}>")
        end = turn.find(f"</{name}>", start)
        if 0 <= start < end:
            actions.append((start, name, turn[start + len(name) + 2 : end].strip()))
    return min(actions)[1:] if actions else (None, "")


def _answers_in(turn: str) -> list[str]:
    """Return the texts between tags, as `<answer>(.*?)</answer>` finds them, in linear time."""
    parts = turn.split("</answer>")[:-1]
    return [part.split("<answer>", 1)[1] for part in parts if "<answer>" in part]


def _samples(subset: str, path: Path | None) -> list[Sample]:
    """Read samples of the task `search`, from a file in the layout of NQ-open, 2WikiMultiHopQA or FlashRAG."""
    if path is None:
        instead = (
            f"give --data {'wiki' if subset == '2wiki' else subset}=FILE, JSON with question and answer or "
            "golden_answers, a text or a list of texts"
        )
        path = from_hub(_HUB, _HUB_FILES[subset], task=f"search/{subset}", instead=instead)
    records = read_records(path, {"question": str})
    problems = []
    for number, record in enumerate(records, 1):
        golden = _golden(record)
        if not record["question"].strip():
            problems.append(f"{path}, record {number:,}: question is empty")
        elif not golden or not all(isinstance(each, str) and each.strip() for each in golden):
            what = "a text or a list of texts, none of them empty"
            problems.append(f"{path}, record {number:,}: needs golden_answers or answer: {what}")
    refuse(problems)
    keys = [str(record.get("id", record.get("_id", number))) for number, record in enumerate(records, 1)]
    refuse_duplicates(path, keys)
    samples = []
    for key, record in zip(keys, records, strict=True):
        question = record["question"].strip()
        prompt = PROMPT.format(question=question if question.endswith("?") else f"{question}?")
        samples.append(common.sample(subset, key, prompt, list(_golden(record))))
    return samples


def _golden(record: Mapping[str, Any]) -> Sequence[Any]:
    answers = record.get("golden_answers", record.get("answer"))
    return answers if isinstance(answers, list) else [answers]
