"""Which batches had rows for a sink that keeps no account of the others: a topic.

    <checkpoint>/sink_rows/<batch>      an empty file; the last two such batches are kept

A topic that was restored from an older copy holds no sign of the batches that it lost, and one into which nothing had come
for a while looks the same. So the flow itself notes the last batches that had rows:

    the sink's commit  ->  the note  ->  Spark's commit of the batch

A run that is killed between the first two finds by the sink that the batch is in, and notes it when it begins again. The
note of a batch that Spark has not committed does not count: that batch is done again. This is why two are kept.

A note is a name in a directory, as Spark's own commit is, and is made before it: a file system that keeps a journal of its
directories cannot keep the commit and lose the note, so a batch costs no further sync. Where Spark keeps its commits on
another machine, the directory is synced.
"""

from __future__ import annotations

import os
from contextlib import suppress

from mainstem.log.embedded.embedded_log import REAL_FILES
from mainstem.log_on_spark.checkpoint_place import is_elsewhere

__all__ = ["last_with_rows", "note_rows"]


def last_with_rows(checkpoint: str, upto: int) -> int:
    """The last batch, of those up to this one, that had rows for the sink; -1 if none is noted."""
    return max((number for number in _noted(checkpoint) if number <= upto), default=-1)


def note_rows(checkpoint: str, batch: int) -> None:
    """Note that the sink holds a batch with rows, and none behind it. For the run that counts."""
    noted = _noted(checkpoint)
    if batch < 0 or (batch in noted and max(noted) == batch):
        return
    folder = f"{checkpoint}/sink_rows"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/{batch}", "w"):
        pass
    if is_elsewhere(checkpoint):
        REAL_FILES.sync_directory(folder)
    before = max((number for number in noted if number < batch), default=-1)
    for number in noted - {batch, before}:
        with suppress(FileNotFoundError):
            os.remove(f"{folder}/{number}")


def _noted(checkpoint: str) -> set[int]:
    with suppress(FileNotFoundError):
        return {int(name) for name in os.listdir(f"{checkpoint}/sink_rows") if name.isdigit()}
    return set()
