"""A small file of which one bit is not what was written: noticed, or it says the same."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.durable_files import decode_checked, encode_checked
from mainstem.errors import Corrupt, CorruptHome, NewerFormat
from mainstem.log.embedded.embedded_log import EmbeddedLog
from mainstem.log.topic_settings import TopicSettings
from mainstem.operators.stage.state_runs import StageManifests
from mainstem.sinks.file_commits import FileCommits, FolderFacts
from mainstem.spark.checkpoint.checkpoint_location import FORMAT, POINTER, read_pointer
from mainstem.spark.checkpoint.flow_store import FlowStore
from mainstem.spark.plan.observed_times import ObservedTimes
from mainstem.spark.real_time.real_time_note import note_real_time, noted_topics
from mainstem.views.sqlite.view_folder import ViewFolder
from mainstem.views.view_facts import Facts, Segment, VersionFacts

# Of all bits of a file, in the normal run.
EVERY = 13


def flipped(data: bytes, every: int) -> Iterator[bytes]:
    for bit in range(0, 8 * len(data), every):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << (bit % 8)
        yield bytes(changed)


def test_every_bit_of_a_checked_file() -> None:
    content = {"format": 2, "id": "5f", "keep": {"age": "7 days", "size": None}, "partitions": 3, "ahead": 1.5}
    data = encode_checked(content)
    assert decode_checked(data, since=2, known=2) == content
    noticed = 0
    for changed in flipped(data, 1):
        try:
            assert decode_checked(changed, since=2, known=2) == content
        except ValueError:
            noticed += 1
    assert noticed > 7 * len(data)


@given(
    st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.floats(allow_nan=False) | st.text(), max_size=5)
)
@settings(max_examples=50)
def test_what_was_written_is_read(content: dict[str, Any]) -> None:
    content.pop("crc32c", None)
    assert decode_checked(encode_checked(content)) == content
    # Blanks and the order of names say nothing.
    spread = json.dumps(dict(reversed(json.loads(encode_checked(content)).items())), indent=3)
    assert decode_checked(spread.encode()) == content


def test_which_files_may_be_without_a_checksum() -> None:
    assert decode_checked(b'{"format": 1}', since=2, known=2) == {"format": 1}
    # A newer one is for the caller to refuse.
    assert decode_checked(b'{"format": 3}', since=2, known=2) == {"format": 3}
    for data in (b'{"format": 2}', b'{"format": "2"}', b"[]", b"2", b""):
        with pytest.raises(ValueError):  # noqa: PT011 - the message is part of another one
            decode_checked(data, since=2, known=2)


class _Kafka:
    name, id, kafka_name = "orders", "5f", "shop.orders"


def topic_json(home: Path) -> tuple[Path, Callable[[], object]]:
    made = TopicSettings.of("orders", schema="id STRING, n INT", key="id", keep="7 days", partitions=1)
    EmbeddedLog(home).create_topic(made)

    def read() -> object:
        log = EmbeddedLog(home)
        try:
            topic = log.open_topic("orders")
            return topic.settings, topic.id
        finally:
            log.close()

    return home / "topics/orders/topic.json", read


def mainstem_json(home: Path) -> tuple[Path, Callable[[], object]]:
    EmbeddedLog(home)
    return home / "mainstem.json", lambda: EmbeddedLog(home).home.id


def flow_json(home: Path) -> tuple[Path, Callable[[], object]]:
    store = FlowStore(str(home), "totals")
    store.begin(1, plan={"sources": ["orders"]}, sink="view totals")
    return home / "flows/totals/flow.json", store.read


def sink_json(home: Path) -> tuple[Path, Callable[[], object]]:
    (home / "_mainstem").mkdir()
    commits = FileCommits(str(home))
    commits.put_facts(FolderFacts("totals", "id BIGINT", "", ("day",), 1, 1, "5f"))
    return home / "_mainstem/sink.json", commits.facts


def view_json(home: Path) -> tuple[Path, Callable[[], object]]:
    facts = Facts("5f", ("store",), 1, (VersionFacts(1, "store STRING", 5),), (Segment(1, 0),), 1000, 60, 7)
    path = home / "views/revenue/view.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(facts.encode())
    return path, lambda: ViewFolder(str(home), "revenue").facts()


def stages_json(home: Path) -> tuple[Path, Callable[[], object]]:
    manifests = StageManifests(str(home))
    manifests.begin(0, "one", {"windowed-0": {}})
    manifests.write(0, {"clock": {"watermark": 5, "now": 6}, "stages": {"windowed-0": {"buckets": 2, "state": {}}}})
    return home / "stages/0.json", lambda: manifests.read(0)


def real_time_json(home: Path) -> tuple[Path, Callable[[], object]]:
    note_real_time(str(home), [_Kafka()])
    return home / "real_time.json", lambda: noted_topics(str(home))


def elsewhere(home: Path) -> tuple[Path, Callable[[], object]]:
    (home / POINTER).write_bytes(encode_checked({"format": FORMAT, "url": "s3a://shop/checkpoints"}))
    return home / POINTER, lambda: read_pointer(str(home))


def observed_json(home: Path) -> tuple[Path, Callable[[], object]]:
    notes = ObservedTimes(str(home / "observed"))
    notes.note(0, 5, 9, 1_767_225_600_000_000, 1_767_225_700_000_000)
    return home / "observed/0-5-9.json", lambda: notes.until({0: 9}, {})


FILES = [
    topic_json, mainstem_json, flow_json, sink_json, view_json, stages_json, real_time_json, elsewhere, observed_json,
]  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.__name__)
@pytest.mark.parametrize("every", [EVERY, pytest.param(1, marks=pytest.mark.long)])
def test_a_flipped_bit_of_a_small_file_is_noticed(
    tmp_path: Path, file: Callable[[Path], tuple[Path, Callable[[], object]]], every: int
) -> None:
    path, read = file(tmp_path)
    sound, data = read(), path.read_bytes()
    named: list[str] = []
    for changed in flipped(data, every):
        path.write_bytes(changed)
        try:
            assert read() == sound
        except Corrupt as error:
            named.append(error.path)
    assert set(named) == {str(path)}
    assert len(named) * every > 6 * len(data)
    path.write_bytes(data)
    assert read() == sound


def test_the_file_of_another_topic_or_batch_is_noticed(tmp_path: Path) -> None:
    path, read = topic_json(tmp_path)
    log = EmbeddedLog(tmp_path)
    log.create_topic(TopicSettings.of("refunds", schema="id STRING", partitions=2))
    log.close()
    path.write_bytes((tmp_path / "topics/refunds/topic.json").read_bytes())
    with pytest.raises(CorruptHome, match='settings of topic "orders" cannot be read') as raised:
        read()
    assert raised.value.path == str(path)
    assert 'the file of topic "refunds"' in raised.value.detail
    path, read = stages_json(tmp_path)
    StageManifests(str(tmp_path)).write(1, {"stages": {}})
    path.write_bytes((tmp_path / "stages/1.json").read_bytes())
    with pytest.raises(CorruptHome) as raised:
        read()
    assert raised.value.path == str(path)


@pytest.mark.parametrize("file", [topic_json, mainstem_json, flow_json, sink_json, view_json, stages_json])
def test_a_small_file_of_a_newer_version_is_told_from_damage(
    tmp_path: Path, file: Callable[[Path], tuple[Path, Callable[[], object]]]
) -> None:
    path, read = file(tmp_path)
    content = json.loads(path.read_bytes())
    number = "version" if "version" in content and "format" not in content else "format"
    for newer in (encode_checked(decode_checked(path.read_bytes()) | {number: 9}), json.dumps({number: 9}).encode()):
        path.write_bytes(newer)
        with pytest.raises(NewerFormat):
            read()
