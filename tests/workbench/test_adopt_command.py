"""`mainstem topic adopt`: a topic of other programs on a real Kafka."""

import json

from tests.kafka_broker import KafkaBroker
from tests.log.kafka.kafka_stems import made_elsewhere, own_settings

CLICKS = [json.dumps({"page": f"/{n}", "clicked_at": "2026-01-01T12:00:00Z", "more": n}).encode() for n in range(4)]


def test_a_topic_of_other_programs_is_adopted_read_and_left_as_it_is(cli, place, kafka_broker: KafkaBroker):
    settings = own_settings(kafka_broker)
    made_elsewhere(settings, "clicks", [*CLICKS, b"no click", b"neither"], partitions=2)
    (place / "shop").mkdir()
    (place / "shop" / "kafka.toml").write_text(
        f'brokers = ["{kafka_broker.address}"]\nprefix = "{settings.prefix}"\npatience = "5 seconds"\n'
    )
    schema = ["--schema", "page STRING, clicked_at TIMESTAMP"]

    adopted = ["topic", "adopt", "clicks", *schema, "--key", "page", "--event-time", "clicked_at"]
    assert cli(*adopted) == (0, "adopted topic clicks, 2 partitions\n", "")
    # Once more is no harm.
    assert cli(*adopted).status == 0
    facts = cli("topic", "describe", "clicks", "--json").json
    assert (facts["key"], facts["event_time"]) == (["page"], "clicked_at")
    read = cli("topic", "read", "clicks", "--format", "json").lines
    assert sorted(row["page"] for row in read) == ["/0", "/1", "/2", "/3"]
    assert len(cli("topic", "read", "clicks.unreadable", "--format", "json").lines) == 2

    assert cli("topic", "adopt", "clisk", *schema).error[0] == (
        'mainstem.TopicNotFound: topic "clisk" does not exist on Kafka'
    )
    assert cli("topic", "adopt", "clicks", "--schema", "page BINARY").error[0] == (
        'mainstem.Conflict: topic "clicks" is known with other settings'
    )
    assert cli("topic", "adopt", "clicks", *schema, "--codec", "xml").error[0] == (
        "mainstem.Invalid: codec of topic \"clicks\" is 'xml'"
    )


def test_a_log_in_the_home_has_nothing_to_adopt(cli, orders):
    assert "cannot be adopted" in cli("topic", "adopt", "orders", "--schema", "n INT").error[0]
