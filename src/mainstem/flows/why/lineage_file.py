"""The file with the lineage of a flow, as `view.why` reads it; drawn in `flow_lineage`, which writes it with Spark."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from mainstem.durable_files import decode_checked
from mainstem.spark.checkpoint.flow_store import FlowStore

__all__ = ["FORMAT", "read_lineage"]

FORMAT = 1


def read_lineage(store: FlowStore, version: int) -> dict[str, Any] | None:
    """The lineage of a version of a flow; None if it is not known."""
    with suppress(OSError, ValueError), open(store.lineage(version), "rb") as file:
        content = decode_checked(file.read(), since=1, known=FORMAT)
        return content if content.get("format") == FORMAT and "changed" in content else None
    return None
