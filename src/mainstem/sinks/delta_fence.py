"""DeltaFence: the fence of a store, in the log of a Delta table.

Application transactions (`txn`) and table properties are the only parts of a Delta log, besides its list of files, that outlive
checkpoints and log clean-up. A transaction has a name and a number, and can be in a commit with rows; a property has text, and
cannot. So the numbers of a fence are transactions, in the commit of the batch, and one of them names the text:

    txn  mainstem.batch, .epoch, .filling, .applied_at, .offset.<topic>.<partition>
    txn  mainstem.at                   the table version of this commit: a later RESTORE sets back rows, but not transactions
    txn  mainstem.facts                the hash of the facts
    property  mainstem.facts.<hash>    {"home", "flow", "version", "key", "columns", "partitions"}

The property is set in a commit before the one that needs it, which is rare: the facts change with a column, a version or a
partition. A fence of which any part is missing counts as none.
"""

from __future__ import annotations

import hashlib
import json

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from mainstem.sinks.store_backend import Fence

__all__ = ["FACTS", "facts_property", "facts_text", "fence_properties", "has_fence", "owner", "read_fence"]

FACTS = "mainstem.facts"


def has_fence(table: DeltaTable) -> bool:
    """Whether a flow has made it."""
    return table.transaction_version(FACTS) is not None


def read_fence(table: DeltaTable) -> Fence | None:
    """The fence of a table that has one; None if it is not complete."""
    number = table.transaction_version
    facts_id, at = number(FACTS), number("mainstem.at")
    if facts_id is None or at is None:
        return None
    for entry in table.history(table.version() - at) if table.version() > at else ():
        if entry["operation"] == "RESTORE":
            return _restored_fence(table, entry["operationParameters"].get("version"))
    text = table.metadata().configuration.get(f"{FACTS}.{facts_id}", "")
    if _facts_id(text) != facts_id:
        return None
    facts = json.loads(text)
    partitions = facts.pop("partitions")
    names = [f"mainstem.{part}" for part in ("batch", "epoch", "filling", "applied_at")]
    names += [f"mainstem.offset.{topic}.{partition}" for topic in partitions for partition in partitions[topic]]
    found = {name: value for name in names if (value := number(name)) is not None}
    if len(found) < len(names):
        return None
    return Fence(
        **{**facts, "key": tuple(facts["key"])},
        batch=found["mainstem.batch"],
        epoch=found["mainstem.epoch"],
        filling=found["mainstem.filling"] == 1,
        applied_at=None if found["mainstem.applied_at"] == -1 else found["mainstem.applied_at"],
        offsets={
            topic: {partition: found[f"mainstem.offset.{topic}.{partition}"] for partition in partitions[topic]}
            for topic in partitions
        },
    )


def _restored_fence(table: DeltaTable, version: str | None) -> Fence | None:
    """The fence of the table version to which somebody has restored the table."""
    try:
        return None if version is None else read_fence(DeltaTable(table.table_uri, version=int(version)))
    except DeltaError:
        return None


def owner(fence: Fence) -> tuple[str, str, int]:
    """Who writes which version."""
    return fence.home, fence.flow, fence.version


def facts_text(fence: Fence) -> str:
    """What seldom changes, and is not a number."""
    partitions = {topic: sorted(ends) for topic, ends in sorted(fence.offsets.items())}
    facts = {
        "home": fence.home,
        "flow": fence.flow,
        "version": fence.version,
        "key": fence.key,
        "columns": fence.columns,
    }
    return json.dumps({**facts, "partitions": partitions})


def _facts_id(facts: str) -> int:
    """63 bits, because Delta has transactions with a signed number of 64."""
    return int.from_bytes(hashlib.sha256(facts.encode()).digest()[:8]) >> 1


def facts_property(fence: Fence) -> dict[str, str]:
    """The table property that the fence needs."""
    facts = facts_text(fence)
    return {f"{FACTS}.{_facts_id(facts)}": facts}


def fence_properties(fence: Fence, version: int) -> CommitProperties:
    """What makes a commit of ours: the fence, for this table version and no other."""
    numbers = {
        FACTS: _facts_id(facts_text(fence)),
        "mainstem.at": version,
        "mainstem.batch": fence.batch,
        "mainstem.epoch": fence.epoch,
        "mainstem.filling": int(fence.filling),
        "mainstem.applied_at": -1 if fence.applied_at is None else fence.applied_at,
    } | {
        f"mainstem.offset.{topic}.{partition}": end
        for topic, ends in fence.offsets.items()
        for partition, end in ends.items()
    }
    transactions = [Transaction(name, number) for name, number in numbers.items()]
    return CommitProperties(max_commit_retries=0, app_transactions=transactions)
