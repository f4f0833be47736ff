"""ReaderGroup: a named set of readers that share a topic, seen from outside."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from mainstem.log.groups import group_state as decisions
from mainstem.log.groups.group_member import Heartbeats, dead_members
from mainstem.log.groups.group_state import GroupState
from mainstem.log.lag import Lag
from mainstem.log.log import no_such_reader
from mainstem.log.partition_reads import PartitionReads, Position, Processes, offsets_at
from mainstem.log.state_ledger import StateLedger

__all__ = ["GroupDescription", "GroupPartition", "MemberDescription", "ReaderGroup"]


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member: its process (None if it has none), its partitions, and the age of its last heartbeat."""

    id: str
    pid: int | None
    partitions: tuple[int, ...]
    session: timedelta
    silent_for: timedelta | None


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """One partition: who reads it, who waits for it, the offset read next after a crash, and the lag from there."""

    partition: int
    member: str | None
    next_member: str | None
    committed: int
    pending_transactions: tuple[str, ...]
    lag: Lag


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as it is now."""

    name: str
    topic: str
    generation: int
    members: tuple[MemberDescription, ...]
    partitions: tuple[GroupPartition, ...]
    lag: Lag


class ReaderGroup:
    """A group seen from outside, without joining it: `mainstem group describe` and `reset`."""

    def __init__(
        self,
        name: str,
        ledger: StateLedger[GroupState],
        reads: PartitionReads,
        heartbeats: Heartbeats,
        *,
        processes: Processes,
    ) -> None:
        self.name = name
        self._ledger = ledger
        self._reads = reads
        self._heartbeats = heartbeats
        self._processes = processes

    def describe(self) -> GroupDescription:
        """Its members, their partitions, and the committed offsets."""
        state = self._require_opened()
        partitions = tuple(
            GroupPartition(
                partition=partition,
                member=state.owners.get(partition),
                next_member=state.next_owners.get(partition),
                committed=committed,
                pending_transactions=tuple(state.transactions_on(partition)),
                lag=self._reads.behind(partition, committed),
            )
            for partition, committed in sorted(state.committed.items())
        )
        members = tuple(
            MemberDescription(
                id=member.id,
                pid=None if member.process is None else member.process["pid"],
                partitions=tuple(state.owned_by(member.id)),
                session=timedelta(microseconds=member.session),
                silent_for=None if (age := self._heartbeats.age(member.id)) is None else timedelta(microseconds=age),
            )
            for member in state.members.values()
        )
        lag = Lag.total(partition.lag for partition in partitions)
        return GroupDescription(self.name, self._reads.name, state.generation, members, partitions, lag)

    def lag(self) -> Lag:
        """How far the committed offsets are behind the end of the topic."""
        return Lag.total(
            self._reads.behind(partition, committed)
            for partition, committed in self._require_opened().committed.items()
        )

    def reset(self, to: Position) -> dict[int, int]:
        """Set the committed offsets to a position, and return them. `Conflict` while there are active members."""
        self._require_opened()

        def decision(state: GroupState, now: int) -> tuple[list[dict[str, object]], dict[int, int]]:
            offsets = offsets_at(to, self._reads, sorted(state.committed))
            dead = dead_members(state, now, self._heartbeats, self._processes)
            return decisions.reset(state, offsets, dead), offsets

        return self._ledger.decide(decision)

    def _require_opened(self) -> GroupState:
        state = self._ledger.current()
        if state.opened_at is None:
            raise no_such_reader("group", self.name, self._reads.name)
        return state
