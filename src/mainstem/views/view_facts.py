"""The facts of a view as a whole: its key, its versions, which one is live, and which changes each one served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import pyarrow as pa

from mainstem.durable_files import decode_checked, encode_checked
from mainstem.errors import Conflict, CorruptView, NewerFormat, ViewNotFound, did_you_mean
from mainstem.log.rows.schema_ddl import schema_to_ddl

__all__ = [
    "FACTS_FORMAT",
    "FORMAT",
    "Facts",
    "Segment",
    "VersionFacts",
    "check_not_live",
    "check_version",
    "newer_format",
    "no_such_view",
]

# The format of a version's file or tables.
FORMAT = 1
# The format of view.json. 2: the retention of history, which an older Mainstem would trim, and a checksum.
FACTS_FORMAT = 2


@dataclass(frozen=True)
class VersionFacts:
    """The facts of one version."""

    number: int
    schema: str
    created_at: int


@dataclass(frozen=True)
class Segment:
    """When a version became the live one: it serves the changes after this position."""

    version: int
    after: int


@dataclass(frozen=True)
class Facts:
    """The content of view.json, or of the view's row in the database."""

    id: str
    key: tuple[str, ...]
    live: int
    versions: tuple[VersionFacts, ...]
    history: tuple[Segment, ...]
    changes_max: int
    changes_age_us: int
    # The retention of its history; 0: it keeps none.
    history_age_us: int = 0

    def encode(self) -> bytes:
        """The content of view.json."""
        content = asdict(self)
        if not self.history_age_us:
            del content["history_age_us"]
        return encode_checked({"format": FACTS_FORMAT, **content}, indent=2)

    @classmethod
    def decode(cls, data: bytes, path: str, view: str) -> Facts:
        """Reads the content of view.json; raises `CorruptView` if it cannot."""
        try:
            content = decode_checked(data, since=2, known=FACTS_FORMAT)
            if (version := content.pop("format")) > FACTS_FORMAT:
                raise newer_format(view, path, version, FACTS_FORMAT)
            content["key"] = tuple(content["key"])
            content["versions"] = tuple(VersionFacts(**version) for version in content["versions"])
            content["history"] = tuple(Segment(**segment) for segment in content["history"])
            return cls(**content)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, NewerFormat):
                raise
            raise CorruptView(
                f'the description of view "{view}" cannot be read',
                detail=f"{path} should be JSON with key, versions and history: {error}.",
                hint=f"Drop the view and run its flow: it is rebuilt from the log. (mainstem view drop {view})",
                path=path,
                view=view,
            ) from error

    def with_retention(self, changes_max: int | None, changes_age_us: int | None, history_age_us: int | None) -> Facts:
        """The facts with these settings; None leaves a setting unchanged."""
        return replace(
            self,
            changes_max=self.changes_max if changes_max is None else changes_max,
            changes_age_us=self.changes_age_us if changes_age_us is None else changes_age_us,
            history_age_us=self.history_age_us if history_age_us is None else history_age_us,
        )

    def numbers(self) -> list[int]:
        """The numbers of the existing versions."""
        return [version.number for version in self.versions]

    def last_served(self, version: int) -> int:
        """The last position that a version served before another one became live; -1 if there is none."""
        ends = (following.after for segment, following in pairwise(self.history) if segment.version == version)
        return max(ends, default=-1)

    def with_version(self, number: int, schema: pa.Schema, created_at: int) -> Facts:
        """With one more version, which is not live."""
        return replace(self, versions=(*self.versions, VersionFacts(number, schema_to_ddl(schema), created_at)))

    def without_version(self, number: int) -> Facts:
        """Without a version that is not live."""
        left = tuple(version for version in self.versions if version.number != number)
        # A history must have no gaps: it now begins after the last part of this version.
        served = [index for index, segment in enumerate(self.history) if segment.version == number]
        return replace(self, versions=left, history=self.history[max(served, default=-1) + 1 :])

    def with_live(self, number: int, position: int, *, compatible: bool) -> Facts:
        """With this version as the live one, for the changes after a position; `compatible`: earlier changes stay readable."""
        segment = Segment(number, position)
        return replace(self, live=number, history=(*self.history, segment) if compatible else (segment,))


def newer_format(view: str, path: str, found: int, known: int) -> NewerFormat:
    """The error for a file of the view in a newer format."""
    return NewerFormat(
        f'view "{view}" was written by a newer Mainstem',
        detail=f"{path} has format {found}; this Mainstem reads formats up to {known}.",
        hint="Install the newer Mainstem.",
        found_version=found,
        known_version=known,
    )


def no_such_view(view: str, names: Sequence[str], location: str) -> ViewNotFound:
    """The error for a missing view; it lists the existing ones."""
    return ViewNotFound(
        f'view "{view}" does not exist',
        detail=f"{location} has these views: {', '.join(names)}." if names else f"{location} has no views yet.",
        hint=did_you_mean(view, names)
        or "A view is created by the flow that writes into it: run the program with that flow first.",
        view=view,
    )


def check_version(view: str, facts: Facts, version: int) -> None:
    """Raise if the view has no version of that number; the error lists those it has."""
    if version not in facts.numbers():
        raise ViewNotFound(
            f'view "{view}" has no version {version}',
            detail=f"It has: {', '.join(map(str, facts.numbers()))}; the live one is {facts.live}.",
            hint="Name one of these.",
            view=view,
        )


def check_not_live(view: str, facts: Facts, version: int) -> None:
    """Raise if the version is the live one."""
    if version == facts.live:
        raise Conflict(
            f'version {version} of view "{view}" is the live one',
            detail=f"It has the versions {', '.join(map(str, facts.numbers()))}.",
            hint="Switch to another version first, or drop the whole view.",
        )
