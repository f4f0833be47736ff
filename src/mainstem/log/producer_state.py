"""ProducerState: the producers of a home, which run of each is the current one, and what they stated of time.

A machine without files, on a ledger that all processes share:

    opened     name, process              a run begins: the epoch rises, and older runs are fenced
    stated     name, topic, at            nothing earlier than this will come from it any more
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from mainstem.log.processes import Identity
from mainstem.log.state_ledger import Entry


@dataclass(slots=True)
class ProducerEntry:
    """One producer: its number (never used again), the epoch of its current run, and that run's process."""

    id: int
    epoch: int
    process: Identity
    stated: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class ProducersState:
    """All producers, by name."""

    producers: dict[str, ProducerEntry] = field(default_factory=dict)

    def apply(self, entry: Entry, at: int) -> None:
        name = entry["name"]
        match entry["kind"]:
            case "opened":
                known = self.producers.get(name)
                if known is None:
                    self.producers[name] = ProducerEntry(len(self.producers) + 1, 1, entry["process"])
                else:
                    known.epoch += 1
                    known.process = entry["process"]
            case "stated":
                stated = self.producers[name].stated
                stated[entry["topic"]] = max(entry["at"], stated.get(entry["topic"], entry["at"]))

    def snapshot(self) -> dict[str, Any]:
        return {name: [p.id, p.epoch, p.process, p.stated] for name, p in self.producers.items()}

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        return cls({name: ProducerEntry(*fields) for name, fields in snapshot.items()})
