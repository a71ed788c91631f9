"""How the cluster's state is stored in the metadata store: the keys, and the JSON records under them.

    cluster                         the cluster id and the version of this layout
    controller                      who is controller, and where; owned by its session
    controller-epoch                grows with every election; every write of a controller checks it
    live/<node id>                  which incarnation of a broker is alive; owned by its session
    brokers/<node id>               a broker's last registration
    topics/<name>                   topic id, partition count, settings; a tombstone after deletion
    partitions/<topic id>/<chunk>   the states of 64 partitions
    configs/broker/<node id>        settings set on a broker at run time; `default` holds those of all brokers
    configs/group/<digest>          settings of one group, and its id, which may be anything a key can't be
    producer-ids                    the first producer id that was never handed out

What always holds: a topic exists if and only if `topics/<name>` says so, which is written last when it is made and
first when it is deleted, so partition chunks without a topic are garbage. A key that comes and goes under the same name
is never removed while a controller serves: a tombstone or an empty record replaces it, because an old token must
never become valid again. Chunks carry the topic id, which is never used twice, so they are removed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.common.ids import ZERO_UUID, uuid_from_text, uuid_to_text
from tidelog.common.light_dataclass import dataclass
from tidelog.controller.image import NO_LEADER, BrokerInfo, LeaderRecoveryState, PartitionState, TopicImage

LAYOUT_VERSION: Final = 1

CLUSTER: Final = "cluster"
CONTROLLER: Final = "controller"
CONTROLLER_EPOCH: Final = "controller-epoch"
LIVE: Final = "live/"
BROKERS: Final = "brokers/"
TOPICS: Final = "topics/"
PARTITIONS: Final = "partitions/"
BROKER_CONFIGS: Final = "configs/broker/"
GROUP_CONFIGS: Final = "configs/group/"
PRODUCER_IDS: Final = "producer-ids"

PARTITIONS_PER_CHUNK: Final = 64
"""A change of one partition rewrites its chunk, so they are small; a start reads one key a chunk, so not too small."""

Record: TypeAlias = dict[str, Any]


class ControllerLocation(NamedTuple):
    """Who is controller, since which epoch, and where other brokers reach it."""

    node_id: int
    epoch: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """What `topics/<name>` holds of a topic that exists."""

    topic_id: uuid.UUID
    partitions: int
    created_ms: int
    configs: Mapping[str, str]


def encode(record: Record) -> bytes:
    return json.dumps(record, separators=(",", ":"), sort_keys=True).encode()


def decode(value: bytes) -> Record:
    record = json.loads(value)
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, found {value[:80]!r}")
    return record


def controller_record(location: ControllerLocation) -> Record:
    return location._asdict()


def parse_controller(record: Record) -> ControllerLocation:
    return ControllerLocation(
        # Before there were several brokers, the record had the node id only.
        int(record["node_id"]),
        int(record.get("epoch", -1)),
        str(record.get("host", "")),
        int(record.get("port", 0)),
    )


def live_key(node_id: int) -> str:
    return f"{LIVE}{node_id}"


def broker_key(node_id: int) -> str:
    return f"{BROKERS}{node_id}"


def topic_key(name: str) -> str:
    return f"{TOPICS}{name}"


def chunk_key(topic_id: uuid.UUID, chunk: int) -> str:
    return f"{PARTITIONS}{uuid_to_text(topic_id)}/{chunk:05d}"


def parse_chunk_key(key: str) -> tuple[uuid.UUID, int]:
    """The topic id and the number of the chunk."""
    topic_id, chunk = key.removeprefix(PARTITIONS).split("/")
    return uuid_from_text(topic_id), int(chunk)


def broker_configs_key(name: str) -> str:
    return f"{BROKER_CONFIGS}{name or 'default'}"


def broker_configs_name(key: str) -> str:
    name = key.removeprefix(BROKER_CONFIGS)
    return "" if name == "default" else name


def group_configs_key(group_id: str) -> str:
    import hashlib  # half a megabyte that a broker without such settings does not need

    return f"{GROUP_CONFIGS}{hashlib.sha256(group_id.encode(errors='surrogatepass')).hexdigest()}"


def group_configs_record(group_id: str, configs: Mapping[str, str]) -> Record:
    return {"group": group_id, "configs": dict(configs)}


def topic_record(topic: TopicImage, configs: Mapping[str, str]) -> Record:
    return {
        "id": uuid_to_text(topic.topic_id),
        "partitions": len(topic.partitions),
        "created_ms": topic.created_ms,
        "configs": dict(configs),
    }


TOMBSTONE_MARK: Final = b'"deleted"'
"""What is in every tombstone of a topic as it is stored; a setting of a topic that exists may hold it, too."""


def topic_tombstone(topic_id: uuid.UUID) -> Record:
    return {"deleted": uuid_to_text(topic_id)}


def parse_tombstone(record: Record) -> uuid.UUID | None:
    """The id of the topic that was deleted; None for a topic that exists."""
    return uuid_from_text(record["deleted"]) if "deleted" in record else None


def parse_topic(record: Record) -> TopicRecord:
    """A topic that exists."""
    return TopicRecord(
        uuid_from_text(record["id"]), int(record["partitions"]), int(record["created_ms"]), dict(record["configs"])
    )


def broker_record(broker: BrokerInfo) -> Record:
    record: Record = {
        "epoch": broker.epoch,
        "endpoints": [[each.listener_name, each.host, each.port] for each in broker.endpoints],
        "rack": broker.rack,
        "fenced": broker.fenced,
        "directories": [uuid_to_text(directory) for directory in broker.directories],
    }
    if broker.in_controlled_shutdown:
        record["in_controlled_shutdown"] = True
    if broker.incarnation != ZERO_UUID:
        record["incarnation"] = uuid_to_text(broker.incarnation)
    if broker.features:
        record["features"] = {name: list(levels) for name, levels in broker.features.items()}
    return record


def parse_broker(key: str, record: Record) -> BrokerInfo:
    return BrokerInfo(
        node_id=int(key.removeprefix(BROKERS)),
        epoch=int(record["epoch"]),
        endpoints=_parse_endpoints(record),
        rack=record["rack"],
        fenced=bool(record["fenced"]),
        directories=tuple(uuid_from_text(text) for text in record["directories"]),
        in_controlled_shutdown=bool(record.get("in_controlled_shutdown", False)),
        incarnation=uuid_from_text(record["incarnation"]) if "incarnation" in record else ZERO_UUID,
        features={name: (low, high) for name, (low, high) in record.get("features", {}).items()},
    )


def _parse_endpoints(record: Record) -> tuple[Endpoint, ...]:
    if "endpoints" not in record:
        # As it was before brokers had several listeners.
        return (Endpoint(PLAINTEXT, str(record["host"]), int(record["port"])),)
    return tuple(Endpoint(str(name), str(host), int(port)) for name, host, port in record["endpoints"])


def chunk_records(
    topic_id: uuid.UUID, partitions: Sequence[PartitionState], changed: set[int] | None = None
) -> Iterator[tuple[str, Record]]:
    """Keys and records of the chunks that hold the changed partitions (None: all)."""
    for start in range(0, len(partitions), PARTITIONS_PER_CHUNK):
        part = range(start, min(start + PARTITIONS_PER_CHUNK, len(partitions)))
        if changed is None or not changed.isdisjoint(part):
            yield (
                chunk_key(topic_id, start // PARTITIONS_PER_CHUNK),
                {"states": [_partition_record(partitions[index]) for index in part]},
            )


def parse_chunk(record: Record) -> list[PartitionState]:
    return [_parse_partition(state) for state in record["states"]]


def _partition_record(state: PartitionState) -> Record:
    record: Record = {
        "replicas": state.replicas,
        "isr": state.isr,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "partition_epoch": state.partition_epoch,
    }
    # Seldom there, so left out where empty: a start reads thousands of these.
    for name, members in (("adding", state.adding), ("removing", state.removing), ("elr", state.elr)):
        if members:
            record[name] = members
    if state.recovery is not LeaderRecoveryState.RECOVERED:
        record["recovery"] = int(state.recovery)
    if state.last_leader != NO_LEADER:
        record["last_leader"] = state.last_leader
    return record


def _parse_partition(record: Record) -> PartitionState:
    return PartitionState(
        replicas=tuple(record["replicas"]),
        isr=tuple(record["isr"]),
        leader=record["leader"],
        leader_epoch=record["leader_epoch"],
        partition_epoch=record["partition_epoch"],
        adding=tuple(record.get("adding", ())),
        removing=tuple(record.get("removing", ())),
        elr=tuple(record.get("elr", ())),
        recovery=LeaderRecoveryState(record.get("recovery", 0)),
        last_leader=record.get("last_leader", NO_LEADER),
    )
