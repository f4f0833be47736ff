"""What `keep=` may say."""

from datetime import timedelta

import pytest

from mainstem.errors import Invalid
from mainstem.log.keep_rule import Keep

DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("forever", Keep()),
        (" Forever ", Keep.forever()),
        ("7 days", Keep(age=7 * DAY)),
        ("10 GiB", Keep(size=10 << 30)),
        ("7 days, 10 GiB", Keep(age="7 days", size="10 GiB")),
        ("10 GiB, 7 days", Keep("7 days", "10 GiB")),
        (DAY, Keep(age="1 day")),
        ("latest per key", Keep.latest_per_key()),
        (Keep.latest_per_key(lag_max="1 hour"), Keep.latest_per_key(lag_max="1 hour")),
    ],
    ids=str,
)
def test_it_is_understood_and_comes_back(given: str | timedelta | Keep, kept: Keep) -> None:
    assert Keep.parse(given) == kept
    assert Keep.from_json(kept.to_json()) == kept


@pytest.mark.parametrize("kept", [Keep(), Keep("7 days"), Keep(size="1 GiB"), Keep("90 seconds", "1 GiB")], ids=str)
def test_what_is_shown_can_be_given(kept: Keep) -> None:
    assert Keep.parse(str(kept)) == kept


def test_a_compacted_one_shows_what_was_asked_for() -> None:
    keep = Keep.latest_per_key(tombstones="2 days", lag_min="1 minute", lag_max="1 hour")
    assert str(keep) == "latest per key (tombstones 2 days, lag_min 1 minute, lag_max 1 hour)"


@pytest.mark.parametrize(
    "given", ["", "always", "7", "7 months", "1 day, 2 hours, 3 days", "1 GB, 2 GB", 7, None, "0 days"]
)
def test_what_is_not_understood_is_refused(given: object) -> None:
    with pytest.raises(Invalid) as caught:
        Keep.parse(given)  # type: ignore[arg-type]
    assert caught.value.detail
    assert caught.value.hint


@pytest.mark.parametrize(
    "values",
    [
        {"age": "1 day", "compacted": True},
        {"size": "1 GiB", "compacted": True},
        {"size": 0},
        {"compacted": True, "lag_min": "2 hours", "lag_max": "1 hour"},
    ],
)
def test_what_contradicts_itself_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(Invalid) as caught:
        Keep(**values)  # type: ignore[arg-type]
    assert caught.value.hint
