"""What happened in a home: who altered a topic or rewound a queue finds a row about it."""

import os
import pwd

from mainstem.log.activity import ACTIVITY_TOPIC, note_activity, read_activity
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.topic_settings import TopicSettings
from mainstem.stem import Mainstem


def test_altering_a_topic_and_rewinding_a_queue_leave_a_row_each(tmp_path, clock):
    with Mainstem(EmbeddedLog(tmp_path, clock=clock), home=str(tmp_path)) as stem:
        began = clock.now()
        orders = stem.create_topic("orders", schema="n INT", keep="7 days")
        orders.queue("mails")
        assert ACTIVITY_TOPIC not in stem.topics()
        orders.alter(keep="7 days")  # changes nothing
        orders.alter(keep="30 days", schema="n BIGINT")
        clock.advance("1 minute")
        orders.open_queue("mails").rewind("latest")

        found = list(read_activity(stem.log, began))
        assert [(row["subject"], row["name"], row["what"], row["text"]) for row in found] == [
            ("topic", "orders", "altered", 'topic "orders" was altered'),
            ("queue", "orders.mails", "rewound", 'queue "mails" of "orders" was rewound to latest'),
        ]
        assert found[0]["detail"] == 'It changed schema from "n INT" to "n BIGINT"; keep from "7 days" to "30 days".'
        assert {row["who"] for row in found} == {pwd.getpwuid(os.getuid()).pw_name}
        assert str(stem.topic(ACTIVITY_TOPIC).settings.keep) == "90 days"
        # From a time on, and of some subjects only.
        assert list(read_activity(stem.log, clock.now())) == found[1:]
        assert list(read_activity(stem.log, began, {"orders"})) == found[:1]


def test_an_event_that_cannot_be_noted_harms_nobody(tmp_path, clock):
    with Mainstem(EmbeddedLog(tmp_path, clock=clock), home=str(tmp_path)) as stem:
        # A topic of this name in which an event does not fit.
        stem.log.create_topic(TopicSettings.of(ACTIVITY_TOPIC, schema="at TIMESTAMP, other STRING NOT NULL"))

        note_activity(stem.log, "flow", "revenue", "begun", 'flow "revenue" began')

        assert stem.topic(ACTIVITY_TOPIC).to_arrow().num_rows == 0
