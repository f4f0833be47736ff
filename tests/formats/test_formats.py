"""Homes written by every version (L16): this one reads the same rows from them, and goes on in them."""

import json
import shutil
from pathlib import Path

import pytest

import mainstem
from mainstem.errors import AppendConflict, NewerFormat
from mainstem.log.embedded.write import block
from tests.formats.home_facts import facts

VERSIONS = sorted(path for path in Path(__file__).parent.glob("v*") if path.is_dir())


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def version(request):
    return request.param


@pytest.fixture
def home(version, tmp_path):
    """A copy: opening a home may change it."""
    return shutil.copytree(version / "home", tmp_path / "home")


def test_the_same_rows_with_the_same_hash(version, home):
    expected = json.loads((version / "expected.json").read_text())
    written_by = expected.pop("version")
    with mainstem.open(home) as stem:
        found = facts(stem)

    assert found == expected, f"written by {written_by}"


def test_every_byte_is_sound(home):
    with mainstem.open(home) as stem:
        problems = {name: stem.topic(name).verify().problems for name in stem.topics()}

    assert problems == {name: [] for name in problems}


def test_it_goes_on(home):
    with mainstem.open(home) as stem:
        booked = stem.topic("booked")
        before = booked.to_arrow().column("order_id").to_pylist()
        with stem.transaction() as transaction:
            transaction.append(booked, [{"order_id": "new"}])
        booked.seal()

        assert booked.to_arrow().column("order_id").to_pylist() == [*before, "new"]
        assert [message.deliveries for message in stem.topic("orders").queue("emails").take(2)] == [2, 2]


def test_its_producer_goes_on(home):
    """Of version 1 every sequence up to the last one counts as there, also one that was skipped."""
    with mainstem.open(home) as stem:
        payments = stem.topic("payments")
        before = len(payments.to_arrow())
        producer = stem.producer("checkout")
        for sequence in (0, 3, 9, 2):
            assert not producer.append(payments, [{"order_id": f"p-{sequence}"}], sequence=sequence).appended
        assert producer.append(payments, [{"order_id": "p-12"}], sequence=12).appended
        with pytest.raises(AppendConflict, match="out of order"):
            producer.append(payments, [{"order_id": "p-11"}], sequence=11)
        for sequence in (3, 9, 12):
            assert not producer.append(payments, [{"order_id": f"p-{sequence}"}], sequence=sequence).appended
        assert (producer.last_sequence(payments), len(payments.to_arrow())) == (12, before + 1)


def test_what_was_incomplete_is_completed(home):
    with mainstem.open(home) as stem:
        if "deliveries" not in stem.topics():
            return  # version 1 does not tell which appends are incomplete
        deliveries = stem.topic("deliveries")
        producer = stem.producer("loader")
        assert (producer.last_sequence(deliveries), producer.incomplete_sequence(deliveries)) == (10, 20)
        deliveries.backend.alter({"partitions": 5})
        producer.append(deliveries, [{"order_id": f"d-{number}"} for number in range(10, 20)], sequence=20)
        found = sorted(deliveries.to_arrow().column("order_id").to_pylist())
        assert found == sorted(f"d-{number}" for number in range(20))


def test_a_block_of_a_newer_version_is_refused_and_not_taken_for_damage(tmp_path, monkeypatch):
    with mainstem.open(tmp_path, upkeep="manual") as stem:
        orders = stem.create_topic("orders", schema="n bigint")
        orders.append([{"n": 1}])
        with monkeypatch.context() as newer:
            newer.setattr(block, "VERSION", block.VERSION + 1)
            orders.append([{"n": 2}])
    with mainstem.open(tmp_path, upkeep="manual") as stem:
        with pytest.raises(NewerFormat, match=r"the block at byte .* was written by a newer Mainstem") as refused:
            stem.topic("orders").to_arrow()
        assert (refused.value.found_version, refused.value.known_version) == (block.VERSION + 1, block.VERSION)
        assert "newer Mainstem" in stem.topic("orders").verify().problems[0].what


def test_the_files_are_small(version):
    assert sum(path.stat().st_size for path in version.rglob("*") if path.is_file()) < 200_000
