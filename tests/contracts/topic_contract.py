"""What every log promises of topics themselves: making, finding, altering and deleting them."""

import warnings

import pyarrow as pa
import pytest

from mainstem.errors import Conflict, Invalid, InvalidName, SchemaMismatch, TopicNotFound
from mainstem.log.topic import Topic
from mainstem.stem import Mainstem
from tests.contracts.promises import Promise, promise
from tests.contracts.shown_rows import fill, numbers, plain


class TopicContract:
    """A topic is made once, found by everyone, and changes only in ways its records allow."""

    @promise(Promise.DURABLE)
    def test_a_topic_is_there_for_everyone_once_it_is_made(self, stem: Mainstem, other: Mainstem) -> None:
        assert stem.topics() == []
        made = stem.create_topic("orders", schema="order_id string, amount double", key="order_id", partitions=4)
        stem.create_topic("customers", schema="id bigint")
        assert other.topics() == ["customers", "orders"]
        found = other.topic("orders")
        assert (found.name, found.ddl, found.settings) == ("orders", made.ddl, made.settings)
        assert (found.settings.key, found.settings.partitions) == (("order_id",), 4)

    @promise(Promise.DURABLE)
    def test_making_it_again_with_the_same_settings_opens_it(self, stem: Mainstem, other: Mainstem) -> None:
        settings = {"schema": "k string, n bigint", "key": "k", "partitions": 2, "keep": "7 days"}
        fill(stem.create_topic("orders", **settings), 1, 2)
        assert numbers(other.create_topic("orders", **settings).to_arrow()) == [1, 2]
        as_arrow = pa.schema([("k", pa.string()), ("n", pa.int64())])
        assert numbers(other.create_topic("orders", **{**settings, "schema": as_arrow}).to_arrow()) == [1, 2]

    @promise(Promise.DURABLE)
    def test_making_it_again_with_others_is_a_conflict_that_names_the_difference(self, stem: Mainstem) -> None:
        stem.create_topic("orders", schema="k string, n bigint", key="k", partitions=2, keep="7 days")
        with pytest.raises(Conflict, match='topic "orders" exists with other settings') as refused:
            stem.create_topic("orders", schema="k string, n bigint", key="k", partitions=3, keep="forever")
        assert 'partitions is "2", asked for "3"' in refused.value.detail
        assert 'keep is "7 days", asked for "forever"' in refused.value.detail
        assert "schema" not in refused.value.detail
        assert 'stem.topic("orders")' in refused.value.hint
        with pytest.raises(Conflict) as refused:
            stem.create_topic("orders", schema="k string, n int", key="k", partitions=2, keep="7 days")
        assert "schema" in refused.value.detail

    @promise(Promise.DURABLE)
    def test_a_topic_that_is_not_there_is_named_with_what_was_probably_meant(self, stem: Mainstem) -> None:
        stem.create_topic("orders", schema="n bigint")
        for ask in (stem.topic, stem.delete_topic, lambda name: stem.producer("p").append(name, [{"n": 1}])):
            with pytest.raises(TopicNotFound, match='topic "ordres" does not exist') as missing:
                ask("ordres")
            assert "1 topic" in missing.value.detail
            assert 'Did you mean "orders"?' in missing.value.hint

    @promise(Promise.DURABLE)
    @pytest.mark.parametrize("name", ["", "../orders", "a/b", "a" * 300, ".hidden", "nul\0", "a b"])
    def test_a_name_that_could_be_a_trick_is_refused(self, stem: Mainstem, name: str) -> None:
        with pytest.raises(InvalidName):
            stem.create_topic(name, schema="n bigint")
        assert stem.topics() == []

    @promise(Promise.DURABLE)
    def test_a_deleted_topic_is_gone_for_everyone_and_can_be_made_anew(self, stem: Mainstem, other: Mainstem) -> None:
        topic = stem.create_topic("orders", schema="k string, n bigint", key="k")
        fill(topic, 1, 2)
        there = other.topic("orders")
        with there.join_group("billing") as member:
            member.poll()
            member.commit()
        stem.delete_topic(topic)
        assert stem.topics() == other.topics() == []
        with pytest.raises(TopicNotFound):
            other.topic("orders")
        with pytest.raises(TopicNotFound):
            there.append([{"k": "a", "n": 3}])
        again = other.create_topic("orders", schema="k string, n bigint", key="k")
        assert len(again.to_arrow()) == 0
        assert again.groups() == []
        fill(again, 7)
        assert numbers(stem.topic("orders").to_arrow()) == [7]
        # Deleted and made anew by one, while the other still had the old one.
        stem.delete_topic("orders")
        fill(stem.create_topic("orders", schema="n bigint, k string", partitions=2), 8)
        with pytest.raises(TopicNotFound):
            again.append([{"k": "a", "n": 9}])
        assert numbers(other.topic("orders").to_arrow()) == [8]
        fill(other.topic("orders"), 10)
        assert sorted(numbers(stem.topic("orders").to_arrow())) == [8, 10]

    @promise(Promise.DURABLE)
    def test_a_topic_is_given_as_object_or_by_name_everywhere(self, stem: Mainstem, single: Topic) -> None:
        producer = stem.producer("checkout")
        for topic in (single, "single"):
            assert stem.topic(topic).name == "single"
            assert producer.append(topic, [{"k": "a", "n": 1}]).appended
            assert producer.last_sequence(topic) >= 0
            with stem.transaction() as transaction:
                transaction.append(topic, [{"k": "a", "n": 2}])
                transaction.delete(topic, ["a"])
        assert numbers(single.to_arrow()) == [1, 2, None] * 2
        stem.delete_topic("single")
        assert stem.topics() == []

    @promise(Promise.DURABLE)
    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"schema": "n bigint", "key": "m"}, "m"),
            ({"schema": "n bigint", "event_time": "n"}, "n"),
            ({"schema": "n bigint", "partitions": 0}, "partitions"),
            ({"schema": "n bigint", "keep": "for a while"}, "for a while"),
            ({"schema": "n nonsense"}, "nonsense"),
            ({"schema": "record string"}, "record"),
            ({"schema": "n bigint", "keap": "7 days"}, "keap"),
        ],
    )
    def test_settings_that_cannot_be_are_refused_and_nothing_is_made(
        self, stem: Mainstem, settings: dict[str, object], says: str
    ) -> None:
        with pytest.raises(Invalid) as refused:
            stem.create_topic("orders", **settings)
        assert says in str(refused.value).lower() + refused.value.detail.lower()
        assert refused.value.detail
        assert refused.value.hint
        assert stem.topics() == []

    # Schemas that change

    @promise(Promise.EVOLVES)
    def test_an_added_column_is_null_in_old_rows(self, stem: Mainstem, other: Mainstem, single: Topic) -> None:
        fill(single, 1)
        seen_elsewhere = other.topic("single")
        assert plain(seen_elsewhere.to_arrow()) == [{"k": "a", "n": 1}]
        single.alter(schema="k string, n bigint, store string")
        seen_elsewhere.append([{"k": "a", "n": 2, "store": "Berlin"}, {"k": "a", "n": 3}])
        for topic in (single, seen_elsewhere):
            assert topic.ddl == "k STRING, n BIGINT, store STRING"
            assert plain(topic.to_arrow()) == [
                {"k": "a", "n": 1, "store": None},
                {"k": "a", "n": 2, "store": "Berlin"},
                {"k": "a", "n": 3, "store": None},
            ]
        assert single.to_arrow(columns=["store"]).schema.names == ["store", "record"]

    @promise(Promise.EVOLVES)
    def test_a_wider_type_holds_the_old_values(self, stem: Mainstem) -> None:
        topic = stem.create_topic("sizes", schema="small int, ratio float, at struct<x: int>")
        topic.append([{"small": 2**31 - 1, "ratio": 0.5, "at": {"x": 1}}])
        topic.alter(schema="small bigint, ratio double, at struct<x: bigint, y: string>")
        topic.append([{"small": 2**40, "ratio": 0.1, "at": {"x": 2**40, "y": "b"}}])
        assert plain(topic.to_arrow()) == [
            {"small": 2**31 - 1, "ratio": 0.5, "at": {"x": 1, "y": None}},
            {"small": 2**40, "ratio": 0.1, "at": {"x": 2**40, "y": "b"}},
        ]

    @promise(Promise.EVOLVES)
    @pytest.mark.parametrize(
        "schema",
        [
            "k string",
            "k string, n int",
            "k string, n string",
            "k string, m bigint",
            "k string, n bigint, m int not null",
        ],
    )
    def test_any_other_change_is_refused_with_what_to_do(self, single: Topic, schema: str) -> None:
        fill(single, 1)
        with pytest.raises(SchemaMismatch) as refused:
            single.alter(schema=schema)
        assert refused.value.hint
        assert single.ddl == "k STRING, n BIGINT"
        fill(single, 2)
        assert numbers(single.to_arrow()) == [1, 2]

    @promise(Promise.EVOLVES)
    def test_settings_can_be_altered_but_not_what_placed_the_records(self, other: Mainstem, single: Topic) -> None:
        single.alter(keep="7 days")
        assert str(other.topic("single").settings.keep) == "7 days"
        for settings in ({"key": "n"}, {"event_time": "n"}, {"partitions": 0}, {"keap": "1 day"}):
            with pytest.raises(Invalid):
                single.alter(**settings)

    @promise(Promise.EVOLVES)
    def test_partitions_can_be_added(self, other: Mainstem, spread: Topic) -> None:
        for number in range(8):
            fill(spread, number, key=f"key-{number}")
        elsewhere = other.topic("spread")
        assert len(elsewhere.to_arrow()) == 8
        with warnings.catch_warnings():
            # A warning that keys move is welcome.
            warnings.simplefilter("ignore")
            spread.alter(partitions=6)
        for number in range(8, 40):
            fill(elsewhere, number, key=f"key-{number}")
        assert elsewhere.settings.partitions == 6
        assert sorted(numbers(spread.to_arrow())) == list(range(40))
        assert set(spread.to_arrow().column("record").combine_chunks().field("partition").to_pylist()) == set(range(6))
