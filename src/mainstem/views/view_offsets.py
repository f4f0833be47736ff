"""The offsets that a view has applied, compared with those that a reader requires."""

from __future__ import annotations

from collections.abc import Mapping

from mainstem.errors import NotYet

__all__ = ["Missing", "missing_of", "not_yet"]

# topic -> partition -> (the applied offset, the required offset)
Missing = dict[str, dict[int, tuple[int, int]]]


def missing_of(wanted: Mapping[str, Mapping[int, int]], applied: Mapping[str, Mapping[int, int]]) -> Missing:
    """The required offsets that are not applied; both are end offsets by topic and partition.

    >>> missing_of({"orders": {0: 5, 1: 3}}, {"orders": {0: 5, 1: 2}})
    {'orders': {1: (2, 3)}}
    """
    missing: Missing = {}
    for topic, ends in wanted.items():
        for partition, end in ends.items():
            if (reached := applied.get(topic, {}).get(partition, 0)) < end:
                missing.setdefault(topic, {})[partition] = (reached, end)
    return missing


def not_yet(view: str, missing: Missing, applied: Mapping[str, Mapping[int, int]]) -> NotYet:
    """The error that lists the missing offsets; a topic without applied offsets is most likely not a source of the view."""
    parts = [
        f"{topic}[{partition}] is applied up to {reached}, required is {end}"
        for topic, partitions in missing.items()
        for partition, (reached, end) in partitions.items()
    ]
    strange = sorted(set(missing) - set(applied))
    if strange and applied:
        parts.append(f"nothing was applied from {', '.join(strange)}, only from {', '.join(sorted(applied))}")
    hint = (
        "Wait longer, or check that its flow runs and reads these topics: mainstem flow list. A token from before the log was "
        "restored from an older copy is never reached."
    )
    if strange and applied:
        hint = (
            "Give the token of an append to a topic that the view is computed from, directly or through other views and "
            "topics. Topics that are read by a pattern pass no tokens on: use that of an append to one of them."
        )
    return NotYet(
        f'view "{view}" has not applied {sum(map(len, missing.values()))} of the required positions',
        detail=f"{'; '.join(parts)}.",
        hint=hint,
        view=view,
        missing=missing,
    )
