"""What the model is told, word for word from MemAgent's evaluation.

Source: github.com/BytedTsinghua-SIA/MemAgent, Apache-2.0: taskutils/memory_eval/utils (recurrent, recurrent_boxed,
openai_api, boxed) and taskutils/memory_data/synthetic/constants.py; the latter is from RULER, by NVIDIA, Apache-2.0.
"""

from __future__ import annotations

from ramerge.evaluation.benchmark import Message

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
memory and {form}.

<problem>\x20
{problem}
</problem>

<memory>
{memory}
</memory>

Your answer:
"""

_FINAL_FORMS = {
    "sentence": 'format your response as follows "Therefore, the answer is (insert answer here)"',
    "boxed": "put the answer in \\boxed{}",
}

_WHOLE_FORMS = {
    "sentence": 'Format your response as follows: "Therefore, the answer is (insert answer here)".',
    "boxed": "Put the answer in \\boxed{{}}.",  # both pairs of braces are sent there
}

WHOLE_HEAD = "Please read the following text and answer the question below.\n\n<text>\n"


def section(problem: str, memory: str, text: str) -> list[Message]:
    """The chat that turns a memory and the next section into a new memory."""
    return _chat(_SECTION.format(problem=problem, memory=memory, section=text))


def final(problem: str, memory: str, form: str) -> list[Message]:
    """The chat that answers from the memory only."""
    return _chat(_FINAL.format(problem=problem, memory=memory, form=_FINAL_FORMS[form]))


def whole_tail(problem: str, form: str) -> str:
    """What comes after the context in a single pass."""
    return f"\n</text>\n\n{problem}\n\n{_WHOLE_FORMS[form]}"


def whole(text: str) -> list[Message]:
    """The chat of a single pass, from the head, the context and the tail in one text."""
    return _chat(text)


def _chat(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]
