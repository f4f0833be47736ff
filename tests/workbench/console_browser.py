"""Chromium for the tests of the console: how a page looks, what axe finds on it, and a picture of it in build/screenshots."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.needs import cannot_run

__all__ = [
    "LOOKS",
    "MS_MAX",
    "REPOSITORY",
    "WatchedPage",
    "axe_findings",
    "is_wider_than_the_window",
    "keep_picture",
    "open_browser",
    "watch",
    "watched_page",
]

REPOSITORY = Path(__file__).parent.parent.parent
SCREENSHOTS = REPOSITORY / "build" / "screenshots"
AXE = REPOSITORY / "console/node_modules/axe-core/axe.min.js"
MS_MAX = 60_000
# Only what is wrong is worked out in full.
AXE_RUN = "axe.run(document, {resultTypes: ['violations'], preload: false})"
expect.set_options(timeout=MS_MAX)


class Look(NamedTuple):
    """How a browser shows a page."""

    width: int
    scheme: str


LOOKS = {"light": Look(1440, "light"), "dark": Look(1440, "dark"), "360": Look(360, "light")}


@contextmanager
def open_browser(*options: str) -> Iterator[Browser]:
    """Chromium, until the end of the `with`; one at a time in a process."""
    if not AXE.exists():
        cannot_run("console/node_modules", "`make setup` installs them")
    safe = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=shutil.which("chromium-headless-shell"), args=[*safe, *options]
        )
        try:
            yield opened
        finally:
            opened.close()


def watch(page: Page) -> list[str]:
    """The errors that the page's console shows from now on."""
    errors: list[str] = []
    page.set_default_timeout(MS_MAX)
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    return errors


def axe_findings(page: Page) -> list[str]:
    """What axe finds on the page as it is."""
    # By the debugger, so that the page's own policy stays as strict as it is.
    page.context.new_cdp_session(page).send("Runtime.evaluate", {"expression": AXE.read_text()})
    return [
        f"{found['id']}: {node['target']}" for found in page.evaluate(AXE_RUN)["violations"] for node in found["nodes"]
    ]


def is_wider_than_the_window(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))


def keep_picture(page: Page, name: str) -> None:
    """A picture of the whole page, in build/screenshots."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.evaluate("document.fonts.ready")
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


class WatchedPage:
    """A page, the errors that its console showed, and the dialogs that a script opened."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.dialogs: list[str] = []
        page.set_default_timeout(MS_MAX)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", self._asked)

    def _said(self, message: Any) -> None:
        # A refused request is told on the page; the browser notes it too.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def _asked(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    @property
    def is_wider_than_the_window(self) -> bool:
        return is_wider_than_the_window(self.page)


@contextmanager
def watched_page(context: BrowserContext) -> Iterator[WatchedPage]:
    """A new page, closed at the end."""
    page = context.new_page()
    try:
        yield WatchedPage(page)
    finally:
        page.close()
