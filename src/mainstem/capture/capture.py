"""Capture: the changes of a database's tables, as topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainstem.arguments import call_with_stem, check_choice, checked_calls, type_name
from mainstem.errors import Invalid
from mainstem.names import check_name

if TYPE_CHECKING:
    from mainstem.capture.source import Source
    from mainstem.stem import Mainstem

__all__ = ["Capture", "Captures", "SNAPSHOTS", "captures_of"]

SNAPSHOTS = ("initial", "none", "when needed", "again")
LOST = ("stop", "snapshot")

# A function from a mainstem to captures.
Captures = Callable[["Mainstem"], "Iterable[Capture] | Capture"]


@checked_calls
@dataclass(frozen=True)
class Capture:
    """Tables of a database whose changes are captured, each into a topic `<name>.<table>`.

    `snapshot`: whether the rows that exist are read first: "initial" (once), "none", "when needed" (once, and again when
    changes were lost), "again" (at every start). `when_lost`: what happens when the source no longer has the changes since
    the last run: "stop" with `PositionLost`, or "snapshot": the tables are read again.

    >>> from mainstem.capture import postgres
    >>> Capture("shop", postgres("postgresql://reader@db/shop", tables=["orders"])).topics
    {'orders': 'shop.orders'}
    """

    name: str
    source: Source
    snapshot: str = "initial"
    when_lost: str = "stop"

    def __post_init__(self) -> None:
        check_name(self.name, "capture")
        if not hasattr(self.source, "setup_sql"):
            raise Invalid(
                f'the source of capture "{self.name}" is {type_name(self.source)}',
                detail="A source is a database with its tables.",
                hint='For example: postgres("postgresql://reader@db/shop", tables=["orders"]).',
            )
        check_choice(self.snapshot, "snapshot", SNAPSHOTS)
        check_choice(self.when_lost, "when_lost", LOST)
        topics = [one.topic(self.name) for one in self.source.tables]
        if twice := next((one for one in topics if topics.count(one) > 1), None):
            raise Invalid(
                f'two tables of capture "{self.name}" have the topic "{twice}"',
                detail="Each table needs a topic of its own.",
                hint="Give one of them another name: CapturedTable(..., into=...).",
            )

    @property
    def topics(self) -> dict[str, str]:
        """The topic of each table."""
        return {one.name: one.topic(self.name) for one in self.source.tables}

    def own_topic(self, kind: str) -> str:
        """The name of one of its own topics: "transactions", "state", "rejected"."""
        return f"mainstem.capture.{self.name}.{kind}"

    @property
    def snapshot_when_lost(self) -> bool:
        """Whether tables are read again when changes were lost."""
        return self.when_lost == "snapshot" or self.snapshot == "when needed"

    def to_json(self) -> dict[str, Any]:
        """For another process of the same program."""
        return {
            "name": self.name,
            "source": self.source.to_json(),
            "snapshot": self.snapshot,
            "when_lost": self.when_lost,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Capture:
        """From JSON."""
        return cls(value["name"], _source_of(value["source"]), value["snapshot"], value["when_lost"])


def _source_of(value: Mapping[str, Any]) -> Source:
    if value["kind"] == "sqlite":
        from mainstem.capture.sqlite_source import SqliteSource

        return SqliteSource.from_json(value)
    from mainstem.capture.postgresql.postgres_source import PostgresSource

    return PostgresSource.from_json(value)


def captures_of(stem: Mainstem, captures: Captures) -> list[Capture]:
    """The captures of a program; each name once."""
    found = call_with_stem(captures, stem, "captures")
    if not isinstance(found, Capture | Iterable):
        raise Invalid(
            f"captures returns {type_name(found)}, not captures",
            detail="`captures` must be a function that yields captures or returns a list of them.",
            hint='For example: yield Capture("shop", postgres(url, tables=["orders"])).',
        )
    made = [found] if isinstance(found, Capture) else list(found)
    for one in made:
        if not isinstance(one, Capture):
            raise Invalid(
                f"captures yields {type_name(one)}",
                detail="It yields captures, as flows yields flows.",
                hint='For example: yield Capture("shop", postgres(url, tables=["orders"])).',
            )
    names = [one.name for one in made]
    if twice := next((one for one in names if names.count(one) > 1), None):
        raise Invalid(
            f'two captures have the name "{twice}"',
            detail=f"The captures are: {', '.join(names)}.",
            hint="Give each a name of its own.",
        )
    by_topic: dict[str, Capture] = {}
    for one in made:
        for table, topic in one.topics.items():
            if (other := by_topic.setdefault(topic, one)) is not one:
                raise Invalid(
                    f'captures "{other.name}" and "{one.name}" have the topic "{topic}"',
                    detail="A topic has the rows of one table, since their keys may be equal. Nothing was started.",
                    hint=f"Give one of the tables another topic: CapturedTable({table!r}, into=...).",
                )
    return made
