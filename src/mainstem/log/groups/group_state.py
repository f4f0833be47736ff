"""GroupState: the members of a reader group, the owner of each partition, and the committed offsets.

A state machine without files: it applies entries. The decisions below say which entries are valid.

Entries (kind, then its fields; partitions are written as text where they are JSON names):

    opened      offsets                        the group begins; where it starts in each partition
    grown       offsets                        the topic got more partitions
    joined      member, process, session       in the order they came
    left        members, cause                 cause: left | evicted
    assigned    owners, next_owners            member -> partitions; raises the generation
    released    member, partitions             each goes to its next owner
    committed   offsets, cleaned               the offset that is read next, not the last one read
    sought      offsets                        as committed, but set by a seek or a reset
    pending     transaction, offsets, cleaned  committed when the transaction is
    settled     transaction, outcome           outcome: committed | aborted

`cleaned` says how far a partition was compacted when the group began to read it (see `missed_deletions`); after a start
or a seek, `unread` says that this is not known yet. Older versions wrote neither.

A partition that moves away from a live member stays with it until the member releases it (`next_owners` has the next
owner), so no two members ever read one partition. A new owner does not read a partition with pending offsets before the
transaction is settled: it would read again the records that the transaction covers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Self

from mainstem.errors import Conflict, Fenced
from mainstem.log.missed_deletions import UNREAD
from mainstem.log.state_ledger import Entry
from mainstem.processes import Identity

__all__ = [
    "GroupMember",
    "GroupState",
    "assign",
    "commit",
    "evict",
    "grow",
    "hold_pending",
    "join",
    "leave",
    "release",
    "reset",
    "seek",
    "settle",
]


# Which member of a group reads which partition.
#
# The assignment is sticky: it starts from the current owners and moves no more partitions than needed to balance them.
#
# With n partitions and m members, n % m members read n // m + 1 partitions and the others n // m. The larger shares go
# to those who own most now; every member keeps what fits into its share, and only the rest moves. This is optimal: a
# member keeps min(owned, share), and the larger shares go where they keep most.


def assign(
    partitions: int, members: Sequence[str], owners: Mapping[int, str], next_owners: Mapping[int, str]
) -> dict[int, str]:
    """The owner of each partition, given the current ones (`owners`) and the hand-overs in progress.

    `members` are the live ones in the order they joined; other owners have lost their partitions.
    Of equally good assignments it returns one that continues the hand-overs in progress, the same in every process.

    >>> assign(4, ["a", "b"], {0: "a", 1: "a", 2: "a", 3: "a"}, {})
    {0: 'a', 1: 'a', 2: 'b', 3: 'b'}
    """
    if not members:
        return {}
    held: dict[str, list[int]] = {member: [] for member in members}
    homeless: list[int] = []
    for partition in range(partitions):
        owner = owners.get(partition)
        if owner in held:
            held[owner].append(partition)
        else:
            homeless.append(partition)

    small, larger_shares = divmod(partitions, len(members))
    # A larger share saves a move where a member owns more than the smaller one; the others are ranked by what they will own.
    # Python's sort is stable: of equal members, the one that joined first gets the larger share.
    promises = Counter(next_owners.values())
    loads = {member: len(owned) for member, owned in held.items()}
    by_load = sorted(
        members,
        key=lambda member: (
            loads[member] <= small,
            -loads[member] - (promises[member] if loads[member] <= small else 0),
        ),
    )
    room = {member: small + (rank < larger_shares) for rank, member in enumerate(by_load)}

    target: dict[int, str] = {}
    for member in members:
        # Partitions that are not being handed over are kept first; of those, the lowest.
        by_preference = sorted(
            held[member], key=lambda partition: (next_owners.get(partition, member) != member, partition)
        )
        for partition in by_preference[: room[member]]:
            target[partition] = member
        homeless.extend(by_preference[room[member] :])
        room[member] -= min(room[member], len(by_preference))

    unpromised: list[int] = []
    for partition in sorted(homeless):
        promised = next_owners.get(partition, "")
        if room.get(promised, 0) > 0:
            target[partition] = promised
            room[promised] -= 1
        else:
            unpromised.append(partition)
    with_room = [member for member in members for _ in range(room[member])]
    target.update(zip(unpromised, with_room, strict=True))
    return dict(sorted(target.items()))


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member: `session` is how long (microseconds) it may miss heartbeats before it loses its partitions."""

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
    # The generation in which a partition got its owner: offsets that the owner knew from an earlier one are invalid.
    owned_since: dict[int, int] = field(default_factory=dict)
    next_owners: dict[int, str] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    pending: dict[str, dict[int, int]] = field(default_factory=dict)
    # UNREAD: nothing was read there yet; 0 if unknown.
    cleaned: dict[int, int] = field(default_factory=dict)

    @property
    def partitions(self) -> int:
        """The number of partitions that the group knows."""
        return len(self.committed)

    def owned_by(self, member: str) -> list[int]:
        """The partitions that a member reads, with those it is to hand over."""
        return sorted(partition for partition, owner in self.owners.items() if owner == member)

    def partitions_to_release(self, member: str) -> list[int]:
        """The partitions that this member is to release to another."""
        return [partition for partition in self.owned_by(member) if partition in self.next_owners]

    def transactions_on(self, partition: int) -> list[str]:
        """The transactions that will move this partition's offset if they are committed."""
        return [transaction for transaction, offsets in self.pending.items() if partition in offsets]

    # Entries

    def apply(self, entry: Entry, at: int) -> None:
        """Apply one entry."""
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
        # The later decision wins: a transaction settled after this does not set the offset back.
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
        """The state as JSON."""
        return {
            "opened_at": self.opened_at,
            "generation": self.generation,
            "members": [asdict(member) for member in self.members.values()],
            "owners": self.owners_by_member(),
            "owned_since": _as_names(self.owned_since),
            "next_owners": _as_lists(self.next_owners),
            "committed": _as_names(self.committed),
            # A list, because the order of the transactions matters.
            "pending": [[transaction, _as_names(offsets)] for transaction, offsets in self.pending.items()],
            "cleaned": _as_names(self.cleaned),
        }

    def owners_by_member(self) -> dict[str, list[int]]:
        """The partitions of each member that has any."""
        return _as_lists(self.owners)

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        """The state of a snapshot."""
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
            # Missing in snapshots of older versions.
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


# Decisions of a reader group: each takes the state and returns the entries to append.
#
# Pure functions, run by `StateLedger.decide`, perhaps several times. A member that was removed from the group, or names
# a partition that it no longer owns, is fenced.


REJOIN = (
    "Poll again: the member then rejoins and continues from the committed offsets, so some rows may be delivered twice."
)


def join(
    state: GroupState,
    member: str,
    *,
    process: Identity | None,
    session: int,
    offsets: Mapping[int, int],
    dead: Collection[str] = (),
) -> list[Entry]:
    """Add a member, remove dead ones, and reassign the partitions.

    `offsets` says where the group starts in partitions it does not know yet: all of them if the group is new.
    """
    entries: list[Entry] = []
    new = {partition: offset for partition, offset in offsets.items() if partition not in state.committed}
    if state.opened_at is None:
        entries.append({"kind": "opened", "offsets": _offsets_json(new), "unread": True})
    elif new:
        entries.append({"kind": "grown", "offsets": _offsets_json(new), "unread": True})
    gone = [known for known in state.members if known in dead]
    if gone:
        entries.append({"kind": "left", "members": gone, "cause": "evicted"})
    entries.append({"kind": "joined", "member": member, "process": process, "session": session})
    living = [known for known in state.members if known not in gone]
    entries.append(_assignment_entry(state, [*living, member], state.partitions + len(new)))
    return entries


def leave(state: GroupState, member: str) -> list[Entry]:
    """Remove a member; its partitions go to the others at once. Does nothing if it has left already."""
    if member not in state.members:
        return []
    return _without(state, [member], "left")


def evict(state: GroupState, dead: Collection[str]) -> list[Entry]:
    """Remove dead members."""
    gone = [member for member in state.members if member in dead]
    return _without(state, gone, "evicted") if gone else []


def grow(state: GroupState, offsets: Mapping[int, int]) -> list[Entry]:
    """Assign partitions that were added to the topic; `offsets` says where to start in them."""
    new = {partition: offset for partition, offset in offsets.items() if partition not in state.committed}
    if not new:
        return []
    return [
        {"kind": "grown", "offsets": _offsets_json(new), "unread": True},
        _assignment_entry(state, list(state.members), state.partitions + len(new)),
    ]


def release(state: GroupState, member: str, partitions: Iterable[int]) -> list[Entry]:
    """Release the partitions that another member waits for; keep the others."""
    handed_over = set(state.partitions_to_release(member))
    released = [partition for partition in sorted(set(partitions)) if partition in handed_over]
    return [{"kind": "released", "member": member, "partitions": released}] if released else []


def commit(
    state: GroupState,
    member: str,
    generation: int,
    offsets: Mapping[int, int],
    cleaned: Mapping[int, int] = MappingProxyType({}),
) -> list[Entry]:
    """Commit the offsets of a member. `generation` is the last one it knew of.

    `cleaned` says how far the partitions were compacted when the member began to read them.
    """
    check_owned(state, member, generation, offsets)
    news = {
        partition: offset
        for partition, offset in offsets.items()
        if state.committed.get(partition) != offset or state.transactions_on(partition)
    }
    return (
        [_with_cleaned({"kind": "committed", "member": member, "offsets": _offsets_json(news)}, state, cleaned)]
        if news
        else []
    )


def seek(state: GroupState, member: str, generation: int, offsets: Mapping[int, int]) -> list[Entry]:
    """Move partitions that a member owns to other offsets, backward or forward."""
    check_owned(state, member, generation, offsets)
    return [{"kind": "sought", "member": member, "offsets": _offsets_json(offsets), "unread": True}] if offsets else []


def reset(state: GroupState, offsets: Mapping[int, int], dead: Collection[str] = ()) -> list[Entry]:
    """Set the offsets of a group without active members."""
    living = [member for member in state.members if member not in dead]
    if living:
        raise Conflict(
            f"the group has {len(living)} active {'member' if len(living) == 1 else 'members'}",
            detail=f"Members: {', '.join(sorted(living))}. They would continue from their own positions and undo the reset.",
            hint="Stop them first, or seek in each of them.",
        )
    entries = evict(state, dead)
    if offsets:
        entries.append({"kind": "sought", "member": None, "offsets": _offsets_json(offsets), "unread": True})
    return entries


def hold_pending(
    state: GroupState,
    member: str,
    generation: int,
    transaction: str,
    offsets: Mapping[int, int],
    cleaned: Mapping[int, int] = MappingProxyType({}),
) -> list[Entry]:
    """Record offsets that take effect when the transaction is committed."""
    check_owned(state, member, generation, offsets)
    if not offsets:
        return []
    entry = {"kind": "pending", "transaction": transaction, "member": member, "offsets": _offsets_json(offsets)}
    return [_with_cleaned(entry, state, cleaned)]


def settle(state: GroupState, transaction: str, outcome: str) -> list[Entry]:
    """Record the outcome of a transaction. Does nothing if it is known, or the transaction has no offsets here."""
    if transaction not in state.pending:
        return []
    return [{"kind": "settled", "transaction": transaction, "outcome": outcome}]


def check_owned(state: GroupState, member: str, generation: int, partitions: Iterable[int]) -> None:
    """Raise `Fenced` for a member that was removed, or for partitions that it does not own."""
    if member not in state.members:
        raise Fenced(
            f'member "{member}" is no longer in the group',
            detail="It left, or it was removed: its process had ended, or it had sent no heartbeat for longer "
            "than its session. Its partitions were assigned to other members.",
            hint=REJOIN,
        )
    lost = sorted(
        partition
        for partition in partitions
        if state.owners.get(partition) != member or state.owned_since[partition] > generation
    )
    if lost:
        owned = ", ".join(map(str, state.owned_by(member))) or "none"
        raise Fenced(
            f'member "{member}" does not own partition {", ".join(map(str, lost))}',
            detail=f"It owns: {owned}. The group is at generation {state.generation}, the member at {generation}.",
            hint=REJOIN,
        )


def _without(state: GroupState, gone: list[str], cause: str) -> list[Entry]:
    living = [member for member in state.members if member not in gone]
    return [{"kind": "left", "members": gone, "cause": cause}, _assignment_entry(state, living, state.partitions)]


def _assignment_entry(state: GroupState, members: list[str], partitions: int) -> Entry:
    target = assign(partitions, members, state.owners, state.next_owners)
    owners: dict[str, list[int]] = {}
    next_owners: dict[str, list[int]] = {}
    for partition, member in target.items():
        owner = state.owners.get(partition)
        if owner is None or owner == member or owner not in members:
            owners.setdefault(member, []).append(partition)
        else:
            owners.setdefault(owner, []).append(partition)
            next_owners.setdefault(member, []).append(partition)
    return {"kind": "assigned", "owners": owners, "next_owners": next_owners}


def _with_cleaned(entry: Entry, state: GroupState, cleaned: Mapping[int, int]) -> Entry:
    """With how far partitions were compacted that the group reads for the first time."""
    first = {p: cleaned[p] for p in map(int, entry["offsets"]) if state.cleaned.get(p) == UNREAD and p in cleaned}
    return {**entry, "cleaned": _offsets_json(first)} if first else entry


def _offsets_json(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}
