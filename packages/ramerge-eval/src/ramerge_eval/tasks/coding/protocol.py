"""Prompts for programs and tests; reads both from answers.

Content and format are CURE's (https://github.com/Gen-Verse/CURE, evaluation/); the wording is not. CURE formats turns
itself; here, the model's chat template does. A program is the last ```python block. A test is the text after the last
**Test Input:** and **Test Output:**, in a fence or plain up to the next heading.
"""

from __future__ import annotations

import re

from inspect_ai.model import ChatMessage, ChatMessageSystem, ChatMessageUser

from ramerge.sdk.text import is_unicode
from ramerge_eval.tasks.coding.problems import Case, Problem

_INPUT, _OUTPUT, _EXPLANATION = "**Test Input:**", "**Test Output:**", "**Explanation:**"
_PROGRAM = re.compile(r"```python(.*?)```", re.DOTALL)
_FENCED_INPUT = re.compile(re.escape(_INPUT) + r"\s*```(.*?)```", re.DOTALL)
_FENCED_OUTPUT = re.compile(re.escape(_OUTPUT) + r"\s*```(.*?)```", re.DOTALL)
_LANGUAGE = re.compile(r"\A(?:plaintext|text|txt)\n")

_CODER = "You are an assistant who helps people to solve programming problems."
_TESTER = "You are an assistant who helps people to write test examples for programming problems."

_WRITE_PROGRAM = """\
Think about the problem first. Then write a script in Python, in one ```python block.
The script reads with input() and writes with print(). It must work out its results from the input that it reads, and \
not reproduce a given example.

The problem:
{question}"""

_WRITE_FUNCTION = """\
Think about the problem first. Then write the function in Python, with all that it needs, in one ```python block.
The function gets its arguments and returns its result; it reads no input and prints nothing.

The problem:
{question}"""

_WRITE_TEST = """\
Below is a programming problem. Do not write a program for it: write one new test example, with its input, its output \
and an explanation.

The problem:
{question}
{examples}
A good test example is entirely correct, keeps to the formats that the problem demands, and tells right programs from \
wrong ones.
Before you give it, think carefully and derive input and output step by step until you are sure of both. For instance, \
choose an input that you can handle, then work out the output one step at a time. If you come to doubt the output, \
change the input or choose another one. Do not state an input and an output at once without this work: such examples \
are often wrong.
When this thinking is complete, and not before, finish with your test example in exactly this format:

**Test Input:**
```
the input
```

**Test Output:**
```
the output
```

**Explanation:**

the explanation"""


def program_messages(problem: Problem) -> list[ChatMessage]:
    """Return the chat that asks for a program, or for a function if the problem tests one."""
    template = _WRITE_FUNCTION if problem.function else _WRITE_PROGRAM
    return _chat(_CODER, template.format(question=problem.question))


def test_messages(problem: Problem, *, examples: bool) -> list[ChatMessage]:
    """Return the chat that asks for a test. `examples`: show the problem's public tests."""
    section = ""
    if examples and problem.examples:
        lines = "\n".join(f"input {case.stdin!r}, output {case.output!r}" for case in problem.examples)
        section = f"\nThere are these test examples already:\n{lines}\n"
    return _chat(_TESTER, _WRITE_TEST.format(question=problem.question, examples=section))


def read_program(answer: str) -> str | None:
    """Return the program in an answer of the model, or None."""
    blocks = _PROGRAM.findall(answer)
    program = blocks[-1].strip() if blocks else ""
    return program if program and is_unicode(program) else None


def read_test(answer: str) -> Case | None:
    r"""Return the test in an answer of the model, or None without input or output.

    Like CURE, it drops empty first lines and takes a written-out `\n` for a line break.
    """
    _, heading, rest = answer.rpartition(_OUTPUT)
    end = answer.rfind(_OUTPUT)
    start = answer.rfind(_INPUT, 0, max(end, 0))
    if fenced := _FENCED_INPUT.findall(answer):
        stdin = _unfenced(fenced[-1])
    elif start >= 0:
        stdin = answer[start + len(_INPUT) : end].strip()
    else:
        return None
    if fenced := _FENCED_OUTPUT.findall(answer):
        output = _unfenced(fenced[-1])
    elif heading:
        output = rest.partition(_EXPLANATION)[0].partition(_INPUT)[0].strip()
    else:
        return None
    case = Case(_tidied(stdin), _tidied(output))
    return case if is_unicode(case.stdin + case.output) else None


def _chat(system: str, user: str) -> list[ChatMessage]:
    return [ChatMessageSystem(content=system), ChatMessageUser(content=user)]


def _unfenced(block: str) -> str:
    return _LANGUAGE.sub("", block).removeprefix("\n")


def _tidied(text: str) -> str:
    text = text.lstrip("\n").replace("\\n", "\n")
    return text if text.endswith("\n") else f"{text}\n"
