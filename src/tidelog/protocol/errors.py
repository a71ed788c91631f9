"""The protocol's error codes, one table, and the exceptions that carry them.

What always holds: a code is `retriable` if Kafka's own clients treat it so; ours and theirs retry alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

_RETRIABLE = True
_FINAL = False


class ErrorCode(IntEnum):
    """The code, whether a retry may help, and what it means."""

    retriable: bool
    description: str

    def __new__(cls, code: int, retriable: bool = False, description: str = "") -> Self:
        # Only the table below calls this. The defaults let type checkers accept a lookup such as `ErrorCode(3)`.
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.description = description
        return member

    UNKNOWN_SERVER_ERROR = -1, _FINAL, "An unexpected failure inside the broker"
    NONE = 0, _FINAL, "No error"
    OFFSET_OUT_OF_RANGE = 1, _FINAL, "The offset is outside the log's range"
    CORRUPT_MESSAGE = 2, _RETRIABLE, "The records fail their checksum or are malformed"
    UNKNOWN_TOPIC_OR_PARTITION = 3, _RETRIABLE, "This broker does not host the topic or partition"
    INVALID_FETCH_SIZE = 4, _FINAL, "The fetch size is not valid"
    LEADER_NOT_AVAILABLE = 5, _RETRIABLE, "The partition has no leader at the moment"
    NOT_LEADER_OR_FOLLOWER = 6, _RETRIABLE, "This broker is neither leader nor follower of the partition"
    REQUEST_TIMED_OUT = 7, _RETRIABLE, "The request timed out"
    BROKER_NOT_AVAILABLE = 8, _FINAL, "No broker can serve the request at the moment"
    REPLICA_NOT_AVAILABLE = 9, _RETRIABLE, "The replica is not available on this broker"
    MESSAGE_TOO_LARGE = 10, _FINAL, "The batch is larger than the topic allows"
    STALE_CONTROLLER_EPOCH = 11, _FINAL, "The controller epoch of the request is out of date"
    OFFSET_METADATA_TOO_LARGE = 12, _FINAL, "The metadata of an offset commit is too long"
    NETWORK_EXCEPTION = 13, _RETRIABLE, "The connection broke before the answer arrived"
    COORDINATOR_LOAD_IN_PROGRESS = 14, _RETRIABLE, "The coordinator is still loading its state"
    COORDINATOR_NOT_AVAILABLE = 15, _RETRIABLE, "The coordinator is not available"
    NOT_COORDINATOR = 16, _RETRIABLE, "This broker is not the coordinator"
    INVALID_TOPIC_EXCEPTION = 17, _FINAL, "The topic name is not valid, or the topic does not allow the operation"
    RECORD_LIST_TOO_LARGE = 18, _FINAL, "The batch is larger than a log segment"
    NOT_ENOUGH_REPLICAS = 19, _RETRIABLE, "Fewer replicas are in sync than min.insync.replicas requires"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, _RETRIABLE, "The batch was written, but too few replicas are in sync"
    INVALID_REQUIRED_ACKS = 21, _FINAL, "acks must be -1, 0 or 1"
    ILLEGAL_GENERATION = 22, _FINAL, "The generation of the group is not the current one"
    INCONSISTENT_GROUP_PROTOCOL = 23, _FINAL, "The member and the group have no protocol in common"
    INVALID_GROUP_ID = 24, _FINAL, "The group id is not valid"
    UNKNOWN_MEMBER_ID = 25, _FINAL, "The coordinator does not know this member"
    INVALID_SESSION_TIMEOUT = 26, _FINAL, "The session timeout is outside the allowed range"
    REBALANCE_IN_PROGRESS = 27, _FINAL, "The group is rebalancing; the member must join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, _FINAL, "The size of the offset commit is not valid"
    TOPIC_AUTHORIZATION_FAILED = 29, _FINAL, "Access to the topic is denied"
    GROUP_AUTHORIZATION_FAILED = 30, _FINAL, "Access to the group is denied"
    CLUSTER_AUTHORIZATION_FAILED = 31, _FINAL, "Access to the cluster is denied"
    INVALID_TIMESTAMP = 32, _FINAL, "The timestamp is outside the allowed range"
    UNSUPPORTED_SASL_MECHANISM = 33, _FINAL, "The SASL mechanism is not supported"
    ILLEGAL_SASL_STATE = 34, _FINAL, "The request is not valid in this state of the SASL exchange"
    UNSUPPORTED_VERSION = 35, _FINAL, "The version of the API is not supported"
    TOPIC_ALREADY_EXISTS = 36, _FINAL, "A topic with this name already exists"
    INVALID_PARTITIONS = 37, _FINAL, "The number of partitions is not valid"
    INVALID_REPLICATION_FACTOR = 38, _FINAL, "The replication factor is not valid"
    INVALID_REPLICA_ASSIGNMENT = 39, _FINAL, "The replica assignment is not valid"
    INVALID_CONFIG = 40, _FINAL, "The configuration is not valid"
    NOT_CONTROLLER = 41, _RETRIABLE, "This broker is not the controller"
    INVALID_REQUEST = 42, _FINAL, "The request is malformed or contradicts itself"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, _FINAL, "The message format does not support the operation"
    POLICY_VIOLATION = 44, _FINAL, "The request violates a policy of the cluster"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, _FINAL, "The batch's sequence number leaves a gap"
    DUPLICATE_SEQUENCE_NUMBER = 46, _FINAL, "The batch's sequence number was used before"
    INVALID_PRODUCER_EPOCH = 47, _FINAL, "The producer's epoch is older than the current one"
    INVALID_TXN_STATE = 48, _FINAL, "The transaction's state does not allow the operation"
    INVALID_PRODUCER_ID_MAPPING = 49, _FINAL, "The producer id does not belong to the transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, _FINAL, "The transaction timeout is longer than the broker allows"
    CONCURRENT_TRANSACTIONS = 51, _RETRIABLE, "Another operation on the same transaction is in progress"
    TRANSACTION_COORDINATOR_FENCED = 52, _FINAL, "A newer transaction coordinator has taken over"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, _FINAL, "Access to the transactional id is denied"
    SECURITY_DISABLED = 54, _FINAL, "Security features are disabled"
    OPERATION_NOT_ATTEMPTED = 55, _FINAL, "Not attempted, because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, _RETRIABLE, "The log's disk failed"
    LOG_DIR_NOT_FOUND = 57, _FINAL, "The log directory does not exist"
    SASL_AUTHENTICATION_FAILED = 58, _FINAL, "SASL authentication failed"
    UNKNOWN_PRODUCER_ID = 59, _FINAL, "The broker has no state for this producer id"
    REASSIGNMENT_IN_PROGRESS = 60, _FINAL, "A reassignment of the partition is in progress"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, _FINAL, "Delegation tokens are disabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, _FINAL, "The delegation token does not exist"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, _FINAL, "The delegation token belongs to someone else"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        _FINAL,
        "Delegation tokens cannot be requested with this kind of authentication",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, _FINAL, "Access to the delegation token is denied"
    DELEGATION_TOKEN_EXPIRED = 66, _FINAL, "The delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, _FINAL, "The principal type is not supported"
    NON_EMPTY_GROUP = 68, _FINAL, "The group has members"
    GROUP_ID_NOT_FOUND = 69, _FINAL, "The group does not exist"
    FETCH_SESSION_ID_NOT_FOUND = 70, _RETRIABLE, "The fetch session does not exist"
    INVALID_FETCH_SESSION_EPOCH = 71, _RETRIABLE, "The epoch of the fetch session is not the next one"
    LISTENER_NOT_FOUND = 72, _RETRIABLE, "The leader has no listener with the name the request came in on"
    TOPIC_DELETION_DISABLED = 73, _FINAL, "Topic deletion is disabled"
    FENCED_LEADER_EPOCH = 74, _RETRIABLE, "The leader epoch is older than the current one"
    UNKNOWN_LEADER_EPOCH = 75, _RETRIABLE, "The leader epoch is newer than the one this broker knows"
    UNSUPPORTED_COMPRESSION_TYPE = 76, _FINAL, "The version of the request does not support the compression type"
    STALE_BROKER_EPOCH = 77, _FINAL, "The broker's epoch is older than the current one"
    OFFSET_NOT_AVAILABLE = 78, _RETRIABLE, "The leader's high watermark has not caught up yet"
    MEMBER_ID_REQUIRED = 79, _FINAL, "The member must join again with the id it was given"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, _RETRIABLE, "The preferred leader is not available"
    GROUP_MAX_SIZE_REACHED = 81, _FINAL, "The group has reached its maximum size"
    FENCED_INSTANCE_ID = 82, _FINAL, "A newer member took over the group instance id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, _RETRIABLE, "No eligible leader is available"
    ELECTION_NOT_NEEDED = 84, _RETRIABLE, "The partition needs no election"
    NO_REASSIGNMENT_IN_PROGRESS = 85, _FINAL, "No reassignment of the partition is in progress"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, _FINAL, "The group is subscribed to the topic"
    INVALID_RECORD = 87, _FINAL, "A record is not valid, so the batch was rejected"
    UNSTABLE_OFFSET_COMMIT = 88, _RETRIABLE, "Some offsets belong to a transaction that is still open"
    THROTTLING_QUOTA_EXCEEDED = 89, _RETRIABLE, "A quota was exceeded; the request was not carried out"
    PRODUCER_FENCED = 90, _FINAL, "A newer producer with the same transactional id took over"
    RESOURCE_NOT_FOUND = 91, _FINAL, "The resource does not exist"
    DUPLICATE_RESOURCE = 92, _FINAL, "The resource already exists"
    UNACCEPTABLE_CREDENTIAL = 93, _FINAL, "The credential does not meet the requirements"
    INCONSISTENT_VOTER_SET = 94, _FINAL, "The sender's set of voters differs"
    INVALID_UPDATE_VERSION = 95, _FINAL, "The update would move the version in the wrong direction"
    FEATURE_UPDATE_FAILED = 96, _FINAL, "The update of finalized features failed"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, _FINAL, "The principal of a forwarded request cannot be read"
    SNAPSHOT_NOT_FOUND = 98, _FINAL, "The snapshot does not exist"
    POSITION_OUT_OF_RANGE = 99, _FINAL, "The position is outside the snapshot"
    UNKNOWN_TOPIC_ID = 100, _RETRIABLE, "No topic has this id"
    DUPLICATE_BROKER_REGISTRATION = 101, _FINAL, "The broker id is registered by another live broker"
    BROKER_ID_NOT_REGISTERED = 102, _FINAL, "The broker id is not registered"
    INCONSISTENT_TOPIC_ID = 103, _RETRIABLE, "The topic id in the log differs from the one in the request"
    INCONSISTENT_CLUSTER_ID = 104, _FINAL, "The cluster id in the request differs from ours"
    TRANSACTIONAL_ID_NOT_FOUND = 105, _FINAL, "The transactional id does not exist"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _RETRIABLE, "The fetch session does not match the use of topic ids"
    INELIGIBLE_REPLICA = 107, _FINAL, "The replica is not eligible to join the in-sync replicas"
    NEW_LEADER_ELECTED = 108, _FINAL, "The reassignment made another replica the leader"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, _FINAL, "The offset was moved to tiered storage"
    FENCED_MEMBER_EPOCH = (
        110,
        _FINAL,
        "The member is fenced; it must give up its partitions and join again",
    )
    UNRELEASED_INSTANCE_ID = 111, _FINAL, "Another member still holds the group instance id"
    UNSUPPORTED_ASSIGNOR = 112, _FINAL, "The group's coordinator does not support the assignor"
    STALE_MEMBER_EPOCH = (
        113,
        _FINAL,
        "The member's epoch is not the current one; it may retry with a newer one",
    )
    MISMATCHED_ENDPOINT_TYPE = 114, _FINAL, "The request was sent to the wrong type of endpoint"
    UNSUPPORTED_ENDPOINT_TYPE = 115, _FINAL, "The endpoint type is unknown"
    UNKNOWN_CONTROLLER_ID = 116, _FINAL, "The controller id is unknown"
    UNKNOWN_SUBSCRIPTION_ID = 117, _FINAL, "The telemetry subscription is out of date"
    TELEMETRY_TOO_LARGE = 118, _FINAL, "The telemetry payload is too large"
    INVALID_REGISTRATION = 119, _FINAL, "The registration is not valid"
    TRANSACTION_ABORTABLE = 120, _FINAL, "The transaction failed and can only be aborted"
    INVALID_RECORD_STATE = 121, _FINAL, "The record's delivery state does not allow the acknowledgement"
    SHARE_SESSION_NOT_FOUND = 122, _RETRIABLE, "The share session does not exist"
    INVALID_SHARE_SESSION_EPOCH = 123, _RETRIABLE, "The epoch of the share session is not the next one"
    FENCED_STATE_EPOCH = 124, _FINAL, "The share coordinator's state has a newer epoch"
    INVALID_VOTER_KEY = 125, _FINAL, "The voter's key is not valid"
    DUPLICATE_VOTER = 126, _FINAL, "The voter is already in the set"
    VOTER_NOT_FOUND = 127, _FINAL, "The voter is not in the set"
    INVALID_REGULAR_EXPRESSION = 128, _FINAL, "The subscription's regular expression is not valid"
    REBOOTSTRAP_REQUIRED = 129, _FINAL, "The client must bootstrap again"
    STREAMS_INVALID_TOPOLOGY = 130, _FINAL, "The topology of the streams group is not valid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, _FINAL, "The topology epoch of the streams group is not valid"
    STREAMS_TOPOLOGY_FENCED = 132, _FINAL, "The topology epoch of the streams group is older than the current one"
    SHARE_SESSION_LIMIT_REACHED = 133, _RETRIABLE, "The broker has reached its limit of share sessions"


class ProtocolError(Exception):
    """The bytes are not a valid message, or the message cannot be encoded in this version."""


class TooManyElementsError(ProtocolError):
    """The arrays of a request have more elements in total than the decoder allows."""


class KafkaError(Exception):
    """An expected failure: an error code of the protocol, with a message for people where there is more to say.

    `record_errors` lists the bad records of a rejected batch: the index of each, and what is wrong with it.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        record_errors: Sequence[tuple[int, str | None]] = (),
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.record_errors = record_errors

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message or self.code.description}"
