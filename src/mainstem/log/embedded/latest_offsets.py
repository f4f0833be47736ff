"""Which records a later one of the same key has replaced, found without holding all keys at once.

The keys of the new part of a partition are gathered with the last offset of each; then the keys of all of it, old and
new, are looked up among them, whole columns at a time. Exact: keys are compared byte by byte. Where there are more
keys than may be held, they are dealt out to shares by their hash, and one share is worked on at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mainstem.log.partitioner import key_bytes, murmur2
from mainstem.log.schema_evolution import fit

# A share has about so many keys at most, of about so many bytes: with what is needed to look them up some 300 MB.
KEYS_MAX = 1_000_000
KEY_BYTES_MAX = 32 << 20

# So many rows are gathered before they are reduced to keys, or looked up, and as many as there are keys held: each of
# the two goes over all of those.
ROWS_TOGETHER = 250_000
ROW_BYTES_TOGETHER = 16 << 20

# Beyond this the keys themselves must be huge; then a share may be larger.
SHARES_MAX = 4096

Offsets = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]


class KeyRows(NamedTuple):
    """Some rows of a segment: where they stand in it, their keys and offsets."""

    segment: int
    places: Offsets
    keys: pa.BinaryArray
    offsets: Offsets

    def only(self, wanted: pa.BooleanArray) -> KeyRows:
        """Some of them."""
        if wanted.true_count == len(wanted):
            return self
        chosen = wanted.to_numpy(zero_copy_only=False)
        return KeyRows(self.segment, self.places[chosen], self.keys.filter(wanted), self.offsets[chosen])


def key_rows(
    segment: int, batches: Iterable[pa.RecordBatch], key: Sequence[str], schema: pa.Schema
) -> Iterator[KeyRows]:
    """The keys of a segment's batches, which have the key columns and `record.offset`; `schema` is that of the key now."""
    row = 0
    for batch in batches:
        offsets = batch.column(batch.num_columns - 1).field("offset").to_numpy(zero_copy_only=False)
        # As they are now: a column that was widened has the same bytes.
        places = np.arange(row, row + batch.num_rows, dtype=np.int64)
        yield KeyRows(segment, places, key_bytes(fit(batch.select(list(key)), schema), key), offsets)
        row += batch.num_rows


class RowMarks:
    """Some rows of each of some segments, one bit a row."""

    def __init__(self, rows: dict[int, int]) -> None:
        self._rows = rows
        self._bits = {segment: np.zeros((count + 7) // 8, np.uint8) for segment, count in rows.items()}

    def add(self, rows: KeyRows, marks: Marks) -> None:
        """Mark some of some rows."""
        self.add_places(rows.segment, rows.places[marks])

    def add_places(self, segment: int, places: Offsets) -> None:
        if len(places):
            all_marks = self.of(segment)
            all_marks[places] = True
            self._bits[segment] = np.packbits(all_marks)

    def of(self, segment: int) -> Marks:
        return np.unpackbits(self._bits[segment], count=self._rows[segment]).astype(np.bool_)

    def count(self, segment: int) -> int:
        return int(np.bitwise_count(self._bits[segment]).sum())


class LatestOffsets:
    """The last offset of each key of one share. `full`: there are more keys than may be held."""

    def __init__(self, share: int, shares: int) -> None:
        self.full = False
        self._share = share
        self._shares = shares
        self._keys = pa.chunked_array([], pa.binary())
        self._offsets = pa.chunked_array([], pa.int64())
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = 0

    def mine(self, rows: KeyRows) -> pa.Array:
        """Which rows are of this share; a record without a key is of none, and replaces none."""
        known = pc.is_valid(rows.keys)
        if self._shares == 1:
            return known
        # The lowest bits have decided on the partition.
        return pc.and_(known, pa.array((murmur2(rows.keys) >> np.uint32(10)) % np.uint32(self._shares) == self._share))

    def add(self, rows: KeyRows) -> None:
        self._waiting.append(pa.table({"key": rows.keys, "offset": rows.offsets}).filter(self.mine(rows)))
        self._rows += len(self._waiting[-1])
        self._bytes += self._waiting[-1].nbytes
        if self.enough(self._rows, self._bytes):
            self.reduce()

    def enough(self, rows: int, size: int) -> bool:
        """Whether so many rows are worth going over all keys."""
        return rows >= max(ROWS_TOGETHER, len(self._keys)) or size >= max(ROW_BYTES_TOGETHER, self._keys.nbytes)

    def reduce(self) -> None:
        """Make keys of the rows that wait."""
        if not self._waiting:
            return
        known = pa.table({"key": self._keys, "offset": self._offsets})
        latest = (
            pa.concat_tables([known, *self._waiting]).group_by("key", use_threads=False).aggregate([("offset", "max")])
        )
        self._keys = latest.column("key")
        self._offsets = latest.column("offset_max")
        self._waiting, self._rows, self._bytes = [], 0, 0
        self.full = len(latest) > KEYS_MAX or self._keys.nbytes > KEY_BYTES_MAX

    def replaced(self, pieces: Sequence[KeyRows]) -> Iterator[tuple[KeyRows, Marks]]:
        """For each piece which of its rows have a later one of the same key."""
        places = pc.index_in(pa.chunked_array([piece.keys for piece in pieces], pa.binary()), value_set=self._keys)
        # A key that is not held gets the last place, where an offset stands that is later than none.
        latest = np.append(self._offsets.to_numpy(), -1)
        found = pc.fill_null(places, len(latest) - 1).to_numpy()
        at = 0
        for piece in pieces:
            yield piece, latest[found[at : at + len(piece.keys)]] > piece.offsets
            at += len(piece.keys)


def replaced_rows(
    rows: dict[int, int],
    fresh: Sequence[int],
    read: Callable[[int], Iterator[KeyRows]],
    go_on: Callable[[], None],
) -> RowMarks:
    """The rows of some segments that a later record in the `fresh` ones among them replaces.

    `rows`: how many rows each segment has, by its number. `read` gives the keys of one, in order.
    """
    marks = RowMarks(rows)
    share, shares = 0, 1 if fresh else 0
    while share < shares:
        latest = LatestOffsets(share, shares)
        seen = _gather(latest, fresh, read, go_on, to_the_end=shares >= SHARES_MAX)
        if latest.full and shares < SHARES_MAX:
            # As many as it takes if the rest is like what was seen.
            needed = -(-shares * sum(rows[segment] for segment in fresh) * 5 // (4 * seen))
            share, shares = 0, min(SHARES_MAX, max(2 * shares, needed))
            continue
        for pieces in _together(latest, rows, read, go_on):
            for piece, replaced in latest.replaced(pieces):
                marks.add(piece, replaced)
        share += 1
    return marks


def _gather(
    latest: LatestOffsets,
    fresh: Sequence[int],
    read: Callable[[int], Iterator[KeyRows]],
    go_on: Callable[[], None],
    *,
    to_the_end: bool,
) -> int:
    """Take in the keys of the fresh segments, until there are too many; how many rows were seen."""
    seen = 0
    for segment in fresh:
        for piece in read(segment):
            go_on()
            seen += len(piece.keys)
            latest.add(piece)
            if latest.full and not to_the_end:
                return seen
    latest.reduce()
    return seen


def _together(
    latest: LatestOffsets, segments: Iterable[int], read: Callable[[int], Iterator[KeyRows]], go_on: Callable[[], None]
) -> Iterator[list[KeyRows]]:
    """The keys of this share in all segments, in helpings that are looked up at once."""
    pieces: list[KeyRows] = []
    count = size = 0
    for segment in segments:
        for piece in read(segment):
            go_on()
            pieces.append(piece.only(latest.mine(piece)))
            count += len(pieces[-1].keys)
            size += pieces[-1].keys.nbytes
            if latest.enough(count, size):
                yield pieces
                pieces, count, size = [], 0, 0
    if pieces:
        yield pieces
