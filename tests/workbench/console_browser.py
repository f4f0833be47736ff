"""Chromium for the tests of the console's pages: pages that keep what went wrong in them."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

__all__ = ["MS_MAX", "WatchedPage", "open_browser", "watched_page"]

# Nothing takes this long unless it hangs, however busy the machine is.
MS_MAX = 60_000


@contextmanager
def open_browser(*options: str) -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    safe = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=shutil.which("chromium-headless-shell"), args=[*safe, *options]
        )
        try:
            yield opened
        finally:
            opened.close()


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
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))


@contextmanager
def watched_page(context: BrowserContext) -> Iterator[WatchedPage]:
    """A new page, closed at the end."""
    page = context.new_page()
    try:
        yield WatchedPage(page)
    finally:
        page.close()
