"""Mistakes that a cluster must not make, to be made on purpose: what the simulation does not notice, it does not prove.

What always holds: each is one rule that is left out or bent, and nothing else changes. Replication's are here with the
controller's; those of groups and transactions are in `coordinator_mistakes`, bugs that were once real in
`former_bugs`. `MISTAKES` has them all.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any
from unittest import mock

import coordinator_mistakes
import former_bugs
from planted import Mistake, Planting, patched, planted
from simulated_store import StoreClient
from tidelog.broker import partition as partition_module
from tidelog.broker.cluster_follower import ClusterFollower
from tidelog.broker.follower_fetches import FollowerFetch, FollowerFetches, FollowerSession
from tidelog.broker.follower_state import FollowerState, ReplicationTerms
from tidelog.broker.partition import Partition, PartitionRead, PendingIsr
from tidelog.broker.replica_fetcher import ReplicaFetcher
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.common.observable import Observable
from tidelog.controller import changes, elections, layout, partition_changes
from tidelog.controller.cluster_view import ClusterView
from tidelog.controller.controller import Controller
from tidelog.controller.elections import Rules
from tidelog.controller.image import ClusterImage, PartitionState
from tidelog.controller.ledger import Ledger
from tidelog.log import PartitionLog, producer_state
from tidelog.log import partition_log as partition_log_module
from tidelog.log import recovery as recovery_module
from tidelog.metadata.store import Check, Ok, Op, TxnResult
from tidelog.protocol import ErrorCode
from tidelog.records import CorruptBatchError, iter_headers, parse_header

# What a leader tells producers and readers


@planted
def acknowledge_before_replication() -> Planting:
    """acks=all is answered as soon as the leader has the records."""
    real = Partition.acknowledgement

    def acknowledgement(self: Partition, end_offset: int, leader_epoch: int, acks: int) -> ErrorCode | None:
        return ErrorCode.NONE if self.is_leader else real(self, end_offset, leader_epoch, acks)

    return mock.patch.object(Partition, "acknowledgement", acknowledgement)


@planted
def show_uncommitted_records() -> Planting:
    """The high watermark is the end of the leader's log."""

    def advance(self: Partition) -> bool:
        before = self.log.high_watermark
        self.log.advance_high_watermark(self.log.log_end_offset)
        return self.log.high_watermark > before

    return mock.patch.object(Partition, "advance_high_watermark", advance)


@planted
def commit_below_min_isr() -> Planting:
    """The high watermark moves with fewer replicas in sync than min.insync.replicas, whatever the ELR."""
    real = Partition.advance_high_watermark

    def advance(self: Partition) -> bool:
        elr, isr = self.elr, self.isr
        # As if there were enough: who counts is in the maximal ISR.
        self.elr, self.isr = (), self.replicas
        try:
            return real(self)
        finally:
            self.elr, self.isr = elr, isr

    return mock.patch.object(Partition, "advance_high_watermark", advance)


@planted
def commit_despite_eligible_replicas() -> Planting:
    """The high watermark moves while the ELR has members that lack what it commits (against KIP-966)."""
    real = Partition.advance_high_watermark

    def advance(self: Partition) -> bool:
        elr, self.elr = self.elr, ()
        try:
            return real(self)
        finally:
            self.elr = elr

    return mock.patch.object(Partition, "advance_high_watermark", advance)


@planted
def report_an_old_end() -> Planting:
    """A new leader tells where its log ends for readers before it knows what its predecessor told (against KIP-207)."""
    return mock.patch.object(Partition, "_check_high_watermark_is_current")


# The ISR


@planted
def expand_too_early() -> Planting:
    """Followers join the ISR before they have caught up."""
    real = Partition.propose_expansion

    def propose(self: Partition) -> bool:
        held = {each: follower.log_end_offset for each, follower in self.followers.items()}
        for follower in self.followers.values():
            follower.log_end_offset = max(follower.log_end_offset, self.log.log_end_offset)
        try:
            return real(self)
        finally:
            for each, end_offset in held.items():
                if each in self.followers:
                    self.followers[each].log_end_offset = end_offset

    return mock.patch.object(Partition, "propose_expansion", propose)


@planted
def shrink_before_the_answer() -> Planting:
    """Followers that a leader wants out of the ISR count no longer, before the controller has agreed."""
    real = Partition.propose_shrink

    def propose(self: Partition) -> bool:
        is_proposed = real(self)
        if is_proposed and self.pending_isr is not None:
            self.isr = self._maximal_isr = tuple(member.node_id for member in self.pending_isr.members)
            self.advance_high_watermark()
        return is_proposed

    return mock.patch.object(Partition, "propose_shrink", propose)


@planted
def forget_who_is_joining() -> Planting:
    """The high watermark does not wait for replicas that the controller may have let into the ISR."""
    real = Partition.propose_expansion

    def propose(self: Partition) -> bool:
        is_proposed = real(self)
        self._maximal_isr = self.isr
        return is_proposed

    return patched(
        (Partition, "propose_expansion", propose), (Partition, "_is_about_to_join", lambda self, *args: False)
    )


@planted
def give_up_changes_without_an_answer() -> Planting:
    """A change of the ISR whose outcome is unknown counts as refused."""
    real = Partition.decide_isr

    def decide(self: Partition, pending: PendingIsr, error: ErrorCode, **epochs: int) -> partition_module.IsrOutcome:
        outcome = real(self, pending, error, **epochs)
        if outcome is partition_module.IsrOutcome.UNKNOWN:
            self._take_isr(self.isr)
            return partition_module.IsrOutcome.REFUSED
        return outcome

    return mock.patch.object(Partition, "decide_isr", decide)


@planted
def take_any_change_of_an_isr() -> Planting:
    """The controller takes a change of an ISR from whoever led once, based on whatever it knew then."""
    real = partition_changes.check_isr_change

    def check(state: PartitionState, change: Any, sender: int, brokers: Any) -> None:
        current = replace(change, leader_epoch=state.leader_epoch, partition_epoch=state.partition_epoch)
        if state.leader in [member.node_id for member in change.isr]:
            real(state, current, state.leader, brokers)
        else:
            real(state, current, sender, brokers)

    return mock.patch.object(partition_changes, "check_isr_change", check)


@planted
def take_requests_of_former_processes() -> Planting:
    """Broker epochs are not compared: what a broker had before its restart counts as what it has (against KIP-903)."""
    real_open = FollowerFetches.open

    def checked(node_id: int, epoch: int, image: ClusterImage) -> Any:
        return image.brokers[node_id]

    def open_session(self: FollowerFetches, replica_id: int, epoch: int, *args: int) -> FollowerSession:
        return real_open(self, replica_id, self._terms.epoch_of(replica_id), *args)

    def is_eligible(self: ReplicationTerms, node_id: int, broker_epoch: int) -> bool:
        broker = self.brokers.get(node_id)
        return broker is not None and broker.is_active

    return patched(
        (changes, "checked_broker", checked),
        (partition_changes, "_ineligibility", lambda *args: None),
        (FollowerFetches, "open", open_session),
        (FollowerFetches, "on_brokers_changed", lambda self: None),
        (ReplicationTerms, "is_eligible", is_eligible),
        (FollowerState, "forget", lambda self: None),
    )


# Followers


@planted
def never_truncate() -> Planting:
    """Followers keep what another leader has not got."""
    return mock.patch.object(Partition, "find_divergence", return_value=None)


@planted
def truncate_to_the_high_watermark() -> Planting:
    """Followers cut their logs at the high watermark they know, and nobody compares epochs (before KIP-101)."""
    real = ReplicaFetcher.follow

    def follow(self: ReplicaFetcher, partition: Partition) -> None:
        followed = self._followed.get((partition.topic_id, partition.partition))
        is_new = followed is None or followed.leader_epoch != partition.leader_epoch
        log = partition.log
        if is_new and log.high_watermark < log.log_end_offset and not log.is_offline:
            log.truncate_to(log.high_watermark)
        real(self, partition)

    return patched((ReplicaFetcher, "follow", follow), (Partition, "find_divergence", lambda *args: None))


@planted
def ignore_epochs_of_fetches() -> Planting:
    """Leaders answer fetches of any leader epoch (FENCED_LEADER_EPOCH and UNKNOWN_LEADER_EPOCH, KIP-320)."""
    return mock.patch.object(Partition, "_check_epoch", lambda self, epoch=-1: self.check_available())


@planted
def count_what_was_sent() -> Planting:
    """A leader counts records as copied when it has sent them: followers acknowledge before they write."""
    real = FollowerFetches._read

    def read(
        self: FollowerFetches, session: FollowerSession, fetch: FollowerFetch, *limits: Any
    ) -> PartitionRead | None:
        answer = real(self, session, fetch, *limits)
        if answer is not None and answer.size_bytes:
            records: Any = answer.records
            data = bytes(records) if isinstance(records, (bytes, memoryview)) else records.read()
            end_offset = max(header.next_offset for _, header in iter_headers(data, allow_partial=True))
            partition = self._leaders.find_by_id(fetch.topic_id, fetch.partition)
            if partition.update_follower(session.replica_id, end_offset, 0, session.replica_epoch):
                self._leaders.on_follower_progress(partition)
        return answer

    return mock.patch.object(FollowerFetches, "_read", read)


# Leaders and their epochs


@planted
def write_no_leader_epochs() -> Planting:
    """An epoch is not noted before its first append: nobody can tell later where it began (KIP-101)."""
    return mock.patch.object(PartitionLog, "assign_epoch")


@planted
def keep_the_leader_epoch() -> Planting:
    """A new leader leads in the epoch of the one before."""
    real = partition_changes.conclude

    def conclude(before: PartitionState, *args: Any, **options: Any) -> PartitionState:
        return replace(real(before, *args, **options), leader_epoch=before.leader_epoch)

    return mock.patch.object(partition_changes, "conclude", conclude)


@planted
def lead_past_the_session() -> Planting:
    """A leader whose session is over, or that was fenced, goes on."""

    def fence(self: ReplicaManager) -> None:
        self.on_registered(-1)

    return patched((ReplicaManager, "fence", fence), (ReplicaManager, "is_serving", property(lambda self: True)))


@planted
def elect_anybody() -> Planting:
    """Any live replica may lead, whatever it lacks."""

    def may_lead(state: PartitionState, node_id: int, rules: Rules) -> bool:
        return node_id in rules.active and node_id in state.replicas

    return mock.patch.object(elections, "_may_lead", may_lead)


@planted
def elect_uncleanly() -> Planting:
    """A replica that is not in sync is elected when nobody else can be, without the setting that allows it."""
    real = elections.elect

    def elect(state: PartitionState, rules: Rules, *, preferred: bool = False) -> PartitionState:
        return real(state, replace(rules, unclean=True), preferred=preferred)

    return mock.patch.object(partition_changes, "elect", elect)


@planted
def trust_after_a_crash() -> Planting:
    """Replicas that may have lost records with their machine's power stay in the ISR (against KIP-966)."""
    return mock.patch.object(partition_changes, "_without_unsure_member", lambda state, node_id, same_disks: state)


@planted
def finish_moves_early() -> Planting:
    """A reassignment is over before the new replicas are in sync (against KIP-455)."""

    def complete(state: PartitionState, rules: Rules) -> PartitionState:
        target = partition_changes._without(state.replicas, state.removing)
        if not state.is_reassigned or not any(node_id in rules.active for node_id in target):
            return state
        isr, elr = (partition_changes._without(each, state.removing) for each in (state.isr, state.elr))
        return replace(state, replicas=target, isr=isr or target, elr=elr, adding=(), removing=())

    return mock.patch.object(partition_changes, "_complete_reassignment", complete)


# The controller


@planted
def write_as_deposed_controller() -> Planting:
    """Writes to the metadata store do not check the controller epoch."""
    real = StoreClient.txn

    async def txn(self: StoreClient, checks: Collection[Check], ops: Collection[Op]) -> TxnResult:
        is_election = any(op.key == layout.CONTROLLER_EPOCH for op in ops)
        kept = [check for check in checks if is_election or check[0] != layout.CONTROLLER_EPOCH]
        return await real(self, kept, list(ops))

    return mock.patch.object(StoreClient, "txn", txn)


@planted
def take_lost_writes_for_done() -> Planting:
    """A write whose outcome the store could not tell counts as carried out."""
    real = Ledger._settle

    async def settle(self: Ledger, ops: Collection[Op], nonce: str) -> Any:
        result = await real(self, list(ops), nonce)
        return result if isinstance(result, Ok) else Ok(await self._fence(), _tokens_of(self, ops))

    return mock.patch.object(Ledger, "_settle", settle)


def _tokens_of(ledger: Ledger, ops: Collection[Op]) -> dict[str, Any]:
    return {op.key: ledger._tokens.get(op.key) for op in ops}


@planted
def accept_old_metadata() -> Planting:
    """A broker takes an image from whoever says to be the controller, and an older one for a newer."""

    def publish(self: ClusterView, image: ClusterImage, deleted_topic_ids: Collection[Any] = ()) -> None:
        self.deleted_topic_ids.update(deleted_topic_ids)
        old = self.image
        observable: Observable[ClusterImage] = self._image
        observable.set(image)
        for subscriber in tuple(self._subscribers):
            subscriber(old, image)

    def is_from_controller(self: ClusterFollower, response: Any) -> bool:
        return bool(response.error_code == ErrorCode.NONE)

    return patched((ClusterView, "publish", publish), (ClusterFollower, "_is_from_controller", is_from_controller))


@planted
def give_producer_ids_twice() -> Planting:
    """A new controller gives out blocks of producer ids from the beginning."""
    real = Controller._take_over

    async def take_over(self: Controller, *args: Any) -> None:
        await real(self, *args)
        self._next_producer_id = 0

    return mock.patch.object(Controller, "_take_over", take_over)


@planted
def forget_settings_of_topics() -> Planting:
    """A change of a topic's settings is answered and not written."""
    real = changes._config_write

    def config_write(resource: Any, overrides: Any, image: ClusterImage) -> Any:
        return real(resource, {}, image)

    return mock.patch.object(changes, "_config_write", config_write)


# Logs and disks


@planted
def skip_fsync() -> Planting:
    """A log counts as flushed without having been flushed."""
    return mock.patch.object(PartitionLog, "_sync")


@planted
def recover_without_checksums() -> Planting:
    """What a power cut has left of a batch is taken for the batch."""

    def checked(view: memoryview, position: int, offset_min: int, offset_max: int) -> Any:
        header = parse_header(view, position)
        if header.base_offset < offset_min or header.last_offset > offset_max:
            raise CorruptBatchError(f"offset {header.base_offset} follows {offset_min - 1}")
        return header

    return mock.patch.object(recovery_module, "checked_header", checked)


@planted
def write_repeated_batches() -> Planting:
    """Sequence numbers are not looked at: what a producer sends again is written again."""
    return patched(
        (partition_log_module, "find_duplicate", lambda *args: None),
        (producer_state, "_check_sequence", lambda *args: None),
    )


MISTAKES = {
    mistake.name: mistake
    for mistakes in (globals(), vars(coordinator_mistakes), vars(former_bugs))
    for mistake in tuple(mistakes.values())
    if isinstance(mistake, Mistake)
}
