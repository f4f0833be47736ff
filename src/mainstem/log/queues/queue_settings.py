"""QueueSettings: how a queue treats its messages."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from typing import Any

from mainstem.durations import Duration, parse_duration, show_duration
from mainstem.errors import Invalid, did_you_mean
from mainstem.log.backoff import Backoff

__all__ = ["BY_KEY", "QueueSettings"]

BY_KEY = "by key"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What a queue was made with; it stays so until the queue is deleted.

    lease           how long a taker may hold a message before others get it
    deliveries_max  how often a message is given out before it is rejected; None: without limit
    retry           how long a released message waits; None: not at all
    ordered         "by key": one message of a key at a time, in the order of the topic; "": as they come
    where           a SQL condition; rows for which it is not true are none of this queue's business
    expires         a message not taken for that long after its append is rejected; None: never
    length_max      more messages waiting than that: the oldest are rejected; None: without limit
    """

    lease: timedelta = timedelta(seconds=30)
    deliveries_max: int | None = None
    retry: Backoff | None = None
    ordered: str = ""
    where: str | None = None
    expires: timedelta | None = None
    length_max: int | None = None

    @classmethod
    def given(
        cls,
        *,
        lease: Duration | None = None,
        deliveries_max: int | None = None,
        retry: Backoff | None = None,
        ordered: str | None = None,
        where: str | None = None,
        expires: Duration | None = None,
        length_max: int | None = None,
    ) -> QueueSettings | None:
        """The settings a user gave, checked; None if none at all were given.

        >>> QueueSettings.given(lease="1 minute", deliveries_max=5).lease
        datetime.timedelta(seconds=60)
        """
        if all(value is None for value in (lease, deliveries_max, retry, ordered, where, expires, length_max)):
            return None
        _check_count(deliveries_max, "deliveries_max")
        _check_count(length_max, "length_max")
        if ordered not in (None, "", BY_KEY):
            raise Invalid(
                f'ordered "{ordered}" is not known',
                detail=f'A queue is ordered "{BY_KEY}" or not at all.',
                hint=did_you_mean(str(ordered), [BY_KEY]) or f'Use ordered="{BY_KEY}", or leave it out.',
            )
        if retry is not None and not isinstance(retry, Backoff):
            raise Invalid(
                f'retry "{retry}" is not a Backoff',
                detail=f"It is of type {type(retry).__name__}.",
                hint='For example: retry=Backoff("1 second", max="1 minute").',
            )
        return cls(
            lease=cls.lease_of(lease),
            deliveries_max=deliveries_max,
            retry=retry,
            ordered=ordered or "",
            where=where,
            expires=None if expires is None else parse_duration(expires, setting="expires"),
            length_max=length_max,
        )

    @staticmethod
    def lease_of(given: Duration | None) -> timedelta:
        """How long a lease is; one of no length would be over before the message is seen."""
        lease = timedelta(seconds=30) if given is None else parse_duration(given, setting="lease")
        if not lease:
            raise Invalid(
                "lease must be longer than zero",
                detail="The message would be delivered to another consumer at once.",
                hint='Give the time the work may take, for instance lease="30 seconds".',
            )
        return lease

    def differences(self, other: QueueSettings) -> list[str]:
        """What `other` wants otherwise, for a person.

        >>> QueueSettings(deliveries_max=5).differences(QueueSettings())
        ['deliveries_max is 5, asked for none']
        """
        return [
            f"{field.name} is {_shown(here)}, asked for {_shown(there)}"
            for field in fields(self)
            if (here := getattr(self, field.name)) != (there := getattr(other, field.name))
        ]

    def to_json(self) -> dict[str, Any]:
        """As it is written down; durations as people write them."""
        return {
            **asdict(self),
            "lease": show_duration(self.lease),
            "retry": None if self.retry is None else self.retry.to_json(),
            "expires": None if self.expires is None else show_duration(self.expires),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> QueueSettings:
        """What `to_json` wrote."""
        return cls(
            lease=parse_duration(value["lease"]),
            deliveries_max=value["deliveries_max"],
            retry=None if value["retry"] is None else Backoff.from_json(value["retry"]),
            ordered=value["ordered"],
            where=value["where"],
            expires=None if value["expires"] is None else parse_duration(value["expires"]),
            length_max=value["length_max"],
        )


def _check_count(value: int | None, setting: str) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Invalid(
            f'{setting} "{value}" is not a count',
            detail="It is a whole number, 1 or more.",
            hint=f"For example: {setting}=5.",
        )


def _shown(value: object) -> str:
    if isinstance(value, timedelta):
        return f'"{show_duration(value)}"'
    if value is None or value == "":
        return "none"
    return str(value) if isinstance(value, int) else f'"{value}"'
