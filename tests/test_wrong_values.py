"""Every public function is called with odd values: it works, or says what is wrong in an error of Mainstem's own.

Each call has arguments that are right but for one or two, which are taken from a list of odd values. What needs Spark is
not called here.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import mainstem
from mainstem import Backoff, Keep, Mainstem, MainstemError, operators
from mainstem.batch import Batch, FlowRun
from mainstem.views.view import View

SEED = 22_022
CALLS = 10_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)
# Without a zone.
FIRST, LAST = datetime.min, datetime.max  # noqa: DTZ901

NO_TEXT = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])


class Unfriendly:
    """Cannot be compared, counted, shown or gone through."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    def __hash__(self) -> int:
        raise RuntimeError("no")


ODD: list[Any] = [
    None, True, False, -1, 0, 1, 7, 1 << 31, 1 << 63, 1 << 70, -(1 << 70), 1.5, float("nan"), float("inf"), 1e300,
    "", " ", "x", "orders", "no_such", "Orders", "x" * 70_000, "\ud800", "\0", "a\nb", "../up", ".", "*", "%s", "'", '"',
    "orders@0:1", "orders@99:1", "orders@0:99999999999999999999", "orders@0:1;" * 1000, "10 seconds", "-1 second", "1e400 days",
    "9" * 400 + " days", "n INT", "earliest", "latest", "SELECT 1", "DROP TABLE orders", "k = ", "k = 'a'", b"", b"\xff",
    bytearray(b"x"), object(), Unfriendly(), [], {}, (), set(), frozenset({1}), [None], [[]], [1, "a"], ["k", "k"], ["k"],
    ["no_such"], [object()], {"k": "a"}, {"k": 1}, {"k": None}, {1: 2}, {0: 0}, {0: -1}, {99: 0}, {"0": 0}, {0: "0"},
    {0: 1 << 70}, {None: None}, [{"k": "a"}], [{"k": "\ud800"}], [{"n": 1 << 70}], [{"at": LAST}], [{"no": 1}], [{1: 1}],
    [{"k": "a", "n": float("nan")}], [{"k": "x" * 3_000_000}], range(3), (n for n in range(3)), iter([]), print, int, Exception,
    Exception("no"), FIRST, LAST, FIRST.replace(tzinfo=UTC), LAST.replace(tzinfo=UTC),
    NOW, date(2026, 1, 1), timedelta(0), timedelta(-1), timedelta.max, timedelta.min, Decimal("NaN"), Decimal("1e400"),
    Decimal("-0"), 1j, Path("x"), Path("\0"), pa.table({"k": ["a"]}), pa.table({"k": [1]}), pa.table({}), pa.schema([]),
    pa.schema({"k": pa.string()}), pa.schema({"k": pa.duration("s")}), pa.table({"k": NO_TEXT}), pa.array([1]), pa.scalar(1), pa.int8(),
    pa.table({"at": pa.array([1 << 62], pa.timestamp("us", "UTC"))}), pa.table([["a"], ["b"]], ["k", "k"]),
]  # fmt: skip


class Calls:
    """Calls of public functions in a home, each with arguments that are right. For one thread."""

    def __init__(self, stem: Mainstem, folder: Path) -> None:
        self.stem = stem
        self.folder = folder
        self.made = 0
        self.member: mainstem.Member | None = None
        self.joined = ""
        self._view()

    def close(self) -> None:
        if self.member is not None:
            with suppress(MainstemError):
                self.member.leave()

    def _view(self) -> None:
        schema = pa.schema({"store": pa.string(), "amount": pa.int64()})
        run = FlowRun("totals", 1)
        writer = View(self.folder / "home", "totals", key="store").writer(run, schema)
        writer.apply(pa.table({"store": ["a"], "amount": [1]}, schema=schema), Batch(0, run))
        writer.close()

    def topic(self) -> mainstem.Topic:
        if "orders" not in self.stem.topics():
            self.stem.create_topic(
                "orders", schema="k STRING, n INT, at TIMESTAMP", key="k", event_time="at", partitions=2
            )
        return self.stem.topic("orders")

    def new_name(self) -> str:
        self.made += 1
        return f"t{self.made}"

    def all(self) -> Iterator[tuple[str, Callable[[], Callable[..., Any]], dict[str, Any]]]:
        """Name, where to find the function, and right arguments for it."""
        yield (
            "open",
            lambda: self._opened,
            {"home": self.folder / "other", "log": None, "views": None, "upkeep": "manual"},
        )
        for name, arguments in {
            "create_topic": {"name": "fresh", "schema": "k STRING, at TIMESTAMP", "key": "k", "event_time": "at",
                             "partitions": 1, "keep": "forever", "idle_after": "1 minute", "ahead_max": "1 day",
                             "segment_bytes_max": "1 MiB"},
            "delete_topic": {"topic": "fresh"},
            "topic": {"topic": "orders"},
            "topics": {"glob": None},
            "view": {"name": "totals", "key": "store", "changes_max": 10, "changes_age": "1 day", "history": "1 day"},
            "files": {"path": "out", "partition_by": ()},
            "producer": {"name": "checkout"},
            "query": {"sql": "SELECT count(*) FROM orders WHERE n > ?", "parameters": [1]},
            "transaction": {"timeout": "1 minute"},
        }.items():  # fmt: skip
            yield f"stem.{name}", lambda name=name: getattr(self.stem, name), arguments
        rows = [{"k": "a", "n": 1, "at": NOW}]
        reads = {"start": "earliest", "stop": "latest", "columns": ["k"], "watermark": "1 minute"}
        for name, arguments in {
            "append": {"rows": rows, "partition": None},
            "delete": {"keys": ["a"]},
            "to_arrow": reads,
            "batches": reads,
            "follow": {"start": "earliest", "columns": ["k"], "watermark": "1 minute", "wait": "0 seconds", "rows_max": 5},
            "alter": {"keep": "7 days", "idle_after": "1 minute"},
            "group": {"name": "g"},
            "lag": {"offsets": {0: 0}},
            "join_group": {"name": "g", "session": "1 minute", "start": "earliest"},
            "queue": {"name": "q", "lease": "1 minute", "deliveries_max": 3, "retry": Backoff("1 second"), "ordered": None,
                      "where": "n > 0", "expires": "1 day", "length_max": 100, "start": "earliest", "held_by": "lease"},
            "open_queue": {"name": "q", "held_by": "lease"},
        }.items():  # fmt: skip
            yield f"topic.{name}", lambda name=name: getattr(self.topic(), name), arguments
        for name, arguments in {
            "append": {"topic": "orders", "rows": rows, "sequence": None},
            "last_sequence": {"topic": "orders"},
            "kept_sequence": {"topic": "orders"},
            "declare_watermark": {"topic": "orders", "at": NOW},
            "transaction": {"timeout": "1 minute"},
        }.items():
            yield f"producer.{name}", lambda name=name: getattr(self._producer(), name), arguments
        for name, arguments in {
            "append": {"topic": "orders", "rows": rows, "sequence": None},
            "delete": {"topic": "orders", "keys": ["a"]},
            "commit_offsets": {"member": None},
        }.items():
            yield f"transaction.{name}", lambda name=name: getattr(self._transaction(), name), arguments
        for name, arguments in {
            "acknowledge": {"messages": "no receipt"},
            "extend": {"receipt": "no receipt", "duration": "1 minute"},
            "reject": {"receipt": "no receipt", "reason": "no"},
            "release": {"receipt": "no receipt", "delay": "1 minute", "error": None},
            "rewind": {"to": "earliest"},
            "take": {"count": 1, "wait": "0 seconds"},
        }.items():
            yield f"queue.{name}", lambda name=name: getattr(self._queue(), name), arguments
        for name, arguments in {
            "reject": {"reason": "no"},
            "release": {"delay": "0 seconds", "error": None},
            "extend": {"duration": "1 minute"},
        }.items():
            yield f"message.{name}", lambda name=name: getattr(self._message(), name), arguments
        for name, arguments in {
            "poll": {"wait": "0 seconds", "rows_max": 5},
            "seek": {"to": "earliest"},
        }.items():
            yield f"member.{name}", lambda name=name: getattr(self._member(), name), arguments
        for name, arguments in {
            "get": {"key": "a", "after": None, "wait": "0 seconds", "as_of": None},
            "query": {"sql": "SELECT * FROM totals WHERE amount > ?", "parameters": [1], "as_of": None},
            "to_arrow": {"as_of": None},
            "changes": {"after": 0, "limit": 10},
            "difference": {"before": 1, "after": 1},
            "export": {"folder": self.folder / "exported", "as_of": None},
            "offsets": {"version": 1},
            "drop_version": {"version": 7},
            "use": {"version": 1},
            "subscribe": {"cursor": None, "wait": "0 seconds"},
        }.items():
            yield f"view.{name}", lambda name=name: getattr(self.stem.view("totals"), name), arguments
        yield "Keep", lambda: Keep, {"age": "1 day", "size": "1 MiB"}
        yield (
            "Keep.latest_per_key",
            lambda: Keep.latest_per_key,
            {"tombstones": "1 day", "lag_min": "0 seconds", "lag_max": "1 day"},
        )
        yield "Keep.parse", lambda: Keep.parse, {"value": "7 days"}
        yield "Backoff", lambda: Backoff, {"first": "1 second", "max": "1 minute", "growth": "linear"}
        for name, arguments in {
            "after_rows": {"count": 3},
            "calendar": {"unit": "day", "time_zone": "UTC"},
            "cumulating": {"size": "1 minute", "step": "1 second", "offset": "0 seconds"},
            "every": {"period": "1 minute", "since": "epoch"},
            "first_of": {},
            "hopping": {"size": "1 minute", "slide": "1 second", "offset": "0 seconds"},
            "sessions": {"gap": "1 minute", "touching": "split"},
            "sliding": {"span": "1 minute"},
            "tumbling": {"size": "1 minute", "offset": "0 seconds"},
        }.items():
            yield f"operators.{name}", lambda name=name: getattr(operators, name), arguments

    def _opened(self, **arguments: Any) -> None:
        # A path that the odd values name is made in the test's own folder.
        mainstem.open(**arguments).close()

    def _producer(self) -> mainstem.Producer:
        self.topic()
        return self.stem.producer("checkout")

    def _transaction(self) -> mainstem.Transaction:
        self.topic()
        return self.stem.transaction(timeout="1 minute")

    def _queue(self) -> mainstem.Queue:
        return self.topic().queue("tasks", held_by="lease")

    def _message(self) -> mainstem.Message:
        self.topic().append([{"k": "a"}])
        return self._queue().take()[0]

    def _member(self) -> mainstem.Member:
        # Some of the calls delete the topic.
        topic = self.topic()
        if self.member is None or self.joined != topic.backend.id:
            self.member, self.joined = topic.join_group("readers", session="1 hour"), topic.backend.id
        return self.member


def shown(name: str, arguments: dict[str, Any], error: BaseException) -> str:
    told = ", ".join(
        f"{key}={value!r:.60}" if not isinstance(value, Unfriendly) else f"{key}=Unfriendly"
        for key, value in arguments.items()
    )
    return f"{name}({told}): {type(error).__name__}: {error!s:.200}"


def wrong_errors(folder: Path, calls: int, seed: int) -> dict[tuple[str, str], str]:
    chance = random.Random(seed)
    found: dict[tuple[str, str], str] = {}
    with mainstem.open(folder / "home", upkeep="manual") as stem:
        made = Calls(stem, folder)
        every = list(made.all())
        for _ in range(calls):
            name, function, right = chance.choice(every)
            arguments = dict(right)
            for odd in chance.sample(sorted(right), min(len(right), chance.choice([1, 1, 2]))):
                arguments[odd] = chance.choice(ODD)
            try:
                result = function()(**arguments)
                if inspect.isgenerator(result) or isinstance(result, Iterator):
                    next(result, None)
                if isinstance(result, mainstem.Member):
                    result.leave()
                if isinstance(result, mainstem.Transaction):
                    result.abort()
            except MainstemError:
                pass
            except Exception as error:  # noqa: BLE001 - which kind it is, is the question
                changed = {key: value for key, value in arguments.items() if value is not right[key]}
                found.setdefault((name, type(error).__name__), shown(name, changed, error))
        made.close()
    return found


def test_odd_values_are_taken_or_refused_in_words_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = wrong_errors(tmp_path, CALLS, SEED)
    assert not found, "\n".join(found.values())
