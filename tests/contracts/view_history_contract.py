"""What every view with history promises: to tell what it was, or to say that it cannot."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from mainstem.batch import Batch, FlowRun
from mainstem.clock import as_datetime, as_us
from mainstem.errors import FellOff, Invalid, NotYet
from mainstem.views.sql import sql_writer
from mainstem.views.view import View
from mainstem.views.view_history import position_as_of
from tests.contracts.view_rows import RUN, SCHEMA, OpenView, recorded, rows

NEVER = 2**62


def was(view: View, as_of: Any) -> dict[str, int]:
    """All rows as they were, asked in every way."""
    found = dict(zip(*view.to_arrow(as_of=as_of).to_pydict().values(), strict=True))
    assert list(found) == sorted(found)
    with view.snapshot() as snapshot:
        assert snapshot.count(position_as_of(snapshot, as_of, view=view.name, now=NEVER)) == len(found)
    for store in ("Berlin", "Lisbon", "Osaka", "Quito"):
        row = view.get(store, as_of=as_of)
        assert row == ({"store": store, "amount": found[store]} if store in found else None)
    return found


def applied_at(view: View) -> datetime:
    """When the last batch was committed."""
    found = view.describe().live.applied_at
    assert found is not None
    return found


class ViewHistoryContract:
    """As of a time, or of the token of an append."""

    def test_it_tells_what_it_was_right_after_each_batch(self, open_view: OpenView, clock: Any) -> None:
        view = open_view("revenue", key="store", history="30 days")
        writer = view.writer(RUN, SCHEMA)
        begun = view.describe().history_since
        clock.advance("1 minute")
        writer.apply(rows(Berlin=1, Lisbon=2), Batch(0, RUN, {"orders": {0: 2, 1: 1}}))
        first = applied_at(view)
        clock.advance("1 minute")
        writer.apply(rows(Berlin=5, Osaka=4), Batch(1, RUN, {"orders": {0: 3, 1: 3}}))
        second = applied_at(view)
        clock.advance("1 minute")
        # Nothing changes in the view: what was applied moves all the same.
        writer.apply(rows(Berlin=5), Batch(2, RUN, {"orders": {0: 4, 1: 3}, "returns": {0: 7}}))
        clock.advance("1 minute")
        gone = recorded(("Berlin", None, 0, 5, "delete"), ("Quito", 9, 0, 6, "insert"))
        writer.apply(gone, Batch(3, RUN, {"orders": {0: 9, 1: 3}}))
        third = applied_at(view)
        clock.advance("1 minute")

        after = [
            {"Berlin": 1, "Lisbon": 2},
            {"Berlin": 5, "Lisbon": 2, "Osaka": 4},
            {"Lisbon": 2, "Osaka": 4, "Quito": 9},
        ]
        for until, expected in ((first, {}), (second, after[0]), (third, after[1])):
            assert was(view, until - timedelta(microseconds=1)) == expected
        for moment, expected in ((begun, {}), (first, after[0]), (second, after[1]), (third, after[2])):
            assert was(view, moment) == expected
        assert was(view, as_datetime(clock.now())) == after[2]
        for token, expected in {
            "orders@0:0,1:0": {}, "orders@0:1": after[0], "orders@0:2,1:1": after[0], "orders@0:2,1:2": after[1],
            "orders@0:3": after[1], "orders@0:4,1:3": after[1], "returns@0:7": after[1], "orders@1:1;returns@0:1": after[1],
            "orders@0:5": after[2], "orders@0:9,1:3": after[2],
        }.items():  # fmt: skip
            assert was(view, token) == expected, token
        assert view.query("SELECT sum(amount) AS n FROM revenue", as_of="orders@0:1").to_pylist() == [{"n": 3}]
        with view.snapshot() as snapshot:
            assert snapshot.commits() == [(2, 0), (4, 1), (6, 3)]
            assert sorted(snapshot.reached_offsets()) == [
                (2, "orders", 0, 2), (2, "orders", 1, 1), (4, "orders", 0, 4), (4, "orders", 1, 3), (4, "returns", 0, 7),
                (6, "orders", 0, 9),
            ]  # fmt: skip
        described = view.describe()
        assert (described.history, described.history_since) == (timedelta(days=30), begun)

    def test_what_it_cannot_tell_is_refused_with_what_is_kept(self, open_view: OpenView, clock: Any) -> None:
        plain = open_view("plain", key="store")
        plain.writer(RUN, SCHEMA).apply(rows(Berlin=1), Batch(0, RUN, {"orders": {0: 1}}))
        with pytest.raises(Invalid, match='view "plain" keeps no history') as refused:
            plain.to_arrow(as_of="orders@0:1")
        assert "history=" in refused.value.hint
        with pytest.raises(Invalid, match="cannot have both a history and changes_max=10"):
            open_view("other", key="store", history="1 hour", changes_max=10)

        view = open_view("revenue", key="store", history="50 minutes", changes_age="1 minute")
        writer = view.writer(RUN, SCHEMA)
        times = []
        for number in range(6):
            writer.apply(rows(Berlin=number, Lisbon=-number), Batch(number, RUN, {"orders": {0: number + 1, 1: 8}}))
            times.append(applied_at(view))
            clock.advance("20 minutes")
        # With the batch at 100 minutes that at 40 minutes was too old: what it left is the first thing that is known.
        since = times[2]
        assert view.describe().history_since == since
        assert (view.describe().first_position, view.describe().last_position) == (6, 12)
        assert was(view, since) == {"Berlin": 2, "Lisbon": -2}
        assert was(view, "orders@0:3") == {"Berlin": 2, "Lisbon": -2}
        assert was(view, "orders@0:4") == {"Berlin": 3, "Lisbon": -3}
        for beyond in (since - timedelta(microseconds=1), datetime(2000, 1, 1, tzinfo=UTC), "orders@0:2", "orders@1:8"):
            for ask in (view.to_arrow, lambda as_of: view.get("Berlin", as_of=as_of)):
                with pytest.raises(FellOff, match='view "revenue" no longer has its rows') as lost:
                    ask(as_of=beyond)
                assert since.isoformat().replace("+00:00", "Z") in lost.value.detail
                assert "history=" in lost.value.hint
        with pytest.raises(NotYet, match="which is in the future") as ahead:
            view.to_arrow(as_of=as_datetime(clock.now()) + timedelta(hours=1))
        assert ahead.value.hint
        with pytest.raises(NotYet) as missing:
            view.get("Berlin", as_of="orders@0:7")
        assert missing.value.missing == {"orders": {0: (6, 7)}}
        for nonsense in (7, "yesterday", datetime(2026, 1, 1)):  # noqa: DTZ001 - without a zone on purpose
            with pytest.raises(Invalid):
                view.to_arrow(as_of=nonsense)

    def test_it_begins_when_it_is_asked_for_and_ends_when_it_is_not(self, open_view: OpenView, clock: Any) -> None:
        view = open_view("revenue", key="store")
        writer = view.writer(RUN, SCHEMA)
        writer.apply(rows(Berlin=1), Batch(0, RUN, {"orders": {0: 1}}))
        before = as_datetime(clock.now())
        clock.advance("1 minute")
        run = FlowRun("revenue", epoch=2)
        writer = open_view("revenue", key="store", history="1 day").writer(run, SCHEMA)
        begun = as_datetime(clock.now())
        clock.advance("1 minute")
        writer.apply(rows(Berlin=2), Batch(1, run, {"orders": {0: 2}}))
        assert was(view, begun) == {"Berlin": 1}
        assert was(view, "orders@0:2") == {"Berlin": 2}
        for beyond in (before, "orders@0:1"):
            with pytest.raises(FellOff):
                view.to_arrow(as_of=beyond)
        # Left out, it stays as it is.
        run = FlowRun("revenue", epoch=3)
        open_view("revenue").writer(run, SCHEMA).apply(rows(Berlin=3), Batch(2, run, {"orders": {0: 3}}))
        assert was(view, begun) == {"Berlin": 1}
        run = FlowRun("revenue", epoch=4)
        open_view("revenue", history="0 seconds").writer(run, SCHEMA)
        with pytest.raises(Invalid, match="keeps no history"):
            view.to_arrow(as_of=begun)
        assert view.describe().history is None

    def test_it_ends_though_the_batch_that_ends_it_is_rolled_back(
        self, open_view: OpenView, clock: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        view = open_view("revenue", key="store", history="1 day")
        writer = view.writer(RUN, SCHEMA)
        writer.apply(rows(Berlin=1), Batch(0, RUN, {"orders": {0: 1}}))
        open_view("revenue")._store.keep_changes(None, None, 0)

        def interrupted(point: str) -> None:
            if point == "view_batch_written":
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(sql_writer, "reach", interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer.apply(rows(Berlin=2), Batch(1, RUN, {"orders": {0: 2}}))
        assert was(view, "orders@0:1") == {"Berlin": 1}
        writer.apply(rows(Berlin=2), Batch(1, RUN, {"orders": {0: 2}}))
        with pytest.raises(Invalid, match="keeps no history"):
            view.to_arrow(as_of="orders@0:1")

    def test_a_key_has_every_change_with_its_rows_and_its_batch(self, open_view: OpenView, clock: Any) -> None:
        view = open_view("revenue", key="store", history="30 days")
        writer = view.writer(RUN, SCHEMA)
        times = []
        for number, given in enumerate(
            (rows(Berlin=1, Lisbon=2), rows(Berlin=5), recorded(("Berlin", None, 0, 5, "delete")), rows(Berlin=7))
        ):
            clock.advance("1 minute")
            writer.apply(given, Batch(number, RUN, {"orders": {0: number + 1}}))
            times.append(applied_at(view))

        found = view.history("Berlin")
        berlin = {amount: {"store": "Berlin", "amount": amount} for amount in (1, 5, 7)}
        assert [(it.change, it.batch, it.before, it.after) for it in found] == [
            ("insert", 3, None, berlin[7]), ("delete", 2, berlin[5], None), ("update", 1, berlin[1], berlin[5]),
            ("insert", 0, None, berlin[1]),
        ]  # fmt: skip
        assert [it.at for it in found] == times[::-1]
        newest, *older = found
        assert view.history("Berlin", limit=1) == [newest]
        assert view.history("Berlin", before=newest.position) == older
        assert [it.change for it in view.history("Lisbon")] == ["insert"]
        assert view.history("Osaka") == []
        with view.snapshot() as snapshot:
            commit = snapshot.last_commit(as_us(times[1]))
            assert commit is not None
            assert (commit.batch, as_datetime(commit.at)) == (1, times[1])
            assert snapshot.last_commit(as_us(times[0]) - 1) is None
        # Without history these are the changes that are kept.
        plain = open_view("plain", key="store")
        plain.writer(RUN, SCHEMA).apply(rows(Berlin=1), Batch(0, RUN))
        assert [it.after for it in plain.history("Berlin")] == [berlin[1]]

    def test_it_goes_on_through_other_versions(self, open_view: OpenView, clock: Any) -> None:
        view = open_view("revenue", key="store", history="1 day")
        first = view.writer(RUN, SCHEMA)
        first.apply(rows(Berlin=1, Lisbon=2), Batch(0, RUN, {"orders": {0: 2}}))
        times = [(as_datetime(clock.now()), {"Berlin": 1, "Lisbon": 2})]
        clock.advance("1 minute")
        wider = SCHEMA.append(pa.field("note", pa.string()))
        second = FlowRun("revenue", epoch=1, version=2)
        writer = view.writer(second, wider)
        given = rows(Berlin=7, Osaka=3).append_column("note", pa.array([None, "new"], pa.string()))
        writer.apply(given, Batch(0, second, {"orders": {0: 1}}))
        first.apply(rows(Lisbon=5), Batch(1, RUN, {"orders": {0: 3}}))
        times.append((as_datetime(clock.now()), {"Berlin": 1, "Lisbon": 5}))
        clock.advance("1 minute")
        view.use(2)
        times.append((as_datetime(clock.now()), {"Berlin": 7, "Osaka": 3}))
        clock.advance("1 minute")
        # Who does not know of it yet writes what no reader sees.
        first.apply(rows(Quito=0), Batch(2, RUN, {"orders": {0: 9}}))
        writer.apply(given.slice(1), Batch(1, second, {"orders": {0: 4}}))
        view.drop_version(1)
        tokens = {"orders@0:2": times[0][1], "orders@0:3": times[1][1], "orders@0:4": times[2][1]}
        for as_of, expected in [*times, *tokens.items()]:
            found = view.to_arrow(as_of=as_of)
            assert dict(zip(*found.select(["store", "amount"]).to_pydict().values(), strict=True)) == expected
        assert view.get("Osaka", as_of="orders@0:4") == {"store": "Osaka", "amount": 3, "note": "new"}
        assert view.get("Lisbon", as_of=times[0][0]) == {"store": "Lisbon", "amount": 2, "note": None}
        # Where a column has another type, what was cannot be shown as rows of what is.
        third = FlowRun("revenue", epoch=1, version=3)
        other = pa.schema({"store": pa.string(), "amount": pa.string()})
        view.writer(third, other).apply(
            pa.table({"store": ["a"], "amount": ["x"]}), Batch(0, third, {"orders": {0: 4}})
        )
        view.use(3)
        assert view.to_arrow(as_of=as_datetime(clock.now())).to_pylist() == [{"store": "a", "amount": "x"}]
        for beyond in (times[2][0], "orders@0:4"):
            with pytest.raises(FellOff):
                view.to_arrow(as_of=beyond)
