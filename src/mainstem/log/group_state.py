"""GroupState: who is in a reader group, who reads which partition, and how far the group has come.

A machine without files: entries go in, the state comes out. What may be entered is decided in `group_decisions`.

Entries (kind, then its fields; partitions are written as text where they are JSON names):

    opened      offsets                        the group begins; where it starts in each partition
    grown       offsets                        the topic got more partitions
    joined      member, process, session       in the order they came
    left        members, cause                 cause: left | evicted
    assigned    owners, next_owners            member -> partitions; raises the generation
    released    member, partitions             each goes to its next owner
    committed   offsets, cleaned               the offset that is read next, not the last one read
    sought      offsets                        as committed, but asked for by somebody who wants to go elsewhere
    pending     transaction, offsets, cleaned  committed when the transaction is
    settled     transaction, outcome           outcome: committed | aborted

`cleaned` says how far a partition was compacted when the group began to read it (see `missed_deletions`); where it begins
or is sent elsewhere, `unread` says that this is yet to come. An older Mainstem wrote neither.

A partition that moves away from a living member stays with it until it lets go of it (`next_owners` says who waits), so
no two members ever work on one partition. A partition with pending offsets is not to be read by a new owner before the
transaction is settled, else it would read again what the transaction covers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Self

from mainstem.log.missed_deletions import UNREAD
from mainstem.log.processes import Identity
from mainstem.log.state_ledger import Entry

__all__ = ["GroupMember", "GroupState"]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member: `session` is how long (microseconds) it may be silent before the others take its partitions."""

    id: str
    process: Identity | None
    session: int
    joined_at: int


@dataclass(slots=True)
class GroupState:
    """The state of one group over one topic; times and durations in microseconds."""

    opened_at: int | None = None
    generation: int = 0
    members: dict[str, GroupMember] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)
    # In which generation a partition came to its owner: what its owner knew of an earlier one does not count.
    owned_since: dict[int, int] = field(default_factory=dict)
    next_owners: dict[int, str] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    pending: dict[str, dict[int, int]] = field(default_factory=dict)
    # UNREAD: nothing was read there yet; 0 if it is not known.
    cleaned: dict[int, int] = field(default_factory=dict)

    @property
    def partitions(self) -> int:
        """How many partitions the group knows of."""
        return len(self.committed)

    def owned_by(self, member: str) -> list[int]:
        """The partitions a member reads, those it is to hand over included."""
        return sorted(partition for partition, owner in self.owners.items() if owner == member)

    def handed_over_by(self, member: str) -> list[int]:
        """The partitions somebody else waits for this member to release."""
        return [partition for partition in self.owned_by(member) if partition in self.next_owners]

    def transactions_on(self, partition: int) -> list[str]:
        """The transactions that will move this partition's offset if they are committed."""
        return [transaction for transaction, offsets in self.pending.items() if partition in offsets]

    # Entries

    def apply(self, entry: Entry, at: int) -> None:
        """Take one entry in."""
        match entry["kind"]:
            case "opened":
                self.opened_at = at
                self.committed = _by_partition(entry["offsets"])
                self._begin(entry)
            case "grown":
                self.committed |= _by_partition(entry["offsets"])
                self._begin(entry)
            case "joined":
                member = GroupMember(entry["member"], entry["process"], entry["session"], at)
                self.members[member.id] = member
            case "left":
                self._remove(entry["members"])
            case "assigned":
                self._assign(_by_member(entry["owners"]), _by_member(entry["next_owners"]))
            case "released":
                for partition in entry["partitions"]:
                    self.owners[partition] = self.next_owners.pop(partition)
                    self.owned_since[partition] = self.generation
            case "committed":
                self._move(_by_partition(entry["offsets"]))
                self.cleaned |= _by_partition(entry.get("cleaned", {}))
            case "sought":
                self._move(_by_partition(entry["offsets"]))
                self._begin(entry)
            case "pending":
                self.cleaned |= _by_partition(entry.get("cleaned", {}))
                offsets = _by_partition(entry["offsets"])
                self.pending[entry["transaction"]] = self.pending.pop(entry["transaction"], {}) | offsets
            case "settled":
                self._settle(entry["transaction"], entry["outcome"])
            case unknown:
                raise ValueError(f"a reader group has no entries of kind {unknown!r}")

    def _begin(self, entry: Entry) -> None:
        for partition in _by_partition(entry["offsets"]):
            if entry.get("unread"):
                self.cleaned[partition] = UNREAD
            else:
                self.cleaned.pop(partition, None)

    def _remove(self, members: list[str]) -> None:
        for member in members:
            del self.members[member]
        self.owners = {partition: owner for partition, owner in self.owners.items() if owner in self.members}
        self.next_owners = {
            partition: owner
            for partition, owner in self.next_owners.items()
            if owner in self.members and partition in self.owners
        }
        self.owned_since = {partition: self.owned_since[partition] for partition in self.owners}

    def _assign(self, owners: dict[int, str], next_owners: dict[int, str]) -> None:
        self.generation += 1
        for partition, owner in owners.items():
            if self.owners.get(partition) != owner:
                self.owned_since[partition] = self.generation
        self.owners = owners
        self.owned_since = {partition: self.owned_since[partition] for partition in owners}
        self.next_owners = next_owners

    def _move(self, offsets: dict[int, int]) -> None:
        self.committed |= offsets
        # The later word wins: a transaction settled after this does not take the partition back.
        self._forget_pending(offsets, list(self.pending))

    def _settle(self, transaction: str, outcome: str) -> None:
        earlier = list(self.pending)
        offsets = self.pending.pop(transaction)
        if outcome == "committed":
            self.committed |= offsets
            self._forget_pending(offsets, earlier[: earlier.index(transaction)])

    def _forget_pending(self, offsets: dict[int, int], transactions: list[str]) -> None:
        for transaction in transactions:
            for partition in offsets:
                self.pending[transaction].pop(partition, None)

    # Snapshots

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON."""
        return {
            "opened_at": self.opened_at,
            "generation": self.generation,
            "members": [asdict(member) for member in self.members.values()],
            "owners": self.owners_by_member(),
            "owned_since": _as_names(self.owned_since),
            "next_owners": _as_lists(self.next_owners),
            "committed": _as_names(self.committed),
            # A list, because the order in which transactions came counts and a JSON object promises none.
            "pending": [[transaction, _as_names(offsets)] for transaction, offsets in self.pending.items()],
            "cleaned": _as_names(self.cleaned),
        }

    def owners_by_member(self) -> dict[str, list[int]]:
        """The partitions of each member that has some."""
        return _as_lists(self.owners)

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        """The state a snapshot was made of."""
        members = [GroupMember(**member) for member in snapshot["members"]]
        return cls(
            opened_at=snapshot["opened_at"],
            generation=snapshot["generation"],
            members={member.id: member for member in members},
            owners=_by_member(snapshot["owners"]),
            owned_since=_by_partition(snapshot["owned_since"]),
            next_owners=_by_member(snapshot["next_owners"]),
            committed=_by_partition(snapshot["committed"]),
            pending={transaction: _by_partition(offsets) for transaction, offsets in snapshot["pending"]},
            # An older Mainstem did not note it.
            cleaned=_by_partition(snapshot.get("cleaned", {})),
        )


def _by_partition(named: dict[str, int]) -> dict[int, int]:
    return {int(partition): value for partition, value in named.items()}


def _as_names(values: dict[int, int]) -> dict[str, int]:
    return {str(partition): value for partition, value in sorted(values.items())}


def _by_member(lists: dict[str, list[int]]) -> dict[int, str]:
    return {partition: member for member, partitions in lists.items() for partition in partitions}


def _as_lists(owners: dict[int, str]) -> dict[str, list[int]]:
    lists: dict[str, list[int]] = {}
    for partition, owner in sorted(owners.items()):
        lists.setdefault(owner, []).append(partition)
    return lists
