"""Homes written by every version (L16): this one reads the same rows from them, and goes on in them."""

import json
import shutil
from pathlib import Path

import pytest

import mainstem
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


def test_the_files_are_small(version):
    assert sum(path.stat().st_size for path in version.rglob("*") if path.is_file()) < 200_000
