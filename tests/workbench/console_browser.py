"""Chromium for the tests of the console: how a page looks, what axe finds on it, and a picture of it in build/screenshots."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.needs import cannot_run

__all__ = [
    "LOOKS",
    "MS_MAX",
    "REPOSITORY",
    "axe_findings",
    "is_wider_than_the_window",
    "keep_picture",
    "open_browser",
    "watch",
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
def open_browser() -> Iterator[Browser]:
    """Chromium, until the end of the `with`; one at a time in a process."""
    if not AXE.exists():
        cannot_run("console/node_modules", "`make setup` installs them")
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=shutil.which("chromium-headless-shell"), args=options)
        yield opened
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
