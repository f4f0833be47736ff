"""What is known of a view as a whole: its key, its versions, which one is live, and which changes each one served."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from mainstem.errors import CorruptView, NewerFormat, ViewNotFound, did_you_mean

__all__ = ["FORMAT", "Facts", "Segment", "VersionFacts", "no_such_version", "no_such_view"]

FORMAT = 1


@dataclass(frozen=True)
class VersionFacts:
    """A version, as the view names it."""

    number: int
    schema: str
    created_at: int


@dataclass(frozen=True)
class Segment:
    """From when on a version was the live one: it served the changes after this position."""

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

    def encode(self) -> bytes:
        """As it is written down."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes, path: str, view: str) -> Facts:
        """What is written there; `CorruptView` if it cannot be read."""
        try:
            content = json.loads(data)
            if (version := content.pop("format")) > FORMAT:
                raise NewerFormat(
                    f'view "{view}" was written by a newer Mainstem',
                    detail=f"{path} has format {version}; this Mainstem knows up to {FORMAT}.",
                    hint="Install the newer Mainstem.",
                    found_version=version,
                    known_version=FORMAT,
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
                hint=f"Drop the view and run its flow: it is made again from the log. (mainstem view drop {view})",
                path=path,
                view=view,
            ) from error

    def numbers(self) -> list[int]:
        """The versions that are there."""
        return [version.number for version in self.versions]


def no_such_view(view: str, names: Sequence[str], place: str) -> ViewNotFound:
    """There is none of that name in this place; which ones there are."""
    return ViewNotFound(
        f'view "{view}" does not exist',
        detail=f"{place} has {len(names)} views: {', '.join(names)}." if names else f"{place} has no views yet.",
        hint=did_you_mean(view, names)
        or "A view is made by the flow that writes into it: run the program with that flow first.",
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
