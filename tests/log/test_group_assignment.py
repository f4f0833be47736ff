"""The sticky assignment against trying every assignment there is."""

from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from mainstem.log.groups.group_state import assign

NAMES = ["a", "b", "c", "d"]

members_strategy = st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=4)
some_owners = st.dictionaries(st.integers(0, 5), st.sampled_from([*NAMES, "gone"]), max_size=6)


def even(assignment: tuple[str, ...], members: list[str]) -> bool:
    loads = [assignment.count(member) for member in members]
    return max(loads) - min(loads) <= 1


def moved(assignment: tuple[str, ...], members: list[str], owners: dict[int, str]) -> int:
    return sum(owners.get(p) in members and owners[p] != member for p, member in enumerate(assignment))


@given(st.integers(0, 6), members_strategy, some_owners, some_owners)
def test_even_and_no_move_too_many(
    partitions: int, members: list[str], owners: dict[int, str], next_owners: dict[int, str]
) -> None:
    owners = {partition: owner for partition, owner in owners.items() if partition < partitions}

    found = assign(partitions, members, owners, next_owners)

    assert list(found) == list(range(partitions))
    assignment = tuple(found.values())
    every = itertools.product(members, repeat=partitions)
    fewest = min(moved(each, members, owners) for each in every if even(each, members))
    assert even(assignment, members)
    assert moved(assignment, members, owners) == fewest


@example(5, ["b", "a", "c"], {0: "a", 1: "c", 2: "c", 3: "d", 4: "c"})
@given(st.integers(0, 20), members_strategy, some_owners)
def test_asked_again_while_a_hand_over_is_under_way_it_says_the_same(
    partitions: int, members: list[str], owners: dict[int, str]
) -> None:
    owners = {partition: owner for partition, owner in owners.items() if partition < partitions}
    target = assign(partitions, members, owners, {})
    # Those of the dead move at once; those of the living are waited for.
    still = {p: owners[p] if owners.get(p) in members else member for p, member in target.items()}
    waiting = {p: member for p, member in target.items() if still[p] != member}

    assert assign(partitions, members, still, waiting) == target


def test_a_new_member_takes_only_its_share() -> None:
    owners = {0: "a", 1: "a", 2: "b", 3: "b", 4: "a", 5: "b"}

    assert assign(6, ["a", "b", "c"], owners, {}) == {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}


def test_what_is_promised_already_is_what_moves() -> None:
    assert assign(4, ["a", "b"], {0: "a", 1: "a", 2: "a", 3: "b"}, {0: "b"}) == {0: "b", 1: "a", 2: "a", 3: "b"}


def test_nobody_there() -> None:
    assert assign(3, [], {0: "a"}, {}) == {}


def test_more_members_than_partitions() -> None:
    assert assign(1, ["a", "b", "c"], {0: "b"}, {}) == {0: "b"}
