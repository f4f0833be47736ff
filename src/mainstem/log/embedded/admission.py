"""Whether an append may be written, decided under the partition's write lock."""

from __future__ import annotations

from mainstem.errors import AppendConflict, Fenced
from mainstem.log.embedded.block import DATA, MARKERS
from mainstem.log.embedded.heads import End
from mainstem.log.embedded.pending import Pending
from mainstem.log.embedded.state_scan import StateScan


def admit(pending: Pending, tail: End, scan: StateScan | None, title: str) -> bool:
    """Whether to write it: not if it is there already. Raises if it may not be written."""
    if pending.expected is not None and pending.expected != tail.offset:
        raise AppendConflict(
            f"{title} does not end at offset {pending.expected}",
            detail=f"It ends at {tail.offset}: somebody appended meanwhile.",
            hint="Read what came, decide again, and append with the new end.",
        )
    if pending.check is not None:
        pending.check()
    if pending.kind in MARKERS:
        # The owner of a transaction and somebody who settles it may both come to write its marker.
        assert scan is not None
        pending.duplicate = pending.transaction not in scan.state.open
        return not pending.duplicate
    if not pending.producer_id:
        return True
    assert scan is not None
    known = scan.state.producers.get(pending.producer_id)
    if known is None:
        return True
    if known.epoch > pending.producer_epoch:
        raise Fenced(
            f"a newer run of this producer has appended to {title}",
            detail=f"This run has epoch {pending.producer_epoch}, the newer one {known.epoch}.",
            hint="Only one run of a producer may append: stop this one, or open the producer again to fence the other.",
            epoch=pending.producer_epoch,
            current_epoch=known.epoch,
        )
    if pending.kind == DATA and pending.count and pending.sequence <= known.kept:
        pending.duplicate = True
        pending.appended_at, pending.epoch = known.appended_at, tail.epoch
        if pending.sequence == known.kept:
            pending.base_offset, pending.end_offset = known.base_offset, known.end_offset
        return False
    return True
