"""WriteTxnMarkers: writes the coordinator's decision to the partitions of a transaction (KIP-98). Used only between
brokers.

Changes by version:

- v1: flexible (KIP-482)
- v2: the version of the transaction protocol (KIP-1228)
"""

from __future__ import annotations

from tidelog.protocol.declare import Api, request, response, struct, v
from tidelog.protocol.types import Bool, Int8, Int16, Int32, Int64, String

WRITE_TXN_MARKERS = Api(27, versions="1-2", flexible="1+")


@struct
class WritableTxnMarkerTopic:
    name: String = ""
    partition_indexes: list[Int32] = v(factory=list)


@struct
class WritableTxnMarker:
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: Bool = False
    topics: list[WritableTxnMarkerTopic] = v(factory=list)
    coordinator_epoch: Int32 = 0
    transaction_version: Int8 = v("2+", default=0, ignorable=True)


@request(WRITE_TXN_MARKERS)
class WriteTxnMarkersRequest:
    markers: list[WritableTxnMarker] = v(factory=list)


@struct
class WritableTxnMarkerPartitionResult:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@struct
class WritableTxnMarkerTopicResult:
    name: String = ""
    partitions: list[WritableTxnMarkerPartitionResult] = v(factory=list)


@struct
class WritableTxnMarkerResult:
    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = v(factory=list)


@response(WRITE_TXN_MARKERS)
class WriteTxnMarkersResponse:
    markers: list[WritableTxnMarkerResult] = v(factory=list)
