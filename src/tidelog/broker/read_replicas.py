"""Which replica a leader sends a consumer to (KIP-392): one in the consumer's own rack.

What always holds: a replica that is named is in the ISR, belongs to a live broker, the same process that copies here,
and holds the offset that was asked for; otherwise the leader serves the consumer itself. Without
`replica.selector.class` it always does. Pure: it neither reads nor waits.
"""

from __future__ import annotations

from typing import Final

from tidelog.broker.follower_state import FollowerState, ReplicationTerms
from tidelog.broker.partition import Partition

NO_REPLICA: Final = -1


def choose_read_replica(partition: Partition, terms: ReplicationTerms, client_rack: str, fetch_offset: int) -> int:
    """The follower that a consumer of this rack should read from; NO_REPLICA: this leader."""
    leader = terms.brokers.get(partition.node_id)
    if not client_rack or (leader is not None and leader.rack == client_rack):
        return NO_REPLICA
    candidates = [
        (follower.log_end_offset, follower.caught_up_ms, replica_id)
        for replica_id, follower in partition.followers.items()
        if replica_id in partition.isr and _may_serve(replica_id, follower, terms, client_rack, fetch_offset)
    ]
    # As Kafka's selector does: who has most of the log, then who caught up last.
    return max(candidates)[-1] if candidates else NO_REPLICA


def _may_serve(
    replica_id: int, follower: FollowerState, terms: ReplicationTerms, client_rack: str, fetch_offset: int
) -> bool:
    broker = terms.brokers.get(replica_id)
    return (
        broker is not None
        and broker.rack == client_rack
        and terms.is_eligible(replica_id, follower.broker_epoch)
        and follower.log_start_offset <= fetch_offset <= follower.log_end_offset
    )
