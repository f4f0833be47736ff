"""What a console withstands: slow clients, too much of everything, wrong tokens on every route, names that are paths, values that
are SQL, and a careless umask."""

import gzip
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest

import mainstem
from mainstem.batch import Batch, FlowRun
from mainstem.clock import ManualClock
from mainstem.stem import Mainstem
from mainstem.views.view import View
from mainstem.workbench.access_tokens import AccessTokens
from mainstem.workbench.console.console_access import AccessRules
from mainstem.workbench.console.console_app import console_app
from mainstem.workbench.console.guided_walk import Walk
from mainstem.workbench.console.stream_feed import StreamHub
from mainstem.workbench.console.view_rows import view_page
from mainstem.workbench.console.watched_home import WatchedHome
from tests.waiting import SECONDS_MAX
from tests.workbench.console_process import ConsoleProcess, running_console

DAY_US = 86_400_000_000
SCHEMA = pa.schema([("store", pa.string()), ("total", pa.int64())])
ODD_KEYS = [
    "a'b",
    'a"b',
    "a;b",
    "a\x00b",
    "a--b",
    "a\\b",
    "a/*b",
    "a%b",
    "a_b",
    "$1",
    "?",
    "'); DROP TABLE rows; --",
    "\u02bca",
    "＇a",
]


@pytest.fixture(scope="module")
def stem(tmp_path_factory) -> Iterator[Mainstem]:
    with mainstem.open(tmp_path_factory.mktemp("faults") / "shop", upkeep="manual") as opened:
        opened.create_topic("orders", schema="order_id STRING").append([{"order_id": key} for key in ODD_KEYS])
        opened.topic("orders").queue("mails")
        rows = pa.table({"store": ODD_KEYS, "total": list(range(len(ODD_KEYS)))}, schema=SCHEMA)
        run = FlowRun("revenue", 1)
        View(opened.home, "revenue", key=["store"]).writer(run, SCHEMA).apply(rows, Batch(0, run))
        yield opened


@pytest.fixture(scope="module")
def console(stem) -> Iterator[ConsoleProcess]:
    with running_console(stem.home) as running:
        yield running


def test_five_hundred_slow_clients_are_dropped_and_others_served(console):
    # Half of them never complete their headers, half never their body: a byte each two seconds.
    heads = b"GET /api/home HTTP/1.1\r\nHost: lo"
    bodies = (
        f"POST /api/query HTTP/1.1\r\nHost: {console.host}:{console.port}\r\nContent-Type: application/json\r\n"
        "Content-Length: 1000\r\n\r\n"
    ).encode()
    slow = [socket.create_connection((console.host, console.port)) for _ in range(500)]
    ended = threading.Event()
    try:
        for number, client in enumerate(slow):
            client.sendall(heads if number % 2 else bodies)
        trickling = threading.Thread(target=trickle, args=(slow, ended), daemon=True)
        trickling.start()
        answers = [console.ask("/api/session").status for _ in range(50)]
        assert answers == [200] * 50
        assert sum(is_dropped(client) for client in slow) == 500
    finally:
        ended.set()
        for client in slow:
            client.close()
    assert console.ask("/api/session").status == 200


def trickle(clients: list[socket.socket], ended: threading.Event) -> None:
    while not ended.wait(2):
        for client in clients:
            try:
                client.send(b"x")
            except OSError:
                continue


def is_dropped(client: socket.socket) -> bool:
    """Waits until the server closes it; an answer that says so may come first."""
    client.settimeout(SECONDS_MAX)
    try:
        while client.recv(4096):
            pass
    except ConnectionResetError:
        return True
    return True


def megabytes_most(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no such line")


def raw(console: ConsoleProcess, request: bytes) -> bytes:
    """The first line of the answer; empty if the connection is closed without one."""
    with socket.create_connection((console.host, console.port), timeout=SECONDS_MAX) as client:
        try:
            client.sendall(request)
            return client.recv(65_536).partition(b"\r\n")[0]
        except (ConnectionResetError, BrokenPipeError):
            return b""


def test_too_much_of_anything_is_refused_in_little_memory(console):
    head = f"POST /api/query HTTP/1.1\r\nHost: {console.host}:{console.port}\r\nContent-Type: application/json\r\n"
    base = megabytes_most(console.process.pid)
    bomb = gzip.compress(b"\x00" * (64 << 20))
    deep = b"[" * 60_000
    answers = {
        "a large body": raw(console, f"{head}Content-Length: {64 << 20}\r\n\r\n".encode() + b"x" * (8 << 20)),
        "chunks without end": raw(
            console, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + b"10000\r\n" + b"x" * 65_536 + b"\r\n" * 100
        ),
        "deep JSON": raw(console, f"{head}Content-Length: {len(deep)}\r\n\r\n".encode() + deep),
        "a gzip bomb": raw(
            console, f"{head}Content-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n".encode() + bomb
        ),
        "many headers": raw(console, head.encode() + b"".join(b"X-%d: y\r\n" % n for n in range(100_000)) + b"\r\n"),
        "a long header": raw(console, head.encode() + b"X: " + b"y" * (8 << 20) + b"\r\n\r\n"),
        "a long address": raw(console, b"GET /api/" + b"x" * (1 << 20) + b" HTTP/1.1\r\n\r\n"),
        "no HTTP": raw(console, bytes(range(256)) * 4096),
        "many cursors": raw(
            console,
            f"GET /api/stream?of=home&last={quote(json.dumps({f'view:v{n}': 'x' for n in range(1_000)}))} HTTP/1.1\r\n\r\n".encode(),
        ),
    }
    assert {name: line for name, line in answers.items() if line and b" 4" not in line} == {}
    assert console.ask("/api/session").status == 200
    assert megabytes_most(console.process.pid) - base <= 64


# Who may ask what.


def every_route(stem: Mainstem) -> list[tuple[str, str]]:
    """Each method and address that the application knows, with names filled in; those that anybody may ask are left out."""
    rules = AccessRules(frozenset(), 1, frozenset(), any_address=False, same_user=False, secure=True)
    app = console_app(StreamHub(WatchedHome(stem)), rules, AccessTokens(stem.home), frozenset(), Walk())
    found = []
    for route in app._app.routes:  # type: ignore[attr-defined]
        path = route.path.replace("{name:path}", "orders").replace("{name}", "orders").replace("{rest:path}", "nothing")
        path = path.replace("{topic}", "orders").replace("{queue}", "mails").replace("{action}", "stop")
        if path.startswith("/api/") and path not in ("/api/login", "/api/logout"):
            found += [(method, path) for method in sorted(route.methods)]
    return found


def test_every_route_refuses_who_has_no_valid_token(stem):
    routes = every_route(stem)
    assert len(routes) > 25
    tokens = AccessTokens(stem.home)
    expired = AccessTokens(stem.home, ManualClock()).create("act", lasts_us=1)
    revoked = tokens.create("act", lasts_us=DAY_US)
    tokens.revoke(revoked.split("_")[1])
    reading = tokens.create("read", lasts_us=DAY_US)
    given = {
        "none": {}, "empty": {"Authorization": ""}, "other scheme": {"Authorization": f"Basic {reading}"},
        "expired": {"Authorization": f"Bearer {expired}"}, "revoked": {"Authorization": f"Bearer {revoked}"},
        "altered": {"Authorization": f"Bearer {reading[:-1]}"}, "in the address": {"X-Token": reading},
        "cookie": {"Cookie": "mainstem_token=mst_x_y"},
    }  # fmt: skip
    with running_console(stem.home, "--behind-proxy", "--name", "console.example", "--actions", "stop,kill") as console:
        connection = http.client.HTTPConnection(console.host, console.port, timeout=SECONDS_MAX)

        def ask(method: str, path: str, headers: dict[str, str]) -> int:
            body = b'{"flow": "x", "confirm": true}' if method == "POST" else None
            kind = {"Content-Type": "application/json"} if body else {}
            connection.request(method, path, body, {"Host": "console.example", **kind, **headers})
            answer = connection.getresponse()
            answer.read()
            return answer.status

        asked = {
            (*route, who): ask(*route, headers)
            for route in routes
            for who, headers in given.items()
            if who == "expired" or route[1] in ("/api/home", "/api/stream", "/api/actions/stop")
        }
        assert {case: status for case, status in asked.items() if status != 401} == {}
        # A token that may read may not act.
        header = {"Authorization": f"Bearer {reading}"}
        for action in ("stop", "restore", "drop", "kill"):
            assert ask("POST", f"/api/actions/{action}", header) == 403
        assert ask("GET", "/api/home", header) == 200
        connection.close()


# Names that are paths, values that are SQL.


def odd_names(count: int, seed: int = 15) -> list[str]:
    chance, parts = random.Random(seed), ["..", "/", "\\", "\x00", "\u202e", ".", "%2e", "%2f", "~", "etc", "passwd", "x" * 300, "con",
        "．．", "∕", "C:", "*", "orders", " ", "\n", "//", "mainstem.json", "topics"]  # fmt: skip
    # What ends so is no name, whatever is before it.
    return ["".join([*chance.choices(parts, k=chance.randint(1, 5)), chance.choice(parts[:5])]) for _ in range(count)]


PLACES = ["/api/topics/{}", "/api/topics/{}/records", "/api/views/{}/rows", "/api/flows/{}", "/api/flows/{}/picture", "/api/queues/orders/{}",
          "/api/history?of=topic:{}", "/api/stream?of=view:{}", "/{}", "/font/{}"]  # fmt: skip


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_name_that_is_a_path_leads_nowhere(stem, console, count):
    before = files_of(stem.home)
    connection = http.client.HTTPConnection(console.host, console.port, timeout=SECONDS_MAX)
    for number, name in enumerate(odd_names(count)):
        # Half of them as a browser would never send them.
        text = quote(name, safe="" if number % 2 else "/.~*:\\%").replace(" ", "%20")
        connection.request("GET", PLACES[number % len(PLACES)].format(text))
        answer = connection.getresponse()
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            raise AssertionError(f"{name!r} can be followed")
        content = answer.read()
        if answer.status == 307:
            # A directory of the page's own files.
            assert answer.headers["location"].startswith(f"http://{console.host}:{console.port}/")
            continue
        assert answer.status in (200, 400, 404, 405), (name, content)
        assert b"root:" not in content
        assert b'"format"' not in content
    connection.close()
    assert files_of(stem.home) == before


def files_of(home: str) -> list[str]:
    """Without those that SQLite has beside an open database."""
    return sorted(str(path) for path in Path(home).rglob("*") if not path.name.endswith(("-shm", "-wal")))


@pytest.mark.parametrize("count", [1_000, pytest.param(5_000, marks=pytest.mark.long)])
def test_a_value_that_is_sql_is_a_value(stem, count):
    view = stem.view("revenue")
    rows = {row["store"] for row in view_page(view, None, 100)["rows"]}
    assert rows == set(ODD_KEYS)
    chance = random.Random(10)
    for _ in range(count):
        key = "".join(chance.choices([*ODD_KEYS, " OR ", "1=1", "UNION SELECT", ";"], k=chance.randint(1, 3)))
        after = {row["store"] for row in view_page(view, json.dumps([key]), 100)["rows"]}
        assert after == {row for row in rows if row.encode() > key.encode()}
    assert {row["store"] for row in view_page(view, None, 100)["rows"]} == rows
    view.close()


# Files.

UMASK_ZERO = """
import os, sys
os.umask(0)
from mainstem.workbench.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def test_with_a_careless_umask_nobody_else_can_read_a_thing(tmp_path):
    home = str(tmp_path / "shop")

    def command(*words: str) -> None:
        subprocess.run([sys.executable, "-c", UMASK_ZERO, *words, "--home", home], check=True, capture_output=True)

    command("topic", "create", "orders", "--schema", "order_id STRING")
    command("token", "create", "--scope", "read")
    known = os.umask(0)
    try:
        with mainstem.open(home, upkeep="manual") as stem:
            stem.topic("orders").append([{"order_id": "o-1"}])
            stem.topic("orders").queue("mails").take(1)
            run = FlowRun("revenue", 1)
            View(stem.home, "revenue", key=["store"]).writer(run, SCHEMA).apply(SCHEMA.empty_table(), Batch(0, run))
            with running_console(home) as console:
                assert console.ask("/api/home").status == 200
    finally:
        os.umask(known)
    # The home itself keeps everybody out, whatever is inside; what holds hashes of tokens also by itself.
    assert os.stat(home).st_mode & 0o777 == 0o700
    secret = [Path(home, "console"), *Path(home, "console").rglob("*")]
    assert len(secret) >= 3
    assert [str(path) for path in secret if path.stat().st_mode & 0o077] == []
