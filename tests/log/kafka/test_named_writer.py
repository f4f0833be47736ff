"""What a named producer on Kafka knows of its sequences, without a broker."""

import pytest

from mainstem.errors import AppendConflict
from mainstem.log.kafka.named_writer import NOTHING, known_after, number_of


def test_what_an_older_release_wrote_says_that_all_up_to_the_last_are_there():
    old = {"sequence": 7, "offsets": {"0": [40, 42]}, "at": 5}
    assert [number_of(old, sequence, "orders", "p") for sequence in (0, 7, 9, None)] == [
        (0, True), (7, True), (9, False), (8, False),
    ]  # fmt: skip
    new = known_after(old, 9, {1: (3, 4)}, 6)
    assert new == {"sequence": 9, "offsets": {"1": [3, 4]}, "at": 6, "runs": [[0, 7], [9, 9]]}
    with pytest.raises(AppendConflict, match='sequence 8 of producer "p" is out of order'):
        number_of(new, 8, "orders", "p")


def test_nothing_is_known_of_the_first():
    assert number_of(NOTHING, None, "orders", "p") == (0, False)
    assert known_after(NOTHING, 0, {}, 1)["runs"] == [[0, 0]]
