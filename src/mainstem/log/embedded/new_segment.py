"""How a segment begins, and with it a partition."""

from __future__ import annotations

import json

import google_crc32c

from mainstem.clock import Clock
from mainstem.log.embedded.active_segment import UNFINISHED, ActiveSegment, SegmentName, encode_preamble
from mainstem.log.embedded.block import STATE, encode_header
from mainstem.log.embedded.crash_recovery import first_end
from mainstem.log.embedded.files import Files, create_file, sync_file
from mainstem.log.embedded.heads import DELETED, HAS_STATE, End, encode_tail, new_end
from mainstem.log.embedded.manifest import Manifest, encode_manifest
from mainstem.log.embedded.partition_state import PartitionState
from mainstem.log.embedded.upkeep_clock import first_reading
from mainstem.log.sequence_runs import NO_SEQUENCE


def create_partition(files: Files, folder: str, clock: Clock) -> End:
    """Make a partition's directory with an empty manifest and first segment; on disk when this returns.

    The directory's own name is for the caller to sync.
    """
    files.make_directory(folder)
    create_file(files, f"{folder}/manifest", encode_manifest(Manifest(clock=first_reading(clock))))
    end = create_segment(files, folder, new_end(0, 0, 0, 0, epoch=1), PartitionState(), now=clock.now(), synced=0)
    sync_file(files, SegmentName(end.segment, end.epoch).path(folder))
    create_file(files, f"{folder}/tail", encode_tail(end))
    files.sync_directory(folder)
    return end


def create_segment(files: Files, folder: str, before: End, state: PartitionState, *, now: int, synced: int) -> End:
    """A new segment that begins at the end `before`, with its epoch; not synced: the first append's fsync does that.

    It gets its name when it is whole, so who finds it need not ask whether it is. `synced` is the end offset known to
    be on disk.
    """
    name = SegmentName(before.offset, before.epoch)
    preamble, crc = encode_preamble(name, now)
    snapshot = {
        **state.to_json(),
        "event_time_max": before.event_time_max,
        "transactions_end": before.transactions_end,
    }
    payload = json.dumps(snapshot).encode()
    header, _ = encode_header(
        STATE, 0, len(payload), google_crc32c.value(payload), crc, 0, 0, 0, before.offset, 0, NO_SEQUENCE, 0,
        before.appended_at, before.event_time_max, before.observed_up_to, before.stated_watermark, synced,
        before.epoch, crc, 0, 0, 0,
    )  # fmt: skip
    path = name.path(folder)
    handle = files.create(path + UNFINISHED)
    try:
        files.pwritev(handle, [preamble, header, payload], 0)
    finally:
        files.close(handle)
    files.rename(path + UNFINISHED, path)
    files.close(files.create(name.index_path(folder)))
    segment = ActiveSegment(files, folder, name)
    try:
        end = first_end(segment)
    finally:
        segment.close()
    assert end is not None
    return end._replace(flags=before.flags & (DELETED | HAS_STATE))
