"""MemAgent's prompts, verbatim; finds and scores the answer in a reply, as in MemAgent's evaluation.

Source: github.com/BytedTsinghua-SIA/MemAgent, Apache-2.0: taskutils/memory_eval/utils (recurrent, __init__) and
taskutils/memory_data/synthetic/constants.py; the latter is from RULER, by NVIDIA, Apache-2.0.
"""

from __future__ import annotations

from ramerge_eval.tasks.short_answers import f1, normalized

METRICS = ("sub_em", "em", "f1")
NO_MEMORY = "No previous memory"
SQUAD_PROBLEM = "Answer the question based on the given documents. {question}"

_SECTION = """You are presented with a problem, a section of an article that may contain the answer to the problem, \
and a previous memory. Please read the provided section carefully and update the memory with the new information that \
helps to answer the problem. Be sure to retain all relevant details from the previous memory while adding any new, \
useful information.

<problem>\x20
{problem}
</problem>

<memory>
{memory}
</memory>

<section>
{section}
</section>

Updated memory:
"""

_FINAL = """You are presented with a problem and a previous memory. Please answer the problem based on the previous \
memory and format your response as follows "Therefore, the answer is (insert answer here)".

<problem>\x20
{problem}
</problem>

<memory>
{memory}
</memory>

Your answer:
"""

_ANSWER_MARK = "the answer is"
_MARKERS = ("<｜Assistant｜>", "<｜end▁of▁sentence｜>")
_CLOSED_ANSWERS = ("yes", "no", "noanswer")


def section(problem: str, memory: str, text: str) -> str:
    """Return the prompt that turns a memory and the next section of the context into a new memory."""
    return _SECTION.format(problem=problem, memory=memory, section=text)


def final(problem: str, memory: str) -> str:
    """Return the prompt for the answer from the memory only."""
    return _FINAL.format(problem=problem, memory=memory)


def after_thinking(reply: str) -> str:
    """Return the reply after the last `</think>`; the whole reply without one."""
    return reply.rsplit("</think>", 1)[1].strip() if "</think>" in reply else reply


def answer(reply: str) -> str | None:
    """Return the answer in a reply: the text after the last "the answer is", without asterisks and outer periods, or
    None.
    """
    text = reply.strip()
    text = (after_thinking(text) or text).replace("*", "")
    if _ANSWER_MARK not in text:
        return None
    rest = text.rsplit(_ANSWER_MARK, 1)[1].strip()
    for marker in _MARKERS:
        rest = rest.replace(marker, "")
    return rest.strip().strip(".").strip()


def score(prediction: str, gold: str) -> dict[str, float]:
    """Score an answer on a long context: each of `METRICS`, from 0 to 1.

    Both texts are normalized: lower case, without ASCII punctuation, articles and outer or double spaces. `sub_em` is 1
    if one of the two contains the other; `em` is 1 if they are equal; `f1` is F1 of their words, 0 if only one is
    yes or no. A text that is empty after normalizing is right only if both are equal without case; in the original,
    every text contains it.
    """
    words, gold_words = normalized(prediction), normalized(gold)
    if not (words and gold_words):
        return dict.fromkeys(METRICS, float(prediction.strip().lower() == gold.strip().lower()))
    is_closed = words != gold_words and (words in _CLOSED_ANSWERS or gold_words in _CLOSED_ANSWERS)
    overlap = 0.0 if is_closed else f1(words, gold_words)
    return {
        "sub_em": float(gold_words in words or words in gold_words),
        "em": float(words == gold_words),
        "f1": overlap,
    }
