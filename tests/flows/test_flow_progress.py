"""The topic of reports: one that an earlier version made goes on with the columns that it lacks."""

from pathlib import Path

from mainstem.flows.flow_progress import PROGRESS_TOPIC, SCHEMA, _progress_topic
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.topic import Topic
from mainstem.log.topic_settings import TopicSettings


def test_reports_of_an_earlier_version_stay_and_get_the_new_columns(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    earlier = SCHEMA.replace("too_late BIGINT, ", "")
    made = log.create_topic(TopicSettings.of(PROGRESS_TOPIC, schema=earlier, event_time="at", keep="7 days"))
    Topic(log, made).append([{"flow": "totals", "at": None, "late": 1}])

    topic = Topic(log, _progress_topic(log))
    topic.append([{"flow": "totals", "at": None, "late": 1, "too_late": 2}])

    assert [(row["late"], row["too_late"]) for row in topic.to_arrow().to_pylist()] == [(1, None), (1, 2)]
    # Found as it is from then on.
    assert _progress_topic(log).settings.schema_version == 2
    log.close()
