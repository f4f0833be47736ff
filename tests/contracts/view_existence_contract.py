"""What every view promises about being there: named, made, refused, dropped."""

import pyarrow as pa
import pytest

from mainstem.batch import Batch
from mainstem.errors import Conflict, FellOff, Invalid, InvalidName, SchemaMismatch, ViewNotFound
from tests.contracts.view_rows import RUN, SCHEMA, OpenView, rows, shown


class ViewExistenceContract:
    """A view may be named before it is there; its flow makes it, once."""

    def test_a_view_may_be_named_before_it_is_there_and_then_says_what_to_do(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        assert not view.exists
        for ask in (view.to_arrow, view.describe, view.versions, view.drop, lambda: view.get("Berlin"),
                    lambda: next(view.subscribe())):  # fmt: skip
            with pytest.raises(ViewNotFound, match='view "revenue" does not exist') as missing:
                ask()
            assert missing.value.detail
            assert "flow" in missing.value.hint
        view.writer(RUN, SCHEMA)
        with pytest.raises(ViewNotFound) as missing:
            open_view("revenu").to_arrow()
        assert 'Did you mean "revenue"?' in missing.value.hint

    def test_the_key_may_be_left_out_for_a_view_that_is_there_and_another_is_a_conflict(
        self, open_view: OpenView
    ) -> None:
        open_view("revenue", key=["store"]).writer(RUN, SCHEMA).apply(rows(Berlin=1), Batch(0, RUN))
        assert open_view("revenue").get("Berlin") == {"store": "Berlin", "amount": 1}
        assert open_view("revenue").key == ("store",)
        with pytest.raises(Conflict, match="has the key store") as refused:
            open_view("revenue", key=["amount"])
        assert 'stem.view("revenue")' in refused.value.hint

    def test_two_that_named_it_before_it_was_there_cannot_both_make_it_with_other_keys(
        self, open_view: OpenView
    ) -> None:
        first, second = open_view("revenue", key="store"), open_view("revenue", key="amount")
        first.writer(RUN, SCHEMA)
        with pytest.raises(Conflict, match="has the key store"):
            second.writer(RUN, SCHEMA)

    @pytest.mark.parametrize("name", ["", "../up", "a/b", "mainstem.own", ".hidden"])
    def test_a_name_that_could_be_a_trick_is_refused(self, open_view: OpenView, name: str) -> None:
        with pytest.raises(InvalidName):
            open_view(name, key="store")

    @pytest.mark.parametrize(
        ("key", "schema", "says"),
        [
            (None, SCHEMA, "has no key"),
            ("shop", SCHEMA, "which the rows lack"),
            ("store", pa.schema({"store": pa.map_(pa.string(), pa.int64())}), "which is a map"),
            ("store", pa.schema({"store": pa.string(), "d": pa.duration("s")}), "duration"),
            ("c0", pa.schema({f"c{n}": pa.int64() for n in range(901)}), "901 columns"),
        ],
    )
    def test_rows_that_it_cannot_take_are_refused_before_anything_is_made(
        self, open_view: OpenView, key: str | None, schema: pa.Schema, says: str
    ) -> None:
        view = open_view("revenue", key=key)
        for ask in (lambda: view.accept(schema), lambda: view.writer(RUN, schema)):
            with pytest.raises(Invalid, match=says) as refused:
                ask()
            assert refused.value.detail
            assert refused.value.hint
        assert not view.exists

    def test_other_columns_than_it_has_are_refused_with_what_to_do(self, open_view: OpenView) -> None:
        view = open_view("revenue", key="store")
        view.writer(RUN, SCHEMA)
        view.accept(SCHEMA)
        view.accept(pa.schema([SCHEMA.field("amount"), SCHEMA.field("store")]))
        for other in (
            SCHEMA.append(pa.field("note", pa.string())),
            pa.schema({"store": pa.string()}),
            pa.schema({"store": pa.string(), "amount": pa.string()}),
        ):
            with pytest.raises(SchemaMismatch) as refused:
                view.accept(other)
            assert refused.value.hint
        view.accept(SCHEMA.append(pa.field("note", pa.string())), version=2)

    def test_a_dropped_view_is_gone_for_everyone_and_can_be_made_anew(self, open_view: OpenView) -> None:
        view, other = open_view("revenue", key="store"), open_view("revenue")
        writer = view.writer(RUN, SCHEMA)
        writer.apply(rows(Berlin=1), Batch(0, RUN))
        assert other.get("Berlin")
        cursor = next(other.subscribe()).cursor
        view.drop()
        assert not other.exists
        with pytest.raises(ViewNotFound):
            other.get("Berlin")
        with pytest.raises(ViewNotFound, match="was dropped while"):
            writer.apply(rows(Berlin=2), Batch(1, RUN))
        open_view("revenue", key="store").writer(RUN, SCHEMA).apply(rows(Lisbon=7), Batch(0, RUN))
        assert shown(other) == {"Lisbon": 7}
        with pytest.raises(ViewNotFound, match="was dropped while"):
            writer.apply(rows(Berlin=2), Batch(1, RUN))
        with pytest.raises(FellOff, match="that was dropped"):
            next(other.subscribe(cursor))
