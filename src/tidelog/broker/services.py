"""The services that handlers may use: one object per broker, assembled by the server and passed to every request.

What always holds: the fields are set before the first client is accepted and keep their identity until the broker
stops; values that change (the cluster image, settings) change inside them.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from tidelog.broker.metadata_view import MetadataView
from tidelog.common.light_dataclass import dataclass

if TYPE_CHECKING:
    from tidelog.broker.auto_create import AutoTopicCreation
    from tidelog.broker.controller_channel import ControllerChannel
    from tidelog.broker.forwarding import Forwarder
    from tidelog.broker.group_service import GroupService
    from tidelog.broker.peers import Peers
    from tidelog.broker.producer_ids import ProducerIdAllocator
    from tidelog.broker.registration import Registration
    from tidelog.broker.replica_manager import ReplicaManager
    from tidelog.broker.txn_service import TransactionService
    from tidelog.common.clock import Clock
    from tidelog.common.settings import Settings, SettingsTable
    from tidelog.controller import Controller
    from tidelog.controller.broker_watch import BrokerWatch
    from tidelog.controller.cluster_view import ClusterView
    from tidelog.log import LogManager


@dataclass(frozen=True, slots=True)
class FeatureRange:
    """The supported levels of one cluster feature (KIP-584), and the active one; 0 means off."""

    version_min: int
    version_max: int
    finalized: int = 0


@dataclass(slots=True, kw_only=True)
class BrokerServices:
    """The parts of one broker."""

    node_id: int
    clock: Clock
    settings: Settings
    table: SettingsTable
    # The cluster as this broker knows it.
    cluster: ClusterView
    # What changes the cluster, if this broker is its controller.
    controller: Controller
    # The way to the controller, wherever it is.
    channel: ControllerChannel
    forwarder: Forwarder
    # The controller's eye on the other brokers.
    broker_watch: BrokerWatch
    # Connections to the other brokers.
    peers: Peers
    # This broker's registration with the controller, and its epoch.
    registration: Registration
    logs: LogManager
    replicas: ReplicaManager
    producer_ids: ProducerIdAllocator
    groups: GroupService
    transactions: TransactionService
    auto_topic_creation: AutoTopicCreation
    features: dict[str, FeatureRange] = field(default_factory=dict)
    metadata_view: MetadataView = field(default_factory=MetadataView)
