"""Names: 10,000 hostile ones, and not one that leads out of its directory or looks like another."""

import random
import string
from pathlib import PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.errors import InvalidName
from mainstem.names import NAME_BYTES_MAX, check_name, check_own_name

GOOD = string.ascii_letters + string.digits + "_"
# Each looks like one of the letters a, e, o, p, c, x, A, B, l, or like the characters . / - in some font.
LOOK_ALIKES = "аеорсхΑΒІ․⁄∕／．－‐ａ１"
CONTROLS = [chr(n) for n in (*range(32), 127, *range(128, 160))] + list("\u200b\u200e\u202e\u2028\ufeff")
DEVICES = ["con", "PRN", "Aux", "nul", "COM1", "lpt9"]


def good(chance: random.Random) -> str:
    return "".join(chance.choices(GOOD, k=chance.randint(1, 12)))


def with_inside(chance: random.Random, intruder: str) -> str:
    name = good(chance)
    position = chance.randint(0, len(name))
    return name[:position] + intruder + name[position:]


FAMILIES = {
    "path": lambda chance: with_inside(
        chance, chance.choice(["../", "/", "\\", "..\\", "/../", "%2e%2e/", "~/", "//"])
    ),
    "dots": lambda chance: chance.choice(
        [".", "..", "...", with_inside(chance, ".."), "." + good(chance), good(chance) + "."]
    ),
    "option": lambda chance: "-" + good(chance),
    "control": lambda chance: with_inside(chance, chance.choice(CONTROLS)),
    "look-alike": lambda chance: with_inside(chance, chance.choice(LOOK_ALIKES)),
    "over-long": lambda chance: "".join(chance.choices(GOOD, k=chance.randint(NAME_BYTES_MAX + 1, 5000))),
    "device": lambda chance: chance.choice(DEVICES) + chance.choice(["", ".txt", "." + good(chance)]),
    "shell": lambda chance: with_inside(chance, chance.choice([*" '\"`$;&|<>(){}[]*?!#:,=@^\n"])),
    "own": lambda chance: chance.choice(["mainstem.", "Mainstem.", "MAINSTEM."]) + good(chance),
    "surrogate": lambda chance: with_inside(chance, chr(chance.randint(0xD800, 0xDFFF))),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_thousand_hostile_names_of_a_family_are_all_refused(family):
    chance = random.Random(f"names {family}")
    names = [FAMILIES[family](chance) for _ in range(1000)]

    assert [name for name in names if accepted(name)] == []


def accepted(name: str) -> bool:
    refused = refusal(name)
    # What a terminal shows of it can do no harm there.
    assert refused is None or (
        refused.summary.isprintable() and refused.detail and refused.hint and refused.name == name
    )
    return refused is None


def refusal(name: str) -> InvalidName | None:
    try:
        check_name(name)
    except InvalidName as refused:
        return refused
    return None


@given(st.text(max_size=8) | st.text(alphabet=GOOD + "./\\-~ \0", max_size=8))
def test_whatever_is_accepted_is_one_plain_file_name(name):
    if accepted(name):
        assert PurePosixPath("topics", name).parts == ("topics", name)
        assert PureWindowsPath("topics", name).parts == ("topics", name)
        assert name.isascii()


@given(st.text(alphabet=GOOD, min_size=1, max_size=20).filter(lambda name: name.lower() not in DEVICES))
def test_ordinary_names_are_accepted_as_they_are(name):
    assert check_name(f"x{name}") == f"x{name}"


@pytest.mark.parametrize(
    "name", ["orders", "eu.payments-2", "_hidden", "7", "a" * NAME_BYTES_MAX, "console", "mainstem"]
)
def test_what_is_a_name(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "complaint", "hint"),
    [
        ("../etc", 'topic name "../etc" holds "/"', 'Perhaps "etc".'),
        ("a b", 'topic name "a b" holds a space', 'Perhaps "a_b".'),
        ("naïve", 'topic name "naïve" holds "ï" (U+00EF LATIN SMALL LETTER I WITH DIAERESIS)', 'Perhaps "naive".'),
        ("a\0b", r'topic name "a\x00b" holds the character U+0000', 'For example: "orders", '),
        ("оrders", 'topic name "оrders" holds "о" (U+043E CYRILLIC SMALL LETTER O)', 'For example: "orders", '),
        ("nul.txt", 'topic name "nul.txt" is the device "nul" to Windows', 'For example: "orders", '),
        ("a..b", 'topic name "a..b" holds ".."', 'Perhaps "a.b".'),
        (".a", 'topic name ".a" begins with "."', 'Perhaps "a".'),
        ("", 'topic name "" is empty', 'For example: "orders", '),
        ("mainstem.x", 'topic name "mainstem.x" begins with "mainstem."', 'For example: "orders", '),
    ],
)
def test_a_refused_name_is_told_why_and_what_would_do(name, complaint, hint):
    with pytest.raises(InvalidName) as refused:
        check_name(name)

    assert refused.value.summary == complaint
    assert refused.value.hint.startswith(hint)


def test_the_error_says_what_was_to_be_named():
    with pytest.raises(InvalidName, match='queue name "a/b" holds "/"'):
        check_name("a/b", "queue")


def test_what_is_not_text_is_no_name():
    with pytest.raises(InvalidName, match="group name 5 is int, not text"):
        check_name(5, "group")


def test_mainstem_may_use_the_names_it_keeps_for_itself():
    assert check_own_name("mainstem.metrics") == "mainstem.metrics"
    with pytest.raises(InvalidName):
        check_own_name("mainstem./metrics")
