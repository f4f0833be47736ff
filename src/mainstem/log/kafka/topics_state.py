"""TopicsState: the topics of a log on Kafka: what Kafka itself does not know of them.

created    name, id, settings, adopted     a topic was made, or taken over from other programs
altered    name, settings
deleted    name
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from mainstem.log.state_ledger import Entry
from mainstem.log.topic_settings import TopicSettings

__all__ = ["TopicEntry", "TopicsState"]


@dataclass(slots=True)
class TopicEntry:
    """One topic. `id` is never used again; `adopted`: other programs write to it, and may write anything."""

    id: str
    settings: TopicSettings
    adopted: bool = False


@dataclass(slots=True)
class TopicsState:
    """All topics, by name."""

    topics: dict[str, TopicEntry] = field(default_factory=dict)

    def apply(self, entry: Entry, at: int) -> None:
        name = entry["name"]
        match entry["kind"]:
            case "created":
                settings = TopicSettings.from_json(entry["settings"])
                self.topics[name] = TopicEntry(entry["id"], settings, entry.get("adopted", False))
            case "altered":
                self.topics[name].settings = TopicSettings.from_json(entry["settings"])
            case "deleted":
                self.topics.pop(name, None)

    def snapshot(self) -> dict[str, Any]:
        return {name: [it.id, it.settings.to_json(), it.adopted] for name, it in self.topics.items()}

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        return cls(
            {
                name: TopicEntry(topic_id, TopicSettings.from_json(settings), adopted)
                for name, (topic_id, settings, adopted) in snapshot.items()
            }
        )
