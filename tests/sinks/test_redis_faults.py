"""S5 and G11 without Spark: Redis is killed while batches are written; and keys, prefixes and values that look like commands.

A kill falls on a random command of a batch: a random part of its bytes has been sent, or all of them a moment ago.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from redis.connection import Connection

from mainstem.errors import Invalid, MainstemError, Unavailable
from mainstem.log.record import RECORD
from mainstem.sinks.redis_address import RedisAddress
from mainstem.sinks.redis_store import RedisStore
from mainstem.sinks.store_backend import Fence, Fences, StoreChange
from mainstem.testing.store_trial import ODD, StoreTrial, batch_of, changes, rows_after
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.starts_servers, pytest.mark.thorough]

SEED = 5_501
KILLS, KILLS_LONG = 20, 100
PAYLOADS, PAYLOADS_LONG = 500, 5_000
# WATCH, HGET and MULTI ... EXEC.
COMMANDS_A_BATCH = 3
BATCHES = 3
# HGET of both fences twice, WATCH, a SCAN of each copy, MULTI ... EXEC.
COMMANDS_A_SWITCH = 7
# As long as Redis may need for a batch, with its fsync.
MOMENT_SECONDS = 0.003

STORE = "mainstem.sinks.redis_store:RedisStore"


# S5: killed servers


@contextmanager
def killed_at(server: RedisServer, chance: random.Random, commands: int = COMMANDS_A_BATCH * BATCHES) -> Iterator[None]:
    """The server is killed at one of the next commands."""
    send, left = Connection.send_packed_command, chance.randint(1, commands)

    def send_or_kill(self: Connection, command: Any, *more: Any, **named: Any) -> None:
        nonlocal left
        left -= 1
        if left != 0:
            send(self, command, *more, **named)
            return
        sent = command if isinstance(command, bytes) else b"".join(command)
        if chance.random() < 0.5:
            send(self, [sent[: chance.randrange(len(sent) + 1)]], *more, **named)
        else:
            send(self, [sent], *more, **named)
            deadline = time.perf_counter() + chance.random() * MOMENT_SECONDS
            while time.perf_counter() < deadline:
                pass
        server.stop(signal.SIGKILL)

    Connection.send_packed_command = send_or_kill
    try:
        yield
    finally:
        Connection.send_packed_command = send


class KilledRedis:
    """A store in a Redis that is killed again and again; counts what was compared, and what was wrong."""

    def __init__(self, folder: Path, way: str = STORE, *, appendonly: bool, form: str = "json") -> None:
        self.server = RedisServer(appendonly=appendonly)
        self.kept = appendonly
        self.way, self.folder, self.form = way, folder, form
        self.chance = random.Random(SEED)
        self.compared, self.batches, self.violations = 0, 0, []

    def trial(self) -> StoreTrial:
        arguments = {"url": self.server.address(), "prefix": "shop:", "form": self.form}
        return StoreTrial(self.folder, self.way, arguments)

    def run(self, kills: int, *, stop_at_first: bool = False) -> None:
        try:
            for kill in range(kills):
                if stop_at_first and self.violations:
                    break
                self.kill(kill)
        finally:
            self.server.close()

    def kill(self, number: int) -> None:
        trial = self.trial()
        writer = trial.begin(number + 1)
        answered = writer.committed_batch
        with killed_at(self.server, self.chance):
            try:
                while True:
                    trial.write(writer, answered + 1, batch_of(answered + 1))
                    answered += 1
                    self.batches += 1
            except Unavailable:
                pass
        self.server.start()
        if self.kept:
            self.check_kept(number, trial, answered)
        else:
            self.check_lost(number, trial, writer, answered)
        trial.close()

    def check_kept(self, number: int, trial: StoreTrial, answered: int) -> None:
        reached, rows = trial.store.reached(1), trial.rows()
        self.compared += len(rows) + 1
        if reached not in (answered, answered + 1):
            self.violations.append(f"kill {number}: the fence says batch {reached}, and {answered} was answered")
        if rows != (rows_after(reached) if reached >= 0 else {}):
            self.violations.append(f"kill {number}: the rows are not those of batch {reached}")

    def check_lost(self, number: int, trial: StoreTrial, writer: Any, answered: int) -> None:
        self.compared += 3
        if trial.backend.fences() != Fences(None, None):
            self.violations.append(f"kill {number}: a fence is there")
        if not isinstance(writer.find_change(), Unavailable):
            self.violations.append(f"kill {number}: the loss was not noticed")
        try:
            trial.write(writer, answered + 1, batch_of(answered + 1))
            self.violations.append(f"kill {number}: batch {answered + 1} was written without those before it")
        except Unavailable:
            pass
        with self.server.client() as client:
            if client.dbsize():
                self.violations.append(f"kill {number}: something was written")
            client.flushall()


@pytest.mark.parametrize(
    "kills", [pytest.param(KILLS, id="some"), pytest.param(KILLS_LONG, id="all", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("form", ["json", "hash"])
@pytest.mark.parametrize("appendonly", [True, False], ids=["aof", "memory"])
def test_a_redis_that_is_killed_has_what_its_fence_says(
    tmp_path: Path, fault_report: Callable[..., None], appendonly: bool, form: str, kills: int
) -> None:
    killed = KilledRedis(tmp_path, appendonly=appendonly, form=form)
    killed.run(kills)
    fault_report(
        f"S5 Redis killed, {'with AOF' if appendonly else 'in memory'}, {form}", points=kills, compared=killed.compared,
        violations=killed.violations, seed=SEED, batches=killed.batches,
    )  # fmt: skip


class FenceApart(RedisStore):
    """A broken build: rows and fence are written in two transactions."""

    def commit(self, change: StoreChange) -> None:
        if change.upserts is not None:
            super().commit(replace(change, fence=change.expected))
        super().commit(replace(change, upserts=None, deletes=None))


class FenceUnread(RedisStore):
    """A broken build: whatever the fence is, the batch is written."""

    def commit(self, change: StoreChange) -> None:
        super().commit(replace(change, expected=self.fences().of(change.copy)))


class SwitchInSteps(RedisStore):
    """A broken build: the live rows are deleted before the others are renamed."""

    def switch(self, expected: Fences, fence: Fence) -> None:
        with self._address.translate_errors(self._title):
            for key in self._scan(self._client, "live"):
                self._client.delete(key)
        super().switch(expected, fence)


def kill_switches(folder: Path, kills: int, way: str = STORE) -> tuple[int, list[str]]:
    chance, compared, violations = random.Random(SEED), 0, []
    with RedisServer(appendonly=True) as server:
        for kill in range(kills):
            if violations and way != STORE:
                break
            trial = StoreTrial(folder, way, {"url": server.address(), "prefix": f"{kill}:"})
            writer = trial.begin(1)
            trial.write(writer, 0, batch_of(0))
            writer.finish()
            following = trial.begin(2, version=2)
            for number in range(3):
                trial.write(following, number, batch_of(number))
            with killed_at(server, chance, COMMANDS_A_SWITCH), suppress(Unavailable):
                following.finish()
                server.stop(signal.SIGKILL)
            server.start()
            version, rows = trial.store.status.version, trial.rows()
            compared += len(rows)
            if rows != rows_after(0 if version == 1 else 2):
                violations.append(f"kill {kill}: version {version} has other rows")
            again = trial.begin(3, version=2)
            if again.filling and not again.finish():
                violations.append(f"kill {kill}: version 2 cannot be switched to any more")
            if trial.rows() != rows_after(2):
                violations.append(f"kill {kill}: version 2 has other rows after the switch")
            trial.close()
    return compared, violations


@pytest.mark.parametrize(
    "kills", [pytest.param(KILLS // 2, id="some"), pytest.param(KILLS_LONG, id="all", marks=pytest.mark.long)]
)
def test_a_redis_killed_at_the_switch_has_one_version_or_the_other(
    tmp_path: Path, fault_report: Callable[..., None], kills: int
) -> None:
    compared, violations = kill_switches(tmp_path, kills)
    fault_report("S5 Redis killed at the switch", points=kills, compared=compared, violations=violations, seed=SEED)


def test_a_broken_switch_is_caught_by_kills(tmp_path: Path) -> None:
    assert kill_switches(tmp_path, KILLS, "tests.sinks.test_redis_faults:SwitchInSteps")[1]


@pytest.mark.parametrize(("broken", "appendonly"), [("FenceApart", True), ("FenceUnread", False)])
def test_a_broken_store_is_caught_by_kills(tmp_path: Path, broken: str, appendonly: bool) -> None:
    killed = KilledRedis(tmp_path, f"tests.sinks.test_redis_faults:{broken}", appendonly=appendonly)
    killed.run(KILLS, stop_at_first=True)
    assert killed.violations


# G11: payloads

COMMANDS = [
    "\r\n", "*1\r\n$8\r\nFLUSHALL\r\n", "*2\r\n$3\r\nDEL\r\n$6\r\ncanary\r\n", "\r\nFLUSHALL\r\n", "$-1\r\n", "*-1\r\n", "+OK\r\n", "-ERR x\r\n",
    ":1\r\n", "SET canary x\r\n", "EXEC\r\n", "DISCARD", "MULTI\r\nDEL canary\r\nEXEC\r\n", "*", "?", "[a-z]", "[^x]*", "c?nary", "canar[xy]",
    "\\", "\\*", "[", "]", "{", "}", "{a}b", "^", "-", "return redis.call('FLUSHALL')", "]]redis.call('DEL','canary')--", "KEYS[1]",
    "' .. redis.call('FLUSHALL') .. '", "EVAL \"return 1\" 0", '"}', '{"id":1}', '","', '["a","b"]', "\\u0000", "\\\"", "\0", "\x1b[2J", "mainstem",
    "mainstem.store shop:", "mainstem.next ", "canary", "%s", "{0}", "$(FLUSHALL)", "\u2028", "\U0001f600", "é", "e\u0301",
]  # fmt: skip
OTHERS = {b"canary": b"alive", b"canarx": b"x", b"a": b"1", b"cxnary": b"2", b"z": b"3", b"0": b"4", b" x": b"5"}


def payloads(count: int) -> list[str]:
    chance = random.Random(SEED)
    made = dict.fromkeys([*COMMANDS, *ODD])
    while len(made) < count:
        made["".join(chance.choice([*COMMANDS, *ODD, ":", "x"]) for _ in range(chance.randint(2, 4)))] = None
    return list(made)[:count]


def check_payloads(server: RedisServer, folder: Path, count: int, way: str = STORE) -> tuple[int, list[str]]:
    """Each payload is the prefix of a store, a key and a value of it, and the name of a column."""
    compared, violations, tried = 0, [], payloads(count)
    with server.client() as client, pytest.MonkeyPatch.context() as patch:
        # Connections take longer than all else.
        patch.setattr(RedisAddress, "connect", lambda _: client)
        client.flushall()
        client.mset(OTHERS)
        for number, payload in enumerate(tried):
            if violations and way != STORE:
                break
            other = tried[(number * 7 + 1) % len(tried)]
            form = ("json", "hash")[number % 2]
            taken = any(key.startswith(payload.encode()) for key in OTHERS)
            # A longer prefix is refused.
            prefix = (f"p:{payload}" if taken or payload.startswith("mainstem") else payload)[:200]
            try:
                found = write_and_read(server, folder, way, prefix, form, payload, other)
            except MainstemError as error:
                violations.append(f"{payload!r}: {type(error).__name__}: {error.summary}")
                found = ""
            compared += 1 + len(OTHERS)
            keys = client.keys()
            there = dict(zip(keys, client.mget(keys), strict=True))
            if found or there != OTHERS:
                violations.append(f"{payload!r}: {found or 'keys of others were changed, or keys left'}")
                client.flushall()
                client.mset(OTHERS)
    return compared, violations


def write_and_read(
    server: RedisServer, folder: Path, way: str, prefix: str, form: str, payload: str, other: str
) -> str:
    """What is wrong, if anything; the store is dropped."""
    name = payload if payload not in ("a", "b", "record") else "c"
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), (name, pa.string()), ("record", RECORD)])
    key = ("a", "b") if len(payload) % 2 else ("a",)
    arguments = {"url": server.address(), "prefix": prefix, "form": form}
    trial = StoreTrial(folder, way, arguments, key)
    try:
        writer = trial.begin(1, schema=schema)
    except Invalid:
        # Some names of columns are refused by all stores.
        name = "c"
        schema = schema.set(2, pa.field(name, pa.string()))
        writer = trial.begin(1, schema=schema)
    rows = {
        (payload, other): payload,
        (other, payload): other,
        (payload + other, ""): None,
        (f"{payload}x", "gone"): "x",
    }
    rows = {(a, b): value for (a, b), value in rows.items() if len(key) == 2 or (payload != other or b == other)}
    trial.write(writer, 0, changes([(*pair, value, "insert") for pair, value in rows.items()], schema))
    gone = (f"{payload}x", "gone")
    trial.write(writer, 1, changes([(*gone, None, "delete")], schema, first=100))
    del rows[gone]
    found = {(row["a"], row["b"]): row[name] for row in trial.store.to_arrow().to_pylist()}
    got = {pair: trial.store.get(pair if len(key) == 2 else pair[0]) for pair in rows}
    trial.backend.drop("live")
    if found != rows:
        return f"{len(found)} rows were read, not {len(rows)}, or others"
    wrong = [pair for pair, row in got.items() if row != {"a": pair[0], "b": pair[1], name: rows[pair]}]
    return f"got another row for {wrong}" if wrong else ""


@pytest.mark.parametrize(
    "count", [pytest.param(PAYLOADS, id="some"), pytest.param(PAYLOADS_LONG, id="all", marks=pytest.mark.long)]
)
def test_payloads_are_values_and_nothing_else(tmp_path: Path, fault_report: Callable[..., None], count: int) -> None:
    with RedisServer() as server:
        compared, violations = check_payloads(server, tmp_path, count)
    fault_report("G11 payloads for Redis", points=count, compared=compared, violations=violations, seed=SEED)


class GlobUnescaped(RedisStore):
    """A broken build: a prefix is taken for a pattern."""

    def _scan(self, client: Any, copy: Any) -> Iterator[bytes]:
        return iter(client.scan_iter(match=self._rows(copy) + b"*"))


class KeysJoined(RedisStore):
    """A broken build: values are pasted into the text of a command."""

    def _put_strings(self, pipe: Any, keys: list[bytes], rows: pa.RecordBatch) -> None:
        for key in keys:
            pipe.execute_command("SET", *(key + b" x").split(b" ", 1))


@pytest.mark.parametrize("broken", ["GlobUnescaped", "KeysJoined"])
def test_a_broken_store_is_caught_by_payloads(tmp_path: Path, broken: str) -> None:
    with RedisServer() as server:
        assert check_payloads(server, tmp_path, PAYLOADS, f"tests.sinks.test_redis_faults:{broken}")[1]
