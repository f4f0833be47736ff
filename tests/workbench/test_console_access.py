"""Who may see the console: the user who runs it, and who has a token; no page of another site."""

import json
import os
import socket
import ssl
import subprocess
import sys
import urllib.request

import pytest

import mainstem
from mainstem.clock import ManualClock
from mainstem.workbench.access_tokens import AccessTokens
from mainstem.workbench.cli.main import run
from mainstem.workbench.console.connection_owner import ConnectionOwner
from mainstem.workbench.console.console_access import COOKIE, HEADERS
from tests.certificate import make_certificate
from tests.needs import cannot_run, needs, needs_root
from tests.workbench.console_process import running_console

DAY_US = 86_400_000_000


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    path = tmp_path_factory.mktemp("access") / "shop"
    with mainstem.open(path, upkeep="manual") as stem:
        stem.create_topic("orders", schema="order_id STRING")
    return str(path)


@pytest.fixture(scope="module")
def console(home):
    with running_console(home) as running:
        yield running


@pytest.fixture(scope="module")
def proxied(home):
    """A console to which nobody may come without a token."""
    AccessTokens(home).create("read", lasts_us=DAY_US)
    with running_console(home, "--behind-proxy", "--name", "console.example") as running:
        yield running


def test_the_user_who_runs_it_needs_no_token(console):
    assert console.get("/api/session") == {"who": f"user {_user()}", "scope": "read", "actions": [], "permitted": []}
    assert console.get("/api/home")["home"]["name"] == "shop"


def _user() -> str:
    return subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()


ASK_AS_NOBODY = """
import encodings.idna, http.client, os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]))
connection.request("GET", sys.argv[3])
print(connection.getresponse().status)
"""


@needs_root()
def test_another_user_of_the_machine_is_not_let_in(console):
    def ask(path: str) -> str:
        command = [sys.executable, "-c", ASK_AS_NOBODY, console.host, str(console.port), path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert ask("/api/home") == "401"
    assert ask("/api/stream?of=home") == "401"
    assert ask("/") == "200"


def test_the_owner_of_a_connection_is_the_owner_of_the_client_s_end():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        with client, server.accept()[0]:
            assert ConnectionOwner(client.getsockname(), server.getsockname()).uid == os.getuid()
        assert ConnectionOwner(("127.0.0.1", 1), server.getsockname()).uid is None
    assert ConnectionOwner(("192.0.2.7", 5000), ("192.0.2.1", 8765)).uid is None
    assert ConnectionOwner(None, None).uid is None


def test_a_closed_connection_of_root_is_nobody(tmp_path):
    # The kernel gives the sockets that nobody holds any more to root.
    title = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    line = "   0: 0100007F:1388 0100007F:223D {} 00000000:00000000 00:00000000 00000000     {}        0 1 1 0\n"
    client, server = ("127.0.0.1", 5000), ("127.0.0.1", 8765)
    for state, uid, found in (("06", 0, None), ("05", 0, None), ("01", 1000, 1000)):
        (tmp_path / "tcp").write_text(title + line.format(state, uid))
        assert ConnectionOwner(client, server, str(tmp_path)).uid == found


def test_over_ipv6_too(home):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        cannot_run("IPv6", str(error))
    with running_console(home, "--host", "::1") as running:
        assert running.get("/api/session")["scope"] == "read"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": "localhost:1"},
        {"Host": "127.0.0.1"},
        {"Host": ""},
        {"Host": "[oops"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_another_site_gets_nothing(console, headers):
    sent = {name: text.format(port=console.port) for name, text in headers.items()}
    found = console.ask("/api/home", headers=sent)
    assert found.status == 403
    assert all(found.json["error"][part] for part in ("what", "detail", "hint"))


def test_its_own_page_gets_in_by_each_of_its_names(console):
    for name in ("localhost", "127.0.0.1", "[::1]"):
        host = f"{name}:{console.port}"
        headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        assert console.ask("/api/home", headers=headers).status == 200


@pytest.mark.parametrize("path", ["/", "/flows/revenue?at=1", "/api/home", "/api/nothing", "/nothing.js"])
def test_every_answer_tells_the_browser_to_be_strict(console, path):
    found = console.ask(path)
    for name, value in HEADERS.items():
        assert found.headers[name.lower()] == value
    assert "require-trusted-types-for 'script'" in found.headers["content-security-policy"]
    assert "unsafe" not in found.headers["content-security-policy"]
    assert "server" not in found.headers


def test_a_token_lets_in_and_a_revoked_or_expired_one_does_not(home, proxied):
    tokens = AccessTokens(home)
    text = tokens.create("read", lasts_us=DAY_US)
    expired = AccessTokens(home, ManualClock()).create("read", lasts_us=1)
    host = {"Host": "console.example"}

    def ask(token: str) -> int:
        return proxied.ask("/api/home", headers={**host, "Authorization": f"Bearer {token}"}).status

    assert proxied.ask("/api/home", headers=host).status == 401
    assert ask(text) == 200
    assert ask(expired) == ask(text + "x") == ask("mst__") == ask("") == 401
    tokens.revoke(text.split("_")[1])
    assert ask(text) == 401


def test_a_browser_logs_in_once(home, proxied):
    text = AccessTokens(home).create("act", lasts_us=DAY_US)
    host = {"Host": "console.example", "Origin": "https://console.example"}
    assert proxied.ask("/api/login", method="POST", body={"token": "mst_no_no"}, headers=host).status == 401
    assert proxied.ask("/api/login", method="POST", body={"token": 7}, headers=host).status == 401
    found = proxied.ask("/api/login", method="POST", body={"token": text}, headers=host)
    assert found.json["scope"] == "act"
    cookie = found.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Secure", "Path=/"} <= set(cookie.split("; "))
    session = proxied.ask("/api/session", headers={**host, "Cookie": cookie.split(";")[0]}).json
    assert session == {"who": f"token {text.split('_')[1]}", "scope": "act", "actions": [], "permitted": []}
    out = proxied.ask("/api/logout", method="POST", body={}, headers=host)
    assert f'{COOKIE}=""' in out.headers["set-cookie"]


def test_tokens_are_kept_as_hashes_and_for_the_owner_alone(home):
    text = AccessTokens(home).create("read", lasts_us=DAY_US)
    path = f"{home}/console/tokens.json"
    with open(path) as file:
        assert text.split("_", 2)[2] not in file.read()
    assert os.stat(path).st_mode & 0o777 == 0o600


def refused(capsys, home: str, *options: str) -> list[str]:
    capsys.readouterr()
    assert run(["console", "--home", home, "--port", "0", *options]) == 1
    return capsys.readouterr().err.splitlines()


def test_another_address_needs_tls_or_a_proxy_and_a_token(tmp_path, capsys):
    home = str(tmp_path / "fresh")
    mainstem.open(home, upkeep="manual").close()
    assert "without TLS" in refused(capsys, home, "--host", "0.0.0.0")[0]
    assert "no token" in refused(capsys, home, "--host", "0.0.0.0", "--behind-proxy")[0]
    assert "a certificate and its key" in refused(capsys, home, "--tls-cert", "x.pem")[0]
    assert "cannot be used" in refused(capsys, home, "--tls-cert", "x.pem", "--tls-key", "y.pem")[0]


@needs("openssl", command="openssl")
def test_over_tls(home, tmp_path):
    made = make_certificate(tmp_path)
    assert made is not None
    certificate, both = made
    with running_console(home, "--tls-cert", str(both), "--tls-key", str(both)) as running:
        assert running.url.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(certificate))
        with urllib.request.urlopen(f"{running.url}api/session", context=trusted) as answer:
            assert json.load(answer)["scope"] == "read"


def test_a_port_that_is_taken_is_told(home, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        said = refused(capsys, home, "--port", str(other.getsockname()[1]))
    assert "cannot listen" in said[0]
    assert said[2].startswith("Hint: ")


def test_one_cannot_send_a_body_without_end(console):
    large = {"sql": "SELECT " + "1" * 100_000}
    assert console.ask("/api/query", method="POST", body=large).status == 400


def test_the_command_s_tokens(home, capsys):
    assert run(["token", "create", "--scope", "act", "--expires", "30d", "--json", "--home", home]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["scope"] == "act"
    assert made["token"].startswith(f"mst_{made['id']}_")
    assert run(["token", "list", "--json", "--home", home]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert made["id"] in [token["id"] for token in listed]
    assert all("hash" not in token for token in listed)
    assert run(["token", "revoke", made["id"], "--home", home]) == 0
    assert run(["token", "revoke", made["id"], "--home", home]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert run(["token", "create", "--expires", "0 days", "--home", home]) == 1
