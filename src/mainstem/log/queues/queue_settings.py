"""QueueSettings: how a queue treats its messages."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from typing import Any

from mainstem.arguments import check_choice, whole_number
from mainstem.durations import Duration, parse_duration, show_duration
from mainstem.errors import Invalid
from mainstem.log.backoff import Backoff

__all__ = ["BY_KEY", "QueueSettings"]

BY_KEY = "by key"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of a queue; they do not change until it is deleted.

    lease           how long a consumer may hold a message before it is delivered to another
    deliveries_max  the number of deliveries before a message is rejected; None: no limit
    retry           how long a released message waits; None: not at all
    ordered         "by key": one message of a key at a time, in the order of the topic; "": no order
    where           a SQL condition; rows for which it is not true are skipped
    expires         a message not taken for that long after its append is rejected; None: never
    length_max      if more messages wait, the oldest are rejected; None: no limit
    """

    lease: timedelta = timedelta(seconds=30)
    deliveries_max: int | None = None
    retry: Backoff | None = None
    ordered: str = ""
    where: str | None = None
    expires: timedelta | None = None
    length_max: int | None = None

    @classmethod
    def from_options(cls, **given: Any) -> QueueSettings | None:
        """The settings a user gave, checked; None if none at all were given.

        >>> QueueSettings.from_options(lease="1 minute", deliveries_max=5).lease
        datetime.timedelta(seconds=60)
        """
        wanted = {name: value for name, value in given.items() if value is not None}
        if not wanted:
            return None
        for setting in ("deliveries_max", "length_max"):
            whole_number(wanted.get(setting, 1), setting, least=1, hint=f"For example: {setting}=5.")
        if (ordered := wanted.get("ordered", "")) != "":
            check_choice(ordered, "ordered", (BY_KEY,), detail=f'A queue is ordered "{BY_KEY}" or not at all.')
        if not isinstance(retry := wanted.get("retry"), Backoff | None):
            raise Invalid(
                f'retry "{retry}" is not a Backoff',
                detail=f"It is of type {type(retry).__name__}.",
                hint='For example: retry=Backoff("1 second", max="1 minute").',
            )
        if "expires" in wanted:
            wanted["expires"] = parse_duration(wanted["expires"], setting="expires")
        return cls(**wanted | {"lease": cls.lease_of(wanted.get("lease"))})

    @staticmethod
    def lease_of(given: Duration | None) -> timedelta:
        """The length of a lease, which must be greater than zero."""
        lease = timedelta(seconds=30) if given is None else parse_duration(given, setting="lease")
        if not lease:
            raise Invalid(
                "lease must be longer than zero",
                detail="The message would be delivered to another consumer at once.",
                hint='Give the time the work may take, for instance lease="30 seconds".',
            )
        return lease

    def differences(self, other: QueueSettings) -> list[str]:
        """The differences from `other`, as text.

        >>> QueueSettings(deliveries_max=5).differences(QueueSettings())
        ['deliveries_max is 5, asked for none']
        """
        return [
            f"{field.name} is {_show(here)}, asked for {_show(there)}"
            for field in fields(self)
            if (here := getattr(self, field.name)) != (there := getattr(other, field.name))
        ]

    def to_json(self) -> dict[str, Any]:
        """As JSON; durations as text."""
        return {
            **asdict(self),
            "lease": show_duration(self.lease),
            "retry": None if self.retry is None else self.retry.to_json(),
            "expires": None if self.expires is None else show_duration(self.expires),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> QueueSettings:
        """What `to_json` wrote."""
        found = {field.name: value[field.name] for field in fields(cls)}
        found["lease"] = parse_duration(found["lease"])
        if found["retry"] is not None:
            found["retry"] = Backoff.from_json(found["retry"])
        if found["expires"] is not None:
            found["expires"] = parse_duration(found["expires"])
        return cls(**found)


def _show(value: object) -> str:
    if isinstance(value, timedelta):
        return f'"{show_duration(value)}"'
    if value is None or value == "":
        return "none"
    return str(value) if isinstance(value, int) else f'"{value}"'
