"""Mainstem: one log, every view.

The public names, each resolved on first use: `import mainstem` costs milliseconds and loads neither PySpark nor DuckDB.
Inside the package, import from the defining module instead.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # For type checkers and editors only; a test holds that it names the same things as `_DEFINED_IN`.
    from mainstem.capture.capture import Capture
    from mainstem.errors import (
        AlreadyExists,
        AppendConflict,
        BeyondEnd,
        BrokerUnavailable,
        Conflict,
        Corrupt,
        CorruptBlock,
        CorruptHome,
        CorruptManifest,
        CorruptSegment,
        CorruptView,
        DatabaseUnavailable,
        DiskFull,
        FellOff,
        Fenced,
        FlowFailed,
        FlowNotFound,
        GroupNotFound,
        IncompleteAppend,
        Invalid,
        InvalidName,
        InvalidRows,
        LockHeld,
        MainstemError,
        MissedDeletions,
        NewerFormat,
        NotFound,
        NotYet,
        PositionLost,
        QueueNotFound,
        SchemaMismatch,
        TopicExists,
        TopicNotFound,
        Unavailable,
        ViewNotFound,
    )
    from mainstem.flows.compared_tables import Comparison, Difference
    from mainstem.flows.flow import Flow
    from mainstem.log.append_result import AppendResult
    from mainstem.log.backoff import Backoff
    from mainstem.log.groups.group_member import Member
    from mainstem.log.keep_rule import Keep
    from mainstem.log.lag import Lag
    from mainstem.log.producer import Producer
    from mainstem.log.queues.message import Message
    from mainstem.log.queues.queue import Queue
    from mainstem.log.topic import Topic
    from mainstem.log.transaction import Transaction
    from mainstem.stem import Mainstem, open
    from mainstem.views.view import View

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "AppendConflict",
    "AppendResult",
    "Backoff",
    "BeyondEnd",
    "BrokerUnavailable",
    "Capture",
    "Comparison",
    "Conflict",
    "Corrupt",
    "CorruptBlock",
    "CorruptHome",
    "CorruptManifest",
    "CorruptSegment",
    "CorruptView",
    "DatabaseUnavailable",
    "Difference",
    "DiskFull",
    "FellOff",
    "Fenced",
    "Flow",
    "FlowFailed",
    "FlowNotFound",
    "GroupNotFound",
    "IncompleteAppend",
    "Invalid",
    "InvalidName",
    "InvalidRows",
    "Keep",
    "Lag",
    "LockHeld",
    "Mainstem",
    "MainstemError",
    "Member",
    "Message",
    "MissedDeletions",
    "NewerFormat",
    "NotFound",
    "NotYet",
    "PositionLost",
    "Producer",
    "Queue",
    "QueueNotFound",
    "SchemaMismatch",
    "Topic",
    "TopicExists",
    "TopicNotFound",
    "Transaction",
    "Unavailable",
    "View",
    "ViewNotFound",
    "open",
]

# What is not listed here is an error and comes from mainstem.errors.
_DEFINED_IN = {
    "Backoff": "mainstem.log.backoff",
    "Capture": "mainstem.capture.capture",
    "Comparison": "mainstem.flows.compared_tables",
    "Difference": "mainstem.flows.compared_tables",
    "Flow": "mainstem.flows.flow",
    "Keep": "mainstem.log.keep_rule",
    "Lag": "mainstem.log.lag",
    "Mainstem": "mainstem.stem",
    "Member": "mainstem.log.groups.group_member",
    "Message": "mainstem.log.queues.message",
    "AppendResult": "mainstem.log.append_result",
    "Producer": "mainstem.log.producer",
    "Queue": "mainstem.log.queues.queue",
    "Topic": "mainstem.log.topic",
    "Transaction": "mainstem.log.transaction",
    "View": "mainstem.views.view",
    "open": "mainstem.stem",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_DEFINED_IN.get(name, "mainstem.errors")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
