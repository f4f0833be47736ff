"""Upkeep's own time: what is dropped because of its age is truly that old, whatever happens to the time of day.

Append times come from the time of day, which anyone may set: a jump of ten years must not empty a topic. The boot clock
nobody can set. So upkeep's now goes on from where it stood at an earlier pass, no faster than the boot clock:

    now = the lower of  the time of day  and  the earlier now + what the boot clock says has passed since

- The time of day falls behind: upkeep's now falls back with it, since records are stamped with it; nothing is dropped
  too early, some later.
- It jumps ahead: upkeep's now goes on at its old pace, and the jump is reported. Somebody may have set a wrong clock
  right, though. A time of day that stays ahead by the same amount for as long as records are kept is believed then:
  whatever was appended before the jump has reached its age by the boot clock alone.
- Over a restart of the machine the boot clock cannot tell how long it was off. The time of day is believed once it has
  stood its ground for an hour; before that only the time since the start counts.

What counts from a pass itself (how long ago a tombstone's segment was cleaned) is moved along whenever now is set
anew, so that it runs by the boot clock alone.

A jump there and back between two passes is not seen. Where it stood is written down in the manifest, and only when
something unexpected was seen: a pass that finds nothing to do writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from mainstem.clock import Clock
from mainstem.log.processes import boot_id

MICROSECOND = timedelta(microseconds=1)

# Clocks are set right by less than this all the time; it is no jump.
TOLERANCE = 1_000_000

# How long the time of day must hold after a restart of the machine: time servers have set it by then.
RESTART_SETTLES = 3_600_000_000


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The clocks at an earlier pass: upkeep's now, the boot clock and which boot it is of.

    `ahead`: the time of day was so much further then, and has been since the boot clock said `since`.
    """

    now: int
    boot: int
    boot_id: str
    ahead: int = 0
    since: int = 0
    restarted: bool = False


class UpkeepNow(NamedTuple):
    """What upkeep takes for the present.

    `reading` is what to write down: the one before, if nothing has to be. `moved`: by how much now was set anew, which
    times that upkeep itself has noted must be moved too.
    """

    now: int
    jump: timedelta | None
    reading: ClockReading
    moved: int


def first_reading(clock: Clock) -> ClockReading:
    """The clocks as a partition is made."""
    return ClockReading(clock.now(), clock.boot(), boot_id())


def upkeep_now(before: ClockReading, clock: Clock, *, believe_after: timedelta) -> UpkeepNow:
    """Upkeep's time, after an earlier reading. `believe_after`: how long a time of day that jumped ahead must hold."""
    wall, boot, machine = clock.now(), clock.boot(), boot_id()
    other_boot = before.boot_id != machine or boot < before.boot
    limit = before.now + (boot if other_boot else boot - before.boot)
    ahead = wall - limit
    # Until it has settled after a restart the time of day may be set once more.
    unsettled = before.ahead > 0 or boot - before.boot < RESTART_SETTLES
    restarted = other_boot or (before.restarted and unsettled)
    if ahead < -TOLERANCE:
        return UpkeepNow(wall, ahead * MICROSECOND, ClockReading(wall, boot, machine, restarted=restarted), ahead)
    if ahead <= TOLERANCE:
        now = min(wall, limit)
        return UpkeepNow(now, None, ClockReading(now, boot, machine) if before.ahead or other_boot else before, 0)
    if other_boot or abs(ahead - before.ahead) > TOLERANCE:
        reading = ClockReading(limit, boot, machine, ahead, boot, restarted)
        return UpkeepNow(limit, ahead * MICROSECOND, reading, 0)
    needed = RESTART_SETTLES if before.restarted else believe_after // MICROSECOND
    if boot - before.since >= needed:
        return UpkeepNow(wall, None, ClockReading(wall, boot, machine), ahead)
    return UpkeepNow(limit, ahead * MICROSECOND, before, 0)
