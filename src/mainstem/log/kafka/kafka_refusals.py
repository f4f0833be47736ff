"""What a log on Kafka refuses, in one form. What it cannot do is listed in docs/guides/kafka.md."""

from __future__ import annotations

from mainstem.errors import Invalid

__all__ = ["not_on_kafka"]


def not_on_kafka(what: str, why: str) -> Invalid:
    """The error for a use of what only the embedded log can do."""
    return Invalid(
        f"a log on Kafka cannot {what}",
        detail=why,
        hint="Leave it out, or keep the topic in an embedded log; docs/guides/kafka.md lists the differences.",
    )
