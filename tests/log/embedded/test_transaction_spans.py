"""Where transactions wrote is known of blocks, of sealed files and of compacted ones."""

from dataclasses import replace

import mainstem
from mainstem.log.embedded.embedded_topic import EmbeddedTopic
from mainstem.log.embedded.upkeep.manifest import Manifest, SealedEntry, decode_manifest, encode_manifest
from mainstem.log.keep_rule import Keep
from mainstem.log.rows.rows import check_rows

ALL = (0, 1 << 62)


def spans(stem: mainstem.Mainstem, partition: int, start: int = 0) -> list[tuple[int, int, int]]:
    backend = stem.log.open_topic("t")
    assert isinstance(backend, EmbeddedTopic)
    found = backend.transaction_spans(partition, start, 1 << 62, ALL)
    # What is in two files may be named twice.
    return sorted(set(found.rows()))


def test_they_stay_known_when_blocks_are_sealed(tmp_path):
    with mainstem.open(tmp_path) as stem:
        topic = stem.create_topic("t", schema="n BIGINT", partitions=2)

        def append(transaction, partition, *numbers):
            rows = [{"n": number} for number in numbers]
            topic.backend.append(check_rows(rows, topic.settings), partition=partition, transaction=transaction.id)

        assert spans(stem, 0) == []
        one, two, undone = stem.transaction(), stem.transaction(), stem.transaction()
        append(one, 0, 1, 2)
        append(two, 0, 3)
        append(undone, 0, 4)
        append(one, 0, 5)
        append(two, 1, 6)
        one.commit()
        undone.abort()
        first = [(one.id, 0, 5), (two.id, 2, 3)]
        assert spans(stem, 0) == first
        assert topic.backend.open_transactions(0) == {two.id: 2}
        assert topic.backend.owner_of(two.id) is not None
        assert topic.seal() == 0  # nothing of partition 0 is stable
        assert spans(stem, 0) == first
        two.commit()
        assert topic.backend.owner_of(two.id) is None
        topic.seal()
        three = stem.transaction()
        append(three, 0, 7)
        assert spans(stem, 0) == [*first, (three.id, 8, 9)]
        three.commit()
        assert spans(stem, 0) == [*first, (three.id, 8, 9)]
        # Those that are over before an offset are of no interest behind it.
        assert spans(stem, 0, 8) == [(three.id, 8, 9)]
        assert spans(stem, 1) == [(two.id, 0, 1)]
        topic.append([{"n": 8}])
        topic.seal()
    with mainstem.open(tmp_path) as stem:
        assert spans(stem, 0) == [*first, (three.id, 8, 9)]
        backend = stem.log.open_topic("t")
        # Of files behind the end only those that can have a wanted transaction are looked at.
        assert backend.transaction_spans(0, 0, 5, (0, 0)).rows() == first
        assert sorted(backend.transaction_spans(0, 0, 5, (three.id, three.id)).rows()) == [*first, (three.id, 8, 9)]


def test_one_that_lies_in_two_segments_is_noted_whole_in_both(tmp_path):
    with mainstem.open(tmp_path) as stem:
        topic = stem.create_topic("t", schema="n BIGINT", partitions=1)
        transaction = stem.transaction()
        transaction.append(topic, [{"n": 1}])
        topic.backend.store.partitions[0].roll()
        transaction.append(topic, [{"n": 2}])
        topic.backend.store.partitions[0].roll()
        transaction.commit()
        topic.backend.store.partitions[0].roll()
        topic.append([{"n": 3}])
        manifest = topic.backend.store.partitions[0].manifest_file
        sealed = topic.seal()
        assert spans(stem, 0) == [(transaction.id, 0, 2)]
        entries = manifest.read().segments
        assert sealed == len(entries)
        assert entries[0].transactions == [transaction.id, transaction.id]


def test_compaction_carries_them_along(tmp_path):
    with mainstem.open(tmp_path) as stem:
        topic = stem.create_topic("t", schema="k STRING, n BIGINT", key="k", partitions=1, keep=Keep.latest_per_key())
        ids = []
        for number in range(4):
            with stem.transaction() as transaction:
                transaction.append(topic, [{"k": "same", "n": number}, {"k": f"own-{number}", "n": number}])
            ids.append(transaction.id)
            topic.seal()
        before = spans(stem, 0)
        assert [number for number, _, _ in before] == ids
        assert topic.compact().removed == 3
        assert spans(stem, 0) == before
        [entry] = topic.backend.store.partitions[0].manifest_file.read().segments
        assert entry.transactions == [ids[0], ids[-1]]


def test_a_manifest_of_an_earlier_version_says_that_they_are_not_noted():
    entry = SealedEntry(0, 9, "f", 1, 2, 9, 1, 0, 0, 0, 0, 0)
    assert entry.transactions is None
    written = encode_manifest(Manifest(segments=(replace(entry, transactions=[3, 7]),)))
    assert b'{"format": 2' in written
    assert decode_manifest(written, "m").segments[0].transactions == [3, 7]
