"""What may be entered into a reader group: each decision looks at the state and gives the entries to append.

Pure functions, to be run by `StateLedger.decide`: they may be asked several times and change nothing. A member that is
no longer in the group, or speaks for a partition that is no longer its own, is refused with `Fenced`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from mainstem.errors import Conflict, Fenced
from mainstem.log.group_assignment import assign
from mainstem.log.group_state import GroupState
from mainstem.log.missed_deletions import UNREAD
from mainstem.log.processes import Identity
from mainstem.log.state_ledger import Entry

__all__ = ["commit", "evict", "grow", "hold_pending", "join", "leave", "release", "reset", "seek", "settle"]

REJOIN = "Poll again: the member then joins anew and goes on from the committed offsets, so some rows may come twice."


def join(
    state: GroupState,
    member: str,
    *,
    process: Identity | None,
    session: int,
    offsets: Mapping[int, int],
    dead: Collection[str] = (),
) -> list[Entry]:
    """Let a member in, the dead ones out, and share the partitions anew.

    `offsets` says where the group starts in partitions it does not know yet: all of them if the group is new.
    """
    entries: list[Entry] = []
    new = {partition: offset for partition, offset in offsets.items() if partition not in state.committed}
    if state.opened_at is None:
        entries.append({"kind": "opened", "offsets": _named(new), "unread": True})
    elif new:
        entries.append({"kind": "grown", "offsets": _named(new), "unread": True})
    gone = [known for known in state.members if known in dead]
    if gone:
        entries.append({"kind": "left", "members": gone, "cause": "evicted"})
    entries.append({"kind": "joined", "member": member, "process": process, "session": session})
    living = [known for known in state.members if known not in gone]
    entries.append(_assigned(state, [*living, member], state.partitions + len(new)))
    return entries


def leave(state: GroupState, member: str) -> list[Entry]:
    """Take a member out; its partitions go to the others at once. Nothing happens if it is out already."""
    if member not in state.members:
        return []
    return _without(state, [member], "left")


def evict(state: GroupState, dead: Collection[str]) -> list[Entry]:
    """Take out those of the dead that are still members."""
    gone = [member for member in state.members if member in dead]
    return _without(state, gone, "evicted") if gone else []


def grow(state: GroupState, offsets: Mapping[int, int]) -> list[Entry]:
    """Share out partitions that the topic got since; `offsets` says where to start in them."""
    new = {partition: offset for partition, offset in offsets.items() if partition not in state.committed}
    if not new:
        return []
    return [
        {"kind": "grown", "offsets": _named(new), "unread": True},
        _assigned(state, list(state.members), state.partitions + len(new)),
    ]


def release(state: GroupState, member: str, partitions: Iterable[int]) -> list[Entry]:
    """Let go of partitions somebody waits for; those nobody waits for (any more) stay."""
    handed_over = set(state.handed_over_by(member))
    released = [partition for partition in sorted(set(partitions)) if partition in handed_over]
    return [{"kind": "released", "member": member, "partitions": released}] if released else []


def commit(
    state: GroupState,
    member: str,
    generation: int,
    offsets: Mapping[int, int],
    cleaned: Mapping[int, int] = MappingProxyType({}),
) -> list[Entry]:
    """Record how far a member has come. `generation` is the last one it knew of.

    `cleaned` says how far the partitions were compacted when the member began to read them.
    """
    check_owned(state, member, generation, offsets)
    news = {
        partition: offset
        for partition, offset in offsets.items()
        if state.committed.get(partition) != offset or state.transactions_on(partition)
    }
    return (
        [_with_cleaned({"kind": "committed", "member": member, "offsets": _named(news)}, state, cleaned)]
        if news
        else []
    )


def seek(state: GroupState, member: str, generation: int, offsets: Mapping[int, int]) -> list[Entry]:
    """Go on elsewhere in partitions a member owns, backward or forward."""
    check_owned(state, member, generation, offsets)
    return [{"kind": "sought", "member": member, "offsets": _named(offsets), "unread": True}] if offsets else []


def reset(state: GroupState, offsets: Mapping[int, int], dead: Collection[str] = ()) -> list[Entry]:
    """Let a group without living members go on elsewhere."""
    living = [member for member in state.members if member not in dead]
    if living:
        raise Conflict(
            f"the group has {len(living)} living {'member' if len(living) == 1 else 'members'}",
            detail=f"Members: {', '.join(sorted(living))}. They would go on from where they are and undo the reset.",
            hint="Stop them first, or seek in each of them.",
        )
    entries = evict(state, dead)
    if offsets:
        entries.append({"kind": "sought", "member": None, "offsets": _named(offsets), "unread": True})
    return entries


def hold_pending(
    state: GroupState,
    member: str,
    generation: int,
    transaction: str,
    offsets: Mapping[int, int],
    cleaned: Mapping[int, int] = MappingProxyType({}),
) -> list[Entry]:
    """Record offsets that count once the transaction is committed."""
    check_owned(state, member, generation, offsets)
    if not offsets:
        return []
    entry = {"kind": "pending", "transaction": transaction, "member": member, "offsets": _named(offsets)}
    return [_with_cleaned(entry, state, cleaned)]


def settle(state: GroupState, transaction: str, outcome: str) -> list[Entry]:
    """Say how a transaction ended. Nothing happens if that is known, or it held no offsets here."""
    if transaction not in state.pending:
        return []
    return [{"kind": "settled", "transaction": transaction, "outcome": outcome}]


def check_owned(state: GroupState, member: str, generation: int, partitions: Iterable[int]) -> None:
    """Refuse a member that is out, and partitions that are not, or no longer, its own."""
    if member not in state.members:
        raise Fenced(
            f'member "{member}" is no longer in the group',
            detail="It left, or the others took it for dead: its process had ended, or it had not beaten for longer "
            "than its session. Its partitions have gone to others.",
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
            detail=f"It owns: {owned}. The group is at generation {state.generation}, the member knew {generation}.",
            hint=REJOIN,
        )


def _without(state: GroupState, gone: list[str], cause: str) -> list[Entry]:
    living = [member for member in state.members if member not in gone]
    return [{"kind": "left", "members": gone, "cause": cause}, _assigned(state, living, state.partitions)]


def _assigned(state: GroupState, members: list[str], partitions: int) -> Entry:
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
    """With how far partitions were compacted that the group had not read before."""
    first = {p: cleaned[p] for p in map(int, entry["offsets"]) if state.cleaned.get(p) == UNREAD and p in cleaned}
    return {**entry, "cleaned": _named(first)} if first else entry


def _named(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}
