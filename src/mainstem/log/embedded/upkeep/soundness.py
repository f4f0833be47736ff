"""Verification: reads every byte of a topic and checks the checksums."""

from __future__ import annotations

from mainstem.clock import Clock
from mainstem.durable_files import Files
from mainstem.errors import Corrupt, CorruptManifest, NewerFormat
from mainstem.log.embedded.ledger import open_heads
from mainstem.log.embedded.read.sealed_check import check_sealed
from mainstem.log.embedded.read.sealed_segment import read_sealed
from mainstem.log.embedded.topic_store import TopicStore
from mainstem.log.embedded.write.active_segment import (
    PREAMBLE_BYTES,
    ActiveSegment,
    SegmentIndex,
    SegmentName,
    missing_records,
    segments_in,
)
from mainstem.log.embedded.write.block import DATA, Damage
from mainstem.log.embedded.write.heads import End
from mainstem.log.embedded.write.partition import Partition
from mainstem.log.upkeep_report import Problem, Verification

# How often a partition is checked again if its files are replaced during the check.
TRIES = 5


def verify(store: TopicStore) -> Verification:
    """Check manifests, sealed files (whole and page by page), blocks and indexes of every partition."""
    report = Verification(store.name)
    for number, partition in enumerate(store.partitions):
        report.join(_verify_partition(number, partition, report.topic))
    return report


def verify_ledger(files: Files, folder: str, clock: Clock, title: str) -> Verification:
    """Check all blocks of a ledger."""
    report = Verification(title)
    try:
        heads = open_heads(files, folder)
    except FileNotFoundError:
        report.problems.append(Problem(0, f"{folder}/0", "the directory is missing"))
        return report
    try:
        partition = Partition(files, f"{folder}/0", heads, 0, clock, title=title, segment_bytes_max=1 << 62)
        try:
            return _verify_partition(0, partition, title, trimmed=True)
        finally:
            partition.close()
    except FileNotFoundError as error:
        report.problems.append(Problem(0, str(error.filename or folder), "the file is missing"))
    except Corrupt as error:
        report.add(0, error)
    finally:
        heads.close()
    return report


def _verify_partition(number: int, partition: Partition, title: str, *, trimmed: bool = False) -> Verification:
    """Check again if files were sealed, compacted, dropped or trimmed during the check."""
    report = Verification(title)
    for left in reversed(range(TRIES)):
        report = Verification(title)
        before = sorted(partition.files.list(partition.folder))
        for part in (_verify_sealed, lambda *of: _verify_blocks(*of, trimmed=trimmed)):
            # Damage in one file does not stop the check of the others.
            try:
                part(report, number, partition)
            except Corrupt as error:
                report.add(number, error)
            except FileNotFoundError as error:
                report.problems.append(Problem(number, str(error.filename or partition.folder), "the file is missing"))
        if report.sound or not left or sorted(partition.files.list(partition.folder)) == before:
            break
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
            check_sealed(partition.files, path, entry.bytes, entry.crc32c, (entry.base, entry.end))
            rows = sum(batch.num_rows for batch in read_sealed(partition.files, path, columns=[]))
            if rows != entry.rows:
                report.problems.append(Problem(number, path, f"has {rows} rows, not {entry.rows}", *span))
            report.records += rows
        except Corrupt as error:
            report.problems.append(Problem(number, path, error.summary, *span))
        except FileNotFoundError:
            report.problems.append(Problem(number, path, "the file is missing", *span))
        report.bytes += entry.bytes
        report.sealed_segments += 1


def _verify_blocks(report: Verification, number: int, partition: Partition, *, trimmed: bool = False) -> None:
    head = partition.published_end()
    try:
        sealed_to: int | None = partition.manifest_file.read().end
    except CorruptManifest:
        sealed_to = None  # reported already
    names = segments_in(partition.files.list(partition.folder))
    names = [name for name in names if sealed_to is None or name.base >= sealed_to]
    # A ledger may have no old segments: each segment begins with the complete state.
    expected = None if trimmed else sealed_to
    for name, after in zip(names, [*names[1:], None], strict=False):
        if expected is not None and expected < name.base:
            report.add(number, missing_records(partition.title, partition.folder, expected, name.base))
        _verify_segment(report, number, partition, name, after, head)
        expected = name.base if after is None else after.base
    last = SegmentName(head.segment, head.epoch)
    if last not in names:
        first = head.segment if names or expected is None else min(expected, head.segment)
        report.add(number, missing_records(partition.title, last.path(partition.folder), first, head.offset))


def _verify_segment(
    report: Verification, number: int, partition: Partition, name: SegmentName, after: SegmentName | None, head: End
) -> None:
    """Check every block of a segment; after a damaged block, continue with the next valid one."""
    segment = ActiveSegment(partition.files, partition.folder, name)
    try:
        active = name == (head.segment, head.epoch)
        size = head.position if active else segment.size()
        until = after.base if after is not None else head.offset if active else head.segment
        preamble = segment.preamble()
        if preamble is None:
            report.problems.append(Problem(number, segment.path, "its preamble is damaged", name.base, None))
        position, offset = PREAMBLE_BYTES, name.base
        chain = None if preamble is None else preamble.crc
        damaged = preamble is None
        while offset < until or position == PREAMBLE_BYTES:
            damage: Damage | None = None
            for item in segment.walk(position, size, offset, chain):
                if isinstance(item, Damage):
                    damage = item
                    break
                if item.header.base_offset >= until and item.header.count:
                    break
                position, offset = item.position + item.header.size, item.header.end_offset
                report.records += item.header.count if item.header.kind == DATA else 0
            if damage is None or damage.offset >= until:
                break
            damaged = True
            error = segment.corrupt(damage, size, until)
            if isinstance(error, NewerFormat):
                report.problems.append(Problem(number, segment.path, error.summary, damage.offset, None))
                offset = until
                break
            report.add(number, error)
            following = segment.next_sound(damage.position + 1, size)
            if following is None:
                offset = until
                break
            (position, header), chain = following, None
            offset = header.base_offset
        if offset < until:
            report.add(number, missing_records(partition.title, segment.path, offset, until))
        # After the published one, a writer is about to write blocks and entries.
        elif (
            not damaged
            and name <= (head.segment, head.epoch)
            and not SegmentIndex(partition.files, name.index_path(partition.folder)).sound(
                segment, position, growing=active
            )
        ):
            report.problems.append(Problem(number, name.index_path(partition.folder), "the index is damaged"))
        report.bytes += size
        report.block_segments += 1
    finally:
        segment.close()
