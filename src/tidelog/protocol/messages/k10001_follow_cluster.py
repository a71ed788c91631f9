"""FollowCluster: a broker asks the controller for the cluster's metadata, and for what changes from then on.

Only Tidelog's brokers send it, to each other; Kafka has no such API. Its key is far from those that Kafka counts up.

The request says what the broker has: a revision that it heard of in a controller epoch, or a number of records of the
snapshot of that revision. The answer has changes since, or a page of a snapshot of all there is. The broker has the
answer's revision once it has applied an answer that is complete.
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Bytes, Int16, Int32, Int64, String

FOLLOW_CLUSTER = Api(10001, versions="0", flexible="0+")


@request(FOLLOW_CLUSTER)
class FollowClusterRequest:
    node_id: Int32 = -1
    controller_epoch: Int32 = -1
    revision: Int64 = -1
    snapshot_position: Int32 = 0
    max_wait_ms: Int32 = 0
    max_bytes: Int32 = 0


@struct
class ClusterChange:
    """A record of the metadata store; without a value it was removed."""

    key: String = ""
    value: Bytes | None = b""


@response(FOLLOW_CLUSTER)
class FollowClusterResponse:
    error_code: Int16 = 0
    controller_id: Int32 = -1
    controller_epoch: Int32 = -1
    revision: Int64 = -1
    is_snapshot: Bool = False
    is_complete: Bool = True
    changes: list[ClusterChange] = v(factory=list)
