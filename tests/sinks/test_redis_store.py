"""Keys of Redis keep the contract of a store; and what is special to Redis."""

from __future__ import annotations

import hashlib
import json
import os
import selectors
import signal
import socket
import ssl
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pyarrow as pa
import pytest
import redis
from redis import exceptions as redis_errors

import mainstem
from mainstem.errors import Conflict, DatabaseUnavailable, DiskFull, Invalid, MainstemError, Unavailable
from mainstem.log.record import RECORD
from mainstem.sinks import redis_store
from mainstem.sinks.redis_address import RedisAddress
from mainstem.sinks.redis_store import RedisStore
from mainstem.sinks.store_backend import FenceMoved, Fences
from mainstem.testing.store_contract import StoreContract
from mainstem.testing.store_trial import SCHEMA, StoreTrial, batch_of, changes, rows_after
from tests.certificate import make_certificate
from tests.cutting_proxy import Cut, CuttingProxy
from tests.needs import cannot_run
from tests.redis_server import PASSWORD, QUOTED_PASSWORD, RedisServer

pytestmark = pytest.mark.starts_servers

FORMS = ["json", "hash"]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    """Of an empty Redis."""
    with server.client() as client:
        client.flushall()
        yield client


class TestRedisStore(StoreContract):
    form: Literal["json", "hash"] = "json"
    points = (*StoreContract.points, "sink_rows_written")

    @pytest.fixture(autouse=True)
    def _server(self, server: RedisServer) -> None:
        self.server = server

    def prefix(self, folder: Path) -> str:
        return "s" + hashlib.sha256(str(folder).encode()).hexdigest()[:16] + ":"

    def opens_with(self, folder: Path) -> tuple[str, dict[str, Any]]:
        arguments = {"url": self.server.address(), "prefix": self.prefix(folder), "form": self.form}
        return "mainstem.sinks.redis_store:RedisStore", arguments

    def keys(self, client: redis.Redis, folder: Path) -> set[bytes]:
        return set(client.scan_iter(match=f"*{self.prefix(folder)}*"))

    def save(self, folder: Path) -> dict[bytes, bytes]:
        with self.server.client() as client:
            return {key: client.dump(key) for key in self.keys(client, folder)}

    def restore(self, folder: Path, saved: dict[bytes, bytes]) -> None:
        with self.server.client() as client, client.pipeline() as pipe:
            for key in self.keys(client, folder):
                pipe.delete(key)
            for key, value in saved.items():
                pipe.restore(key, 0, value)
            pipe.execute()

    def put_foreign(self, folder: Path) -> bool:
        with self.server.client() as client:
            client.set(f"{self.prefix(folder)}7", "mine")
        return True


class TestRedisHashes(TestRedisStore):
    form = "hash"
    kills = 1


def trial_of(
    server: RedisServer, folder: Path, *, url: str = "", key: tuple[str, ...] = ("id",), **more: Any
) -> StoreTrial:
    arguments = {"url": url or server.address(), "prefix": "shop:", **more}
    return StoreTrial(folder, "mainstem.sinks.redis_store:RedisStore", arguments, key)


# What others read


def test_other_programs_read_rows_and_whether_the_store_is_filling(server, client, tmp_path) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("title", pa.string()),
            ("until", pa.date32()),
            ("tags", pa.list_(pa.string())),
            ("record", RECORD),
        ]
    )
    rows = changes([(7, "Pen", date(2030, 1, 31), ["a"], "insert"), (8, None, None, None, "insert")], schema)
    for form in FORMS:
        trial = trial_of(server, tmp_path, prefix=f"{form}:", form=form)
        writer = trial.begin(1, schema=schema)
        trial.write(writer, 0, rows)
        assert client.hget(f"mainstem.store {form}:", "state") == b"filling"
        writer.finish()
        fence = client.hgetall(f"mainstem.store {form}:")
        assert {name: fence[name] for name in (b"state", b"flow", b"version", b"epoch", b"batch")} == {
            b"state": b"current", b"flow": b"tried", b"version": b"1", b"epoch": b"1", b"batch": b"0",
        }  # fmt: skip
        assert fence[b"applied_at"].startswith(b"20")
        trial.close()
    assert json.loads(client.get("json:7")) == {"id": 7, "title": "Pen", "until": "2030-01-31", "tags": ["a"]}
    assert client.hgetall("hash:7") == {b"id": b"7", b"title": b"Pen", b"until": b"2030-01-31", b"tags": b'["a"]'}
    assert client.hgetall("hash:8") == {b"id": b"8"}


@pytest.mark.parametrize("form", FORMS)
def test_no_two_keys_of_several_columns_are_one(server, client, tmp_path, form) -> None:
    trial = trial_of(server, tmp_path, key=("a", "b"), form=form)
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("n", pa.int64()), ("record", RECORD)])
    keys = [
        ("a", "b:c"),
        ("a:b", "c"),
        ('a","b', "c"),
        ("a", 'b","c'),
        ("", ""),
        ('["', '"]'),
        ("a\\", "b"),
        ("a", "\\b"),
    ]
    writer = trial.begin(1, schema=schema)
    trial.write(writer, 0, changes([(*key, n, "insert") for n, key in enumerate(keys)], schema))
    assert [trial.store.get(key)["n"] for key in keys] == list(range(len(keys)))
    assert client.exists('shop:["a","b:c"]')
    trial.close()


@pytest.mark.parametrize(
    ("data_type", "values", "texts"),
    [
        (pa.int64(), [7, -1], ["7", "-1"]),
        (pa.float64(), [0.5, 7.0, float("inf")], ["0.5", "7.0", "Infinity"]),
        (pa.decimal128(10, 2), ["1.50", "0.00"], ["1.50", "0.00"]),
        (pa.bool_(), [True], ["true"]),
        (pa.date32(), [date(2030, 1, 31)], ["2030-01-31"]),
        (pa.string(), ["a:b", ""], ["a:b", ""]),
        (pa.binary(), [b"\xff"], [b"\xff"]),
        (pa.struct([("a", pa.int64())]), [{"a": 1}], ['{"a":1}']),
    ],
)
def test_a_key_of_one_column_is_its_text(server, client, tmp_path, data_type, values, texts) -> None:
    values = [Decimal(value) for value in values] if pa.types.is_decimal(data_type) else values
    schema = pa.schema([("id", data_type), ("title", pa.string()), ("record", RECORD)])
    trial = trial_of(server, tmp_path)
    trial.write(trial.begin(1, schema=schema), 0, changes([(value, "x", "insert") for value in values], schema))
    assert all(client.exists(b"shop:" + (text if isinstance(text, bytes) else text.encode())) for text in texts)
    assert all(trial.store.get(value) == {"id": value, "title": "x"} for value in values)
    trial.close()


# Whose keys they are


def test_keys_of_others_are_refused_and_left_alone(server, client, tmp_path) -> None:
    client.set("shop:old", "not ours")
    trial = trial_of(server, tmp_path)
    for attempt in (lambda: trial.begin(1), trial.backend.fences):
        with pytest.raises(Conflict, match="no flow has written them"):
            attempt()
    assert client.keys() == [b"shop:old"]
    client.rename("shop:old", "shopping")
    trial.begin(1)
    trial.close()


@pytest.mark.parametrize("form", FORMS)
def test_a_prefix_with_glob_characters_means_itself(server, client, tmp_path, form) -> None:
    others = [b"axb:1", b"a:1", b"b:1", b"ab", b"a*", b"\\:1", b"x"]
    for prefix in ("a*b:", "*", "?", "[ab]:", "[^a]", "a\\", "\\*", "[a-z", "]"):
        client.flushall()
        for other in others:
            if not other.startswith(prefix.encode()):
                client.set(other, "not ours")
        trial = trial_of(server, tmp_path, prefix=prefix, form=form)
        writer = trial.begin(1)
        trial.write(writer, 0, batch_of(0))
        assert trial.rows() == rows_after(0), prefix
        following = trial.begin(2, version=2)
        trial.write(following, 0, batch_of(0))
        trial.write(following, 1, batch_of(1))
        assert following.finish()
        assert trial.rows() == rows_after(1), prefix
        trial.backend.drop("live")
        assert sorted(client.keys()) == sorted(other for other in others if not other.startswith(prefix.encode()))
        trial.close()


@pytest.mark.parametrize("prefix", ["", "m", "mainstem", "mainstem.", "mainstem.store x", "x" * 1_025, 7, "\ud800"])
def test_a_prefix_that_cannot_be_is_refused(server, tmp_path, prefix) -> None:
    with mainstem.open(tmp_path / "home", upkeep="manual") as stem, pytest.raises(Invalid) as refused:
        stem.redis(server.address(), prefix=prefix, key="id")
    assert refused.value.detail
    assert refused.value.hint


def test_two_stores_in_one_redis_do_not_see_each_other(server, client, tmp_path) -> None:
    one, other = (trial_of(server, tmp_path / name, prefix=f"{name}:") for name in ("one", "other"))
    first, second = one.begin(1), other.begin(1)
    one.write(first, 0, batch_of(0))
    for number in range(2):
        other.write(second, number, batch_of(number))
    assert (one.rows(), other.rows()) == (rows_after(0), rows_after(1))
    one.backend.drop("live")
    assert one.backend.fences() == Fences(None, None)
    assert other.rows() == rows_after(1)
    one.close()
    other.close()


def test_prefixes_that_overlap_are_refused(server, client, tmp_path) -> None:
    trial = trial_of(server, tmp_path / "a", prefix="shop:")
    trial.begin(1)
    for prefix in ("shop:product:", "shop"):
        with pytest.raises(Conflict, match="overlap"):
            trial_of(server, tmp_path / "b", prefix=prefix).begin(1)
    # One that is gone is in nobody's way.
    client.delete("mainstem.store shop:")
    trial_of(server, tmp_path / "c", prefix="shop").begin(1)
    trial.close()


def test_a_value_that_another_program_wrote_is_named(server, client, tmp_path) -> None:
    for form, spoil in (
        ("json", lambda: client.set("shop:5", "{")),
        ("hash", lambda: client.hset("shop:5", "id", "x")),
    ):
        client.flushall()
        trial = trial_of(server, tmp_path, form=form)
        trial.write(trial.begin(1), 0, batch_of(0))
        spoil()
        for read in (trial.rows, lambda trial=trial: trial.store.get(5)):
            with pytest.raises(Conflict, match="not written") as named:
                read()
            assert named.value.hint
        trial.close()
    client.set("mainstem.store shop:", "x")
    with pytest.raises(Conflict, match="another type"):
        trial_of(server, tmp_path).backend.fences()


def test_a_store_that_is_replaced_while_it_is_read_is_not_read_as_a_mixture(
    server, client, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(redis_store, "KEYS_MAX", 3)
    trial = trial_of(server, tmp_path)
    trial.write(trial.begin(1), 0, batch_of(0))
    reading = trial.store.batches()
    next(reading)
    following = trial.begin(2, version=2)
    trial.write(following, 0, batch_of(0))
    following.finish()
    with pytest.raises(Unavailable, match="replaced while they were read"):
        list(reading)
    trial.close()


def test_keys_that_scan_gives_twice_are_read_once(server, client, tmp_path, monkeypatch) -> None:
    trial = trial_of(server, tmp_path)
    trial.write(trial.begin(1), 0, batch_of(0))
    scan = RedisStore._scan
    monkeypatch.setattr(RedisStore, "_scan", lambda self, *given: iter([*scan(self, *given), *scan(self, *given)]))
    assert trial.store.to_arrow().num_rows == len(rows_after(0))
    trial.close()


def test_the_form_changes_only_with_the_next_version(server, client, tmp_path) -> None:
    trial = trial_of(server, tmp_path)
    trial.write(trial.begin(1), 0, batch_of(0))
    other = trial_of(server, tmp_path, form="hash")
    with pytest.raises(Conflict, match='have the form "json"'):
        other.begin(2)
    following = other.begin(2, version=2)
    other.write(following, 0, batch_of(0))
    assert trial.rows() == rows_after(0)
    assert following.finish()
    assert other.rows() == rows_after(0)
    trial.close()
    other.close()


def test_a_row_that_another_program_deletes_at_the_switch_is_missing(server, client, tmp_path, monkeypatch) -> None:
    trial = trial_of(server, tmp_path)
    trial.write(trial.begin(1), 0, batch_of(0))
    following = trial.begin(2, version=2)
    trial.write(following, 0, batch_of(0))
    put = RedisStore._put_fence

    def deleted(self: RedisStore, *given: Any) -> None:
        client.delete("mainstem.next shop:5")
        put(self, *given)

    monkeypatch.setattr(RedisStore, "_put_fence", deleted)
    assert following.finish()
    assert set(trial.rows()) == set(rows_after(0)) - {5}
    assert trial.store.status.version == 2
    trial.close()


# Limits


@pytest.mark.parametrize("form", FORMS)
def test_a_value_that_redis_cannot_hold_is_rejected(server, client, tmp_path, monkeypatch, form) -> None:
    monkeypatch.setattr(redis_store, "VALUE_BYTES_MAX", 120)
    trial = trial_of(server, tmp_path, form=form)
    writer = trial.begin(1)
    rows = changes([(1, "x" * 110, "insert"), (2, "x" * 121, "insert"), (3, "x" * 90, "insert")])
    # As JSON the whole row is one value.
    whole = [(0, "the row has more than the 120")] if form == "json" else []
    assert [
        (rejection.row, rejection.reason.partition(" bytes")[0]) for rejection in writer.prepare(rows).rejections
    ] == [*whole, (1, 'column "title" has more than the 120')]
    trial.write(writer, 0, rows)
    assert set(trial.rows()) == ({3} if form == "json" else {1, 3})
    trial.close()


def test_rows_are_encoded_in_pieces(server, client, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(redis_store, "ENCODED_BYTES_MAX", 50)
    monkeypatch.setattr(redis_store, "KEYS_MAX", 2)
    for form in FORMS:
        trial = trial_of(server, tmp_path, prefix=form, form=form)
        writer = trial.begin(1)
        for number in range(2):
            trial.write(writer, number, batch_of(number))
        assert trial.rows() == rows_after(1)
        trial.close()


# Connections


@pytest.mark.forks
def test_a_forked_process_opens_its_own_connection(server, client, tmp_path) -> None:
    backend = RedisStore(server.address(), "shop:")
    before = backend._client.client_id()
    child = os.fork()
    if child == 0:
        other = -1
        try:
            other = backend._client.client_id()
        finally:
            os._exit(0 if other not in (before, -1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert backend._client.client_id() == before
    backend.close()


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
def test_a_batch_whose_answer_was_lost_is_written_once_or_not(server, client, tmp_path, cut) -> None:
    with CuttingProxy(server.port) as proxy:
        trial = trial_of(server, tmp_path, url=server.address(port=proxy.port))
        writer = trial.begin(1)
        proxy.cut(b"EXEC", cut)
        if cut is Cut.BEFORE:
            with pytest.raises(DatabaseUnavailable) as lost:
                trial.write(writer, 0, batch_of(0))
            assert lost.value.hint
        else:
            trial.write(writer, 0, batch_of(0))
        assert proxy.cuts == 1
        assert writer.find_change() is None
        assert trial.store.reached(1) == (-1 if cut is Cut.BEFORE else 0)
        assert trial.rows() == ({} if cut is Cut.BEFORE else rows_after(0))
        trial.close()


def test_a_fence_that_moves_between_the_look_and_exec_stops_the_batch(server, client, tmp_path, monkeypatch) -> None:
    one, other = trial_of(server, tmp_path), trial_of(server, tmp_path)
    writer = one.begin(1)
    put = RedisStore._put_rows

    def overtaken(self: RedisStore, *given: Any) -> None:
        monkeypatch.setattr(RedisStore, "_put_rows", put)
        other.begin(2)
        put(self, *given)

    monkeypatch.setattr(RedisStore, "_put_rows", overtaken)
    with pytest.raises(mainstem.Fenced) as fenced:
        one.write(writer, 0, batch_of(0))
    assert isinstance(fenced.value.__context__, FenceMoved)
    assert one.rows() == {}
    one.close()
    other.close()


def test_tls(server, client, tmp_path) -> None:
    made = make_certificate(tmp_path)
    if made is None:
        cannot_run("openssl", "it made no certificate")
    certificate, both = made
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(both)
    listener = socket.create_server(("127.0.0.1", 0))
    passing = threading.Thread(target=decrypt, args=(listener, context, server.port), daemon=True)
    passing.start()
    with listener:
        url = server.address(port=listener.getsockname()[1]).replace("redis://", "rediss://")
        trial = trial_of(server, tmp_path, url=f"{url}?ssl_ca_certs={quote(str(certificate))}")
        trial.go_on(1, 1)
        assert trial.rows() == rows_after(1)
        trial.close()
        with pytest.raises(DatabaseUnavailable, match="cannot be reached") as refused:
            RedisStore(url, "shop:").fences()
        assert "certificate" in refused.value.detail.lower()
        # Wakes the thread that waits for the next connection.
        listener.shutdown(socket.SHUT_RDWR)
        passing.join()


def decrypt(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    """Pass on what comes over TLS, one connection after another, until the listener is closed."""
    with suppress(OSError):
        while True:
            taken = listener.accept()[0]
            with suppress(ssl.SSLError), taken, context.wrap_socket(taken, server_side=True) as secure:
                with socket.create_connection(("127.0.0.1", port)) as plain:
                    pass_on(secure, plain)


def pass_on(secure: ssl.SSLSocket, plain: socket.socket) -> None:
    with selectors.DefaultSelector() as waiting:
        for one, other in ((secure, plain), (plain, secure)):
            waiting.register(one, selectors.EVENT_READ, other)
        while True:
            for key, _ in waiting.select():
                got = key.fileobj.recv(1 << 16)
                while key.fileobj is secure and secure.pending():
                    got += secure.recv(1 << 16)
                if not got:
                    return
                key.data.sendall(got)


# Errors


def test_what_redis_refuses_is_told_in_three_parts(tmp_path) -> None:
    with RedisServer() as server, server.client() as client:
        trial = trial_of(server, tmp_path)
        writer = trial.begin(1)

        def refusal(kind: type[MainstemError], number: int = 0) -> MainstemError:
            with pytest.raises(kind) as refused:
                trial.write(writer, number, batch_of(number))
            assert refused.value.detail
            assert refused.value.hint
            assert type(refused.value) is kind
            assert trial.store.reached(1) == -1
            return refused.value

        client.config_set("maxmemory", 1)
        refusal(DiskFull)
        client.config_set("maxmemory", 1 << 30)
        client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(Invalid, match="evicts keys"):
            trial.begin(2)
        client.config_set("maxmemory-policy", "noeviction")
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        assert "replica" in refusal(DatabaseUnavailable).hint
        client.execute_command("REPLICAOF", "NO", "ONE")
        client.execute_command("ACL", "SETUSER", "default", "resetkeys", "~mainstem.*")
        assert "ACL SETUSER" in refusal(Invalid).hint
        client.execute_command("ACL", "SETUSER", "default", "allkeys")
        trial.write(writer, 0, batch_of(0))
        assert trial.rows() == rows_after(0)
        trial.close()


def test_a_redis_that_hangs_or_is_down_is_unavailable(tmp_path) -> None:
    with RedisServer(appendonly=True) as server:
        trial = trial_of(server, tmp_path, url=server.address(more="?socket_timeout=1"))
        writer = trial.begin(1)
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(DatabaseUnavailable, match="cannot be reached"):
            trial.write(writer, 0, batch_of(0))
        os.kill(server.pid, signal.SIGCONT)
        server.stop(signal.SIGKILL)
        for attempt in (lambda: trial.write(writer, 0, batch_of(0)), trial.backend.fences, lambda: trial.store.get(1)):
            with pytest.raises(DatabaseUnavailable, match="cannot be reached"):
                attempt()
        # A program is built without it.
        trial.store.accept(SCHEMA)
        server.start()
        trial.write(writer, 0, batch_of(0))
        assert trial.rows() == rows_after(0)
        trial.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (redis_errors.BusyLoadingError("Redis is loading the dataset in memory"), DatabaseUnavailable),
        (redis_errors.TimeoutError("Timeout reading from socket"), DatabaseUnavailable),
        (
            redis_errors.ResponseError("Command # 3 (SET a b) of pipeline caused error: MISCONF Errors writing"),
            DatabaseUnavailable,
        ),
        (redis_errors.ResponseError("NOREPLICAS Not enough good replicas to write."), DatabaseUnavailable),
        (redis_errors.MasterDownError("Link with MASTER is down"), DatabaseUnavailable),
        (redis_errors.ConnectionError("max number of clients reached"), DatabaseUnavailable),
        (redis_errors.ReadOnlyError("You can't write against a read only replica."), DatabaseUnavailable),
        (redis_errors.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), DiskFull),
        (redis_errors.AuthenticationError("invalid username-password pair"), Invalid),
        (redis_errors.NoPermissionError("this user has no permissions"), Invalid),
        (redis_errors.MovedError("3999 127.0.0.1:6381"), Invalid),
        (redis_errors.ResponseError("unknown command `UNLINK`"), Invalid),
        (redis_errors.ResponseError("WRONGTYPE Operation against a key"), Conflict),
    ],
)
def test_every_error_of_redis_becomes_one_of_ours(error, kind) -> None:
    address = RedisAddress.parse("redis://h")
    with pytest.raises(kind) as translated, address.translate_errors('keys "shop:*"'):
        raise error
    assert type(translated.value) is kind
    assert translated.value.detail
    assert translated.value.hint
    assert "SET a b" not in str(translated.value)


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost", "http://h", "redis://:pa/ss@h", "redis://:12/ss@h", "redis://:12?ss@h", "redis://:12#ss@h", "redis://a@b@h",
        "redis://h/x", "redis://h:port", "redis://h?decode_responses=1", "redis://h?socket_timeout=0", "redis://h?socket_timeout=x",
        "redis://h?ssl_odd=1", "redis://[", "redis://h/\n", 7, b"redis://:pass@h", "redis://\ud800",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused_without_being_shown(url) -> None:
    with pytest.raises(Invalid, match="not a valid address of a Redis") as refused:
        RedisStore(url, "shop:")
    assert "pass" not in str(refused.value).replace("password", "")
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h", "redis://h:6379/0"),
        ("rediss://shop:x@h:1/3?ssl_cert_reqs=required", "rediss://shop@h:1/3"),
        ("redis://h?db=2&password=geheim", "redis://h:6379/2"),
        ("redis://[::1]:1", "redis://::1:1/0"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
    ],
)
def test_an_address_is_shown_without_its_password(url, shown) -> None:
    assert RedisStore(url, "shop:").location == f'{shown}, keys "shop:*"'


def test_a_password_is_nowhere(server, client, tmp_path, capfd, caplog) -> None:
    said = []
    trial = trial_of(server, tmp_path)
    said += [repr(trial.store), repr(trial.backend), repr(trial.backend._address), trial.store.location]
    wrong = server.address().replace("s3cret", "wrong")
    with CuttingProxy(server.port) as proxy:
        pass
    down = server.address(port=proxy.port)
    for url in (
        wrong,
        down,
        down.replace("redis://", "rediss://"),
        server.address() + "?x=1",
        server.address(database=999),
    ):
        with pytest.raises(MainstemError) as raised:
            trial_of(server, tmp_path, url=url).backend.fences()
        said.append("".join(traceback.format_exception(raised.value)))
    secret = redis_errors.ConnectionError(f"cannot reach redis://:{QUOTED_PASSWORD}@h or redis://:{PASSWORD}@h")
    with pytest.raises(MainstemError) as raised, trial.backend._address.translate_errors("keys"):
        raise secret
    assert "***" in raised.value.detail
    said.append(str(raised.value))
    trial.go_on(1, 1)
    trial.store.record.use(1)
    said += [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    said += [repr([client.dump(key) for key in client.scan_iter()]), *capfd.readouterr(), caplog.text]
    assert len(said) > 10
    for text in said:
        assert "canary" not in text
    trial.close()


@pytest.mark.long
class TestKilledRedisStore(TestRedisStore):
    kills = 20
