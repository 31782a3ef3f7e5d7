"""Views: tables, figures, progress and command lines as HTML, in the styles and with the charts of reports.

All text from models, recipes and commands is escaped here, or drawn as text by vl-convert.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files

from markupsafe import Markup, escape
from rich.filesize import decimal

from ramerge.core.planning.headers import ModelHeader
from ramerge.report.figures import Figure
from ramerge.report.page import table as table
from ramerge.sdk.text import one_line, page_styles
from ramerge.ui.jobs import DONE, FAILED, RUNNING, Job

PICK = """
const label = (event) => event.target.closest('[aria-label]')?.getAttribute('aria-label') ?? '';
element.addEventListener('click', (event) => {
  const button = event.target.closest('[data-pick]');
  const cell = label(event).match(/role: (.*?); layer: (.*?);/);
  if (button) trigger('click', { pick: button.dataset.pick });
  else if (cell) trigger('click', { role: cell[1], layer: cell[2] });
});
element.addEventListener('mouseover', (event) => {
  const mark = event.target.closest('path[aria-label]');
  if (!mark || mark.querySelector('title')) return;
  const title = document.createElementNS('http://www.w3.org/2000/svg', 'title');
  title.textContent = label(event);
  mark.append(title);
});
"""
"""A script that reports which button or cell of a heat map was clicked, and shows a cell's figures on hover."""


@cache
def styles() -> str:
    """Return the styles of reports, for content of `.report`, in the colors of Gradio's theme."""
    own = files("ramerge.ui").joinpath("page.css").read_text(encoding="utf-8")
    return f"<style>.report {{ {page_styles()} }}\n{own}</style>"


def block(*parts: str) -> str:
    """Return parts of a tab as HTML in the style of reports."""
    return f'<div class="report">{"".join(parts)}</div>'


def safe(text: object) -> Markup:
    """Return untrusted text as HTML that shows it unchanged."""
    return escape("\n".join(map(one_line, str(text).split("\n"))))


COPY = """
element.addEventListener('click', async (event) => {
  const button = event.target.closest('[data-copy]');
  if (!button) return;
  await navigator.clipboard.writeText(element.querySelector('pre').textContent);
  button.textContent = 'Copied';
});
"""
"""A script that copies a text shown by `copyable`."""


def copyable(label: str, text: str) -> str:
    """Return a text as HTML with a button that copies it; empty for an empty text."""
    return _copyable_html(label, safe(text)) if text else ""


def _copyable_html(label: str, text: Markup) -> str:
    button = f'<button type="button" data-copy aria-label="Copy: {safe(label)}">Copy</button>'
    return block(f'<div class="copy"><p>{safe(label)}</p>{button}<pre tabindex="0">{text}</pre></div>')


def command_html(*commands: Sequence[str]) -> str:
    """Return command lines as HTML, to copy; a line breaks only between arguments."""
    lines = ([f"<span>{safe(shlex.quote(word))}</span>" for word in ("ramerge", *words)] for words in commands)
    return _copyable_html("Command line", Markup("\n".join(map(" ".join, lines))))


def button(text: str, pick: str) -> Markup:
    """Return a button as HTML that passes `pick` to the script `PICK`."""
    return Markup('<button type="button" class="pick" data-pick="{}">{}</button>').format(pick, one_line(text))


def listing(texts: Iterable[object], kind: str = "notes") -> str:
    """Return a list of sentences as HTML: `notes`, or `warnings` for problems."""
    items = "".join(f"<li>{safe(text)}</li>" for text in texts)
    return f'<ul class="{kind}">{items}</ul>' if items else ""


LABELS = {
    "--base": "Base model",
    "--agent": "Agents",
    "--method": "Method",
    "--prompts": "Prompts",
    "--reward": "Reward function",
    "--generate": "Compare with the agents",
    "--prompt-count": "Number of prompts",
    "--max-new": "Tokens of a reply",
    "--overwrite": "Replace what is there",
    "--public": "Public",
    "--task": "Tasks",
    "--limit": "Samples of each task",
    "--specialist": "Specialists",
    "--serve": "Models run on",
    "--endpoint": "Endpoint",
    "--for": "Trainer",
    "--teacher": "Teachers",
    "--hold-out": "Prompts held out",
}
"""Labels of the page's controls for flags of commands."""

_CHECKBOXES = ("--generate", "--overwrite", "--public")
_COMMAND = re.compile(r"(?:`|: )ramerge ")
_FLAG = re.compile(r"(?P<verb>\b(?:pass|give|use) )?(?P<flag>--[a-z][a-z-]*)(?: (?:\w+\.py:\w+|[A-Z][A-Z=]*\b))?")


def in_page_words(text: str) -> str:
    """Replace flags in a message of a command by the page's controls; command lines are not changed.

    >>> in_page_words("merged: exists; choose another folder, or pass --overwrite")
    'merged: exists; choose another folder, or tick “Replace what is there”'
    """

    def control(match: re.Match[str]) -> str:
        flag = match["flag"]
        if flag not in LABELS:
            return match[0]
        verb = match["verb"] and ("tick " if flag in _CHECKBOXES else "fill in ")
        return f"{verb or ''}“{LABELS[flag]}”"

    return text if _COMMAND.search(text) else _FLAG.sub(control, text)


def problems(texts: Iterable[str]) -> str:
    """Return problems as HTML that screen readers announce; empty without problems."""
    items = listing(map(in_page_words, texts), "warnings")
    return block(f'<div role="status">{items}</div>') if items else ""


def figure(chart: Figure) -> str:
    """Return a figure as HTML with title and caption, drawn as SVG."""
    return (
        f'<figure id="ui-{safe(chart.name)}"><h3>{safe(chart.title)}</h3>'
        f'<div class="chart">{chart.svg()}</div><figcaption>{safe(chart.caption)}</figcaption></figure>'
    )


def figures(charts: Iterable[Figure]) -> str:
    """Return several figures as HTML, side by side if there is room."""
    return f'<div class="figures">{"".join(map(figure, charts))}</div>'


def headers(model_headers: Sequence[ModelHeader]) -> str:
    """Return the headers of a recipe's models as HTML, with their problems."""
    head = ("model", "format", "size", "parameters", "tensors", "dtypes", "where")
    figures = [
        (one.name, one.form, one.size, one.parameters, one.tensors, one.dtypes, one.where) for one in model_headers
    ]
    rows = [[text or "–" for text in row] for row in figures]
    wrong = [f"{one.name}: {text}" for one in model_headers for text in one.problems]
    return block(table("Models", head, rows) if rows else "") + problems(wrong)


def progress_html(job: Job | None) -> str:
    """Return the progress of a job as HTML, a bar and its text; empty without a job."""
    if job is None:
        return ""
    event = job.figures if job.is_active and job.figures and not job.progress else job.progress
    so_far, total = int(event.get("done", 0)), int(event.get("total", 0))
    share = 1.0 if job.state == DONE else min(so_far / total, 1.0) if total else 0.0
    # without a value, the bar shows that there is something to wait for
    value = "" if job.state == RUNNING and not total else f'value="{share:.4f}"'
    stage = str(event.get("stage", job.state)) if job.is_active else job.state
    unit = str(event.get("unit", ""))
    amount_text = f"{decimal(so_far)} of {decimal(total)}" if unit == "bytes" else f"{so_far:,} of {total:,} {unit}"
    amount = amount_text if total and job.is_active else ""
    bar = f'<progress {value} max="1" aria-label="{safe(job.title)}"></progress>'
    lines = listing(map(in_page_words, job.lines[-8:]), "warnings" if job.state == FAILED else "notes")
    return block(f'<p class="state">{bar} <span>{safe(stage)} {safe(amount)}</span></p>', lines)
