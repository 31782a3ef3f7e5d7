"""A page that is served by a process of its own, and a browser that opens it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
FLAGS = ["--disable-gpu", "--disable-background-networking", "--no-first-run"]


@contextmanager
def served(*words: str, program: tuple[str, ...] = ("-m", "ramerge", "ui"), **more: Any) -> Iterator[str]:
    """The address that a page's process prints. At the end, the process is interrupted and must end."""
    command = [sys.executable, *program, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if found := re.search(r"http://\S+", line):
                break
        else:
            raise AssertionError(said)
        try:
            yield found[0]
        finally:
            process.send_signal(signal.SIGINT)
            said += process.communicate(timeout=30)[0]
    assert "Traceback" not in said, said


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser."""
    from playwright.sync_api import sync_playwright

    # Chromium's own sandbox does not start for root, who runs the tests in containers.
    alone = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=[*alone, *FLAGS])
        yield found
        found.close()


TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""A field that was filled tells its value to the page in the frame after, and a tab that was opened sets its fields.
No person is as fast."""


@dataclass
class Visit:
    """A page in a browser, and what happened in it."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    clicks: int = 0

    def click(self, name: str, role: str = "button", **more: Any) -> None:
        """Click on what has this name, as a user counts clicks."""
        self.page.evaluate(TWO_FRAMES)
        self.page.get_by_role(role, name=name, exact=True, **more).click()
        self.clicks += 1

    def fill(self, label: str, text: str) -> None:
        """Fill the first field that can be seen with this label, which a hint may follow."""
        found = self.page.get_by_label(re.compile(rf"^\s*{label}\b")).locator("visible=true").first
        found.wait_for()
        self.page.evaluate(TWO_FRAMES)
        found.fill(text)

    def fold(self, name: str) -> None:
        """Open or close an accordion, whose name ends with a sign."""
        self.page.get_by_role("button", name=name).click()
        self.clicks += 1

    def tab(self, name: str) -> None:
        """Open a tab."""
        self.click(name, "tab")

    def wait(self, selector: str, seconds: float = 120, **more: Any) -> Any:
        """What can be seen of a selector, once it can."""
        from playwright.sync_api import TimeoutError

        found = self.page.locator(f"{selector}:visible", **more).first
        try:
            found.wait_for(timeout=1000 * seconds)
        except TimeoutError as error:
            fields = [each.input_value() for each in self.page.locator("input:visible, textarea:visible").all()]
            error.add_note(f"{self.page.locator('body').inner_text()}\nvalues of the fields: {fields}")
            raise
        return found

    def merged(self, name: str) -> None:
        """Wait until the list says that a merge is complete."""
        self.wait("tr", has_text=name).get_by_text("done", exact=True).wait_for(timeout=180_000)

    def pick(self, label: str, option: str) -> None:
        """Choose from a list."""
        self.page.get_by_label(label, exact=label == "Agents").click()
        self.page.locator(f"[role=option][aria-label='{option}']:visible").last.click()

    def editor(self) -> str:
        """The recipe, as the editor shows it."""
        return "\n".join(self.page.locator(".cm-content:visible .cm-line").all_inner_texts())


@contextmanager
def visit(browser: Any, address: str, **context: Any) -> Iterator[Visit]:
    """Open the page. At the end, it must have complained of nothing, and asked this machine only."""
    inside = browser.new_context(**context)
    one = Visit(inside.new_page())
    one.page.on("console", lambda message: message.type == "error" and one.complaints.append(message.text))
    one.page.on("pageerror", lambda error: one.complaints.append(str(error)))
    inside.on("request", lambda request: one.requests.append(request.url))
    with one.page.expect_response(re.compile("/queue/join"), timeout=60_000):  # the stream of events is open
        one.page.goto(address)
    one.page.get_by_role("tab", name="Agents").wait_for(timeout=60_000)
    try:
        yield one
        toasts = one.page.locator(".toast-body").all_inner_texts()
    finally:
        inside.close()
    assert toasts == [], "errors stand in their tabs, and cover nothing"
    assert one.complaints == [], one.complaints
    own = address.partition("?")[0]
    outside = [url for url in one.requests if not url.startswith((own, "data:", "blob:"))]
    assert outside == [], outside


def write(visit: Visit, text: str) -> None:
    """Replace the recipe in the editor."""
    visit.page.locator(".cm-content:visible").first.click()
    visit.page.keyboard.press("Control+A")
    visit.page.keyboard.insert_text(text)
