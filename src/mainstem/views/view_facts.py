"""The facts of a view as a whole: its key, its versions, which one is live, and which changes each one served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from mainstem.durable_files import decode_checked, encode_checked
from mainstem.errors import CorruptView, NewerFormat, ViewNotFound, did_you_mean

__all__ = ["FACTS_FORMAT", "FORMAT", "Facts", "Segment", "VersionFacts", "no_such_version", "no_such_view"]

# Of a version's file or tables.
FORMAT = 1
# Of view.json. 2: how long history is kept, which who does not know of it would trim; and a checksum.
FACTS_FORMAT = 2


@dataclass(frozen=True)
class VersionFacts:
    """A version, as the view names it."""

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
    """What a view says of itself, in view.json or in its row of the database."""

    id: str
    key: tuple[str, ...]
    live: int
    versions: tuple[VersionFacts, ...]
    history: tuple[Segment, ...]
    changes_max: int
    changes_age_us: int
    # How long it keeps what it was; 0: it does not.
    history_age_us: int = 0

    def encode(self) -> bytes:
        """As it is written down."""
        content = asdict(self)
        if not self.history_age_us:
            del content["history_age_us"]
        return encode_checked({"format": FACTS_FORMAT, **content}, indent=2)

    @classmethod
    def decode(cls, data: bytes, path: str, view: str) -> Facts:
        """What is written there; `CorruptView` if it cannot be read."""
        try:
            content = decode_checked(data, since=2, known=FACTS_FORMAT)
            if (version := content.pop("format")) > FACTS_FORMAT:
                raise NewerFormat(
                    f'view "{view}" was written by a newer Mainstem',
                    detail=f"{path} has format {version}; this Mainstem reads formats up to {FACTS_FORMAT}.",
                    hint="Install the newer Mainstem.",
                    found_version=version,
                    known_version=FACTS_FORMAT,
                )
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

    def keeping(self, changes_max: int | None, changes_age_us: int | None, history_age_us: int | None) -> Facts:
        """The same view with these settings; None: as it is."""
        return replace(
            self,
            changes_max=self.changes_max if changes_max is None else changes_max,
            changes_age_us=self.changes_age_us if changes_age_us is None else changes_age_us,
            history_age_us=self.history_age_us if history_age_us is None else history_age_us,
        )

    def numbers(self) -> list[int]:
        """The numbers of the existing versions."""
        return [version.number for version in self.versions]


def no_such_view(view: str, names: Sequence[str], location: str) -> ViewNotFound:
    """There is none of that name in this place; which ones there are."""
    return ViewNotFound(
        f'view "{view}" does not exist',
        detail=f"{location} has {len(names)} views: {', '.join(names)}." if names else f"{location} has no views yet.",
        hint=did_you_mean(view, names)
        or "A view is created by the flow that writes into it: run the program with that flow first.",
        view=view,
    )


def no_such_version(view: str, facts: Facts, version: int) -> ViewNotFound:
    """The view has no version of that number; which ones it has."""
    return ViewNotFound(
        f'view "{view}" has no version {version}',
        detail=f"It has: {', '.join(map(str, facts.numbers()))}; the live one is {facts.live}.",
        hint="Name one of these.",
        view=view,
    )
