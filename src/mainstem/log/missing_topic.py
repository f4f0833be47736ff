"""What is said when a log has no topic of a name, in one form for every log."""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.errors import TopicNotFound, did_you_mean

__all__ = ["no_such_topic"]


def no_such_topic(name: str, log: str, names: Sequence[str]) -> TopicNotFound:
    """The error; `log` is what the log is called, `names` are the topics that it has."""
    count = "1 topic" if len(names) == 1 else f"{len(names)} topics"
    listed = f"{count}: {', '.join(names)}" if names else "no topics yet"
    return TopicNotFound(
        f'topic "{name}" does not exist',
        detail=f"{log[0].upper()}{log[1:]} has {listed}.",
        hint=f'{did_you_mean(name, names)} Create a topic with: mainstem topic create {name} --schema "..."'.strip(),
        topic=name,
    )
