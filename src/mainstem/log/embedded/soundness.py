"""Reads every byte of a topic and says what is sound."""

from __future__ import annotations

from mainstem.errors import Corrupt
from mainstem.log.embedded.active_segment import PREAMBLE_BYTES, ActiveSegment, segments_in
from mainstem.log.embedded.block import DATA, Damage
from mainstem.log.embedded.partition import Partition
from mainstem.log.embedded.sealed_check import check_sealed
from mainstem.log.embedded.sealed_segment import read_sealed
from mainstem.log.embedded.segment_index import SegmentIndex
from mainstem.log.embedded.topic_store import TopicStore
from mainstem.log.verification import Problem, Verification


def verify(store: TopicStore) -> Verification:
    """Check manifests, sealed files (whole and page by page), blocks and indexes of every partition."""
    report = Verification(store.name)
    for number, partition in enumerate(store.partitions):
        try:
            _verify_sealed(report, number, partition)
            _verify_blocks(report, number, partition)
        except Corrupt as error:
            report.problems.append(Problem(number, error.path, f"{error}. {error.detail}"))
    return report


def _verify_sealed(report: Verification, number: int, partition: Partition) -> None:
    manifest = partition.manifest_file.read()
    expected = manifest.start
    for entry in manifest.segments:
        path = f"{partition.folder}/{entry.file}"
        span = (entry.base, entry.end - 1)
        if entry.base != expected:
            report.problems.append(Problem(number, path, "the segment before it is missing", expected, entry.base - 1))
        expected = entry.end
        try:
            check_sealed(partition.files, path, entry.bytes, entry.crc32c, f"records {span[0]} to {span[1]}")
            rows = sum(batch.num_rows for batch in read_sealed(partition.files, path, columns=[]))
            if rows != entry.rows:
                report.problems.append(Problem(number, path, f"has {rows} rows, not {entry.rows}", *span))
            report.records += rows
        except Corrupt as error:
            report.problems.append(Problem(number, path, str(error), *span))
        except FileNotFoundError:
            report.problems.append(Problem(number, path, "the file is missing", *span))
        report.bytes += entry.bytes
        report.sealed_segments += 1


def _verify_blocks(report: Verification, number: int, partition: Partition) -> None:
    head = partition.published()
    manifest = partition.manifest_file.read()
    names = [name for name in segments_in(partition.files.list(partition.folder)) if name.base >= manifest.end]
    for name, after in zip(names, [*names[1:], None], strict=True):
        segment = ActiveSegment(partition.files, partition.folder, name)
        try:
            active = name == (head.segment, head.epoch)
            size = head.position if active else segment.size()
            offset = name.base
            position = PREAMBLE_BYTES
            preamble = segment.preamble()
            if preamble is None:
                report.problems.append(Problem(number, segment.path, "its preamble is damaged", name.base, None))
                continue
            for item in segment.walk(PREAMBLE_BYTES, size, name.base, preamble.crc):
                if isinstance(item, Damage):
                    if after is None or item.offset < after.base:
                        error = segment.corrupt(item, size)
                        last_offset = getattr(error, "last_offset", None)
                        report.problems.append(Problem(number, segment.path, str(error), item.offset, last_offset))
                    break
                if after is not None and item.header.base_offset >= after.base and item.header.count:
                    break
                offset, position = item.header.end_offset, item.position + item.header.size
                report.records += item.header.count if item.header.kind == DATA else 0
            if not SegmentIndex(partition.files, name.index_path(partition.folder)).sound(segment, position):
                report.problems.append(Problem(number, name.index_path(partition.folder), "the index is damaged"))
            report.bytes += size
            report.block_segments += 1
            if after is not None and offset < after.base and not report.problems:
                report.problems.append(Problem(number, segment.path, "records are missing", offset, after.base - 1))
        finally:
            segment.close()
