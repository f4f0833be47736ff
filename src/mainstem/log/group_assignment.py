"""Which member of a group reads which partition.

The assignment is sticky: it starts from who has what now and moves no more partitions than needed to even out.

With n partitions and m members, n % m members read n // m + 1 partitions and the others n // m. The larger shares go to
those who hold most now; everyone keeps what fits into their share, and only the rest moves. No assignment with loads
that differ by at most one keeps more: a member keeps min(held, share), and the larger shares stand where they count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["assign"]


def assign(
    partitions: int, members: Sequence[str], owners: Mapping[int, str], next_owners: Mapping[int, str]
) -> dict[int, str]:
    """Who is to read each partition, given who does now (`owners`) and which are being handed over already.

    `members` are the living ones in the order they joined; owners who are not among them have lost their partitions.
    Of equally good answers this gives one that goes on with the hand-overs under way, and the same in every process.

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
    # Python's sort is stable: of members who hold as much, the one that joined first gets the larger share.
    by_load = sorted(members, key=lambda member: -len(held[member]))
    room = {member: small + (rank < larger_shares) for rank, member in enumerate(by_load)}

    target: dict[int, str] = {}
    for member in members:
        # Kept first: what is not promised to somebody else already; of those, the lowest.
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
