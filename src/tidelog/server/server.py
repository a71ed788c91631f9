"""Assembles a broker from store, controller, logs, replicas and network, and starts and stops them in order.

What always holds: a client is served only after every log is open and the broker is registered; after `stop` every
acknowledged record is flushed and the clean-shutdown marker is written, so the next start has nothing to recover; a
failed start leaves nothing open. Signals, standard output and the process itself are handled by `serve`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from collections import Counter
from collections.abc import Collection
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from tidelog.broker import handlers
from tidelog.broker.auto_create import AutoTopicCreation
from tidelog.broker.cluster_follower import ClusterFollower
from tidelog.broker.connection_set import ConnectionSet, NetworkLimits
from tidelog.broker.controller_channel import RoutedControllerChannel
from tidelog.broker.dispatch import Dispatcher
from tidelog.broker.forwarding import Forwarder
from tidelog.broker.group_service import GroupService
from tidelog.broker.listener import Listener, bind
from tidelog.broker.peers import Peers
from tidelog.broker.producer_ids import ProducerIdAllocator, allocate_block
from tidelog.broker.registration import NO_EPOCH, Registration
from tidelog.broker.replica_manager import ReplicaManager
from tidelog.broker.services import BrokerServices, FeatureRange
from tidelog.broker.topic_config import LogConfigs, broker_value
from tidelog.broker.topic_creation import TopicCreation
from tidelog.broker.txn_coordinators import TransactionCoordinators
from tidelog.broker.txn_markers import ClusterMarkerWriter
from tidelog.broker.txn_service import TransactionService
from tidelog.common.clock import Clock, SystemClock
from tidelog.common.durable_files import make_directory
from tidelog.common.endpoint import Endpoint, parse_endpoint
from tidelog.common.ids import uuid_to_text
from tidelog.common.scheduler import Scheduler
from tidelog.common.settings import Settings
from tidelog.controller import BrokerInfo, ClusterImage, Controller
from tidelog.controller.broker_watch import BrokerWatch
from tidelog.controller.image import EMPTY_IMAGE
from tidelog.controller.membership import Membership
from tidelog.coordinator.transaction import TRANSACTION_VERSION_2
from tidelog.log import DataDirectoryError, LogManager
from tidelog.log.checkpoints import PARTITION_METADATA_FILE
from tidelog.metadata import MetadataStoreError, Store
from tidelog.metadata.opening import make_store, metadata_file
from tidelog.protocol import KafkaError
from tidelog.server.dynamic_settings import DynamicSettings
from tidelog.server.foreign_data import foreign_data_problem

logger = logging.getLogger(__name__)

DEFAULT_DATA_DIR = Path("tidelog-data")

# How long a shutdown waits for requests in progress; clients retry those that are cut off.
_DRAIN_DEADLINE_S = 5.0

# How long a shutdown waits for other brokers to take over what this one leads.
_HAND_OVER_DEADLINE_S = 30.0

# How long a start waits for the controller: it may be starting itself.
_IMAGE_DEADLINE_S = 60.0
_REGISTRATION_DEADLINE_S = 60.0
# How often an idle broker asks the controller for news in the time after which it would count as cut off.
_QUESTIONS_PER_SESSION = 3

_WILDCARD_HOSTS = ("", "0.0.0.0", "::")


class StartError(Exception):
    """The broker can't start. The text says why and what to do about it."""


class BrokerServer:
    """A broker on the running event loop. It is started once; a restart is a new object."""

    def __init__(self, settings: Settings, data_dir: Path = DEFAULT_DATA_DIR, clock: Clock | None = None) -> None:
        self.settings = settings
        self.data_dir = data_dir
        self.clock = clock or SystemClock()
        self.node_id = settings.get_int("node.id")
        # The first address that clients can connect to, with the port that was taken.
        self.endpoint = Endpoint("", "", 0)
        # The addresses for other brokers and clients, one for each listener.
        self._endpoints: tuple[Endpoint, ...] = ()
        self._services: BrokerServices | None = None
        self._dispatcher: Dispatcher | None = None
        self._connections: ConnectionSet | None = None
        self._listeners: list[Listener] = []
        # What is open, in the order it was opened; it is closed in the reverse order.
        self._open = AsyncExitStack()
        self._is_clean = False

    @property
    def services(self) -> BrokerServices:
        if self._services is None:
            raise RuntimeError("the broker is not running")
        return self._services

    @property
    def connections(self) -> ConnectionSet:
        if self._connections is None:
            raise RuntimeError("the broker is not running")
        return self._connections

    @property
    def broker_epoch(self) -> int:
        """The epoch of its last registration; -1 before the first one."""
        return -1 if self._services is None else self._services.registration.epoch

    async def start(self) -> None:
        """Open everything and accept clients; raises StartError, and leaves nothing open then."""
        try:
            await self._start()
        except (DataDirectoryError, MetadataStoreError) as error:
            await self._open.aclose()
            raise StartError(str(error)) from error
        except BaseException:
            await self._open.aclose()
            raise

    async def stop(self) -> None:
        """Hand over what this broker leads, answer what was asked, flush, and close with the clean-shutdown marker."""
        services = self.services
        if any(each.is_active and each.node_id != self.node_id for each in services.cluster.image.brokers.values()):
            await services.registration.shut_down(_HAND_OVER_DEADLINE_S)
        for listener in self._listeners:
            listener.close()
        await self.connections.drain(_DRAIN_DEADLINE_S)
        # The cluster carries on without this broker while it flushes.
        await services.registration.close()
        await services.registration.learn_last_epoch()
        await services.controller.close()
        await services.controller.membership.close()
        self._is_clean = True
        await self._open.aclose()

    async def abort(self) -> None:
        """Drop everything as a crash would: no answers, no flush, no marker. What the kernel has, stays."""
        await self._open.aclose()

    async def _start(self) -> None:
        limits = NetworkLimits.from_settings(self.settings)
        sockets = self._bind(limits)
        logs = self._lock_logs()
        store = await self._open_store()
        controller = await self._join_cluster(store)
        services = self._services = self._make_services(controller, logs, store)
        await self._wait_for_image(controller)
        image = services.cluster.image
        logs.directories.identify(image.cluster_id, self.node_id)
        self._make_listeners(limits, sockets, services)
        if controller.is_active and any(node_id != self.node_id for node_id in image.brokers):
            # The others need their controller, however long it takes to open the logs.
            self._listen(serves_clients=False)
        directory_ids = await self._load_logs(logs, services)
        await self._register(logs, services, directory_ids)
        await services.replicas.settled()
        services.groups.start()
        services.transactions.start()
        self._start_background_tasks(logs, controller)
        self._listen(serves_clients=True)

    def _bind(self, limits: NetworkLimits) -> list[tuple[str, socket.socket]]:
        """Bind the ports first: another running broker is the most likely reason why a start fails."""
        sockets = []
        bound = []
        for text in self.settings["listeners"]:
            endpoint = parse_endpoint(text)
            try:
                sock = bind(endpoint, backlog=limits.listen_backlog, receive_buffer_bytes=limits.receive_buffer_bytes)
            except OSError as error:
                raise StartError(
                    f"can't listen on {endpoint.host}:{endpoint.port}: {error.strerror}; "
                    "stop the program that uses the port, or choose another with --listen"
                ) from error
            self._open.callback(sock.close)
            sockets.append((endpoint.listener_name, sock))
            host, port = sock.getsockname()[:2]
            bound.append(Endpoint(endpoint.listener_name, endpoint.host or host, port))
        self.endpoint = bound[0]
        self._endpoints = tuple(self._advertised(endpoint) for endpoint in bound)
        return sockets

    def _advertised(self, bound: Endpoint) -> Endpoint:
        """The address for those who should connect to this listener."""
        for text in self.settings["advertised.listeners"] or ():
            endpoint = parse_endpoint(text)
            if endpoint.listener_name == bound.listener_name:
                return endpoint._replace(port=endpoint.port or bound.port)
        if bound.host in _WILDCARD_HOSTS:
            # Clients can't connect to "everywhere"; the machine's name is what they most likely know it by.
            return bound._replace(host=socket.gethostname())
        return bound

    def _inter_broker_endpoint(self) -> Endpoint:
        name = self.settings["inter.broker.listener.name"] or self._endpoints[0].listener_name
        for endpoint in self._endpoints:
            if endpoint.listener_name == name:
                return endpoint
        raise StartError(f"inter.broker.listener.name={name}: no listener has this name")

    def _lock_logs(self) -> LogManager:
        """Lock the data directory before opening the store, so that a second broker on it fails immediately."""
        if self.settings.is_set("log.dirs"):
            log_dirs = [Path(text) for text in self.settings["log.dirs"]]
        else:
            log_dirs = [self.data_dir / f"broker-{self.node_id}"]
        stored = metadata_file(self.settings["tidelog.metadata"], self.data_dir)
        problem = foreign_data_problem(self.data_dir, log_dirs, stored)
        if problem is not None:
            raise StartError(problem)
        logs = LogManager(log_dirs, self.settings, self.clock)
        self._open.callback(logs.directories.unlock)
        logs.directories.lock()
        return logs

    async def _open_store(self) -> Store:
        try:
            make_directory(self.data_dir)
        except OSError as error:
            raise StartError(f"can't use the data directory {self.data_dir}: {error.strerror}") from error
        try:
            store = make_store(self.settings["tidelog.metadata"], self.data_dir)
        except ValueError as error:
            raise StartError(f"--metadata: {error}") from error
        self._open.push_async_callback(store.close)
        return store

    async def _join_cluster(self, store: Store) -> Controller:
        """Claim the node id, and stand for election: somebody has to be the controller, or become it."""
        membership = Membership(store, self.node_id)
        await membership.join()
        self._open.push_async_callback(membership.close)
        controller = Controller(
            store,
            self.clock,
            self.settings,
            node_id=self.node_id,
            membership=membership,
            endpoint=self._inter_broker_endpoint(),
        )
        await controller.start()
        self._open.push_async_callback(controller.close)
        return controller

    async def _wait_for_image(self, controller: Controller) -> None:
        """Wait until it is known what the cluster looks like, by this broker's own controller or another one."""
        if await controller.view.wait_for(lambda image: bool(image.cluster_id), _IMAGE_DEADLINE_S):
            return
        location = controller.location.value
        where = "nobody is elected"
        if location is not None:
            where = f"broker {location.node_id} at {location.host}:{location.port}"
        raise StartError(
            f"the controller of the cluster ({where}) can't be reached for {_IMAGE_DEADLINE_S:g} s: is it running, and "
            "does its inter-broker listener have an address that this machine can connect to?"
        )

    async def _load_logs(self, logs: LogManager, services: BrokerServices) -> list[uuid.UUID]:
        """Open all logs, and follow the image from then on; returns the ids of the data directories."""
        cluster = services.cluster
        image = cluster.image
        logs.recovery_threads = broker_value(self.settings, image, "num.recovery.threads.per.data.dir")
        log_configs = LogConfigs(self.settings, self.settings.table)
        configs = {topic: log_configs.effective(image, topic) for topic in image.topics}
        topic_ids = {topic.name: topic.topic_id for topic in image.topics.values()}
        await asyncio.to_thread(logs.load, configs, topic_ids)
        # Topics may have come and gone meanwhile.
        image = cluster.image
        deleted = {*cluster.deleted_topic_ids, *(set(topic_ids.values()) - set(image.topics_by_id))}
        await asyncio.to_thread(_take_out_strangers, logs, image, deleted)
        directory_ids = _withhold_unreachable(logs, image, self.node_id)
        self._open.callback(cluster.subscribe(services.replicas.apply))
        services.replicas.apply(EMPTY_IMAGE, cluster.image)
        return directory_ids

    async def _close_logs(self, logs: LogManager) -> None:
        await asyncio.to_thread(logs.close, clean=self._is_clean, broker_epoch=self.broker_epoch)

    async def _register(self, logs: LogManager, services: BrokerServices, directory_ids: list[uuid.UUID]) -> None:
        """From here on the broker counts as alive."""
        broker = BrokerInfo(
            self.node_id,
            -1,
            self._endpoints,
            self.settings["broker.rack"],
            directories=tuple(directory_ids),
            features={name: (each.version_min, each.version_max) for name, each in services.features.items()},
        )
        # Replicas in a directory that can't be used are not what they were: others lead, where they can.
        epochs = {
            None if directory.offline_reason else directory.clean_shutdown_epoch for directory in logs.directories
        }
        (previous_epoch,) = epochs if logs.was_clean_shutdown and len(epochs) == 1 else (NO_EPOCH,)
        self._open.push_async_callback(services.registration.close)
        try:
            await services.registration.register(
                broker,
                previous_epoch=NO_EPOCH if previous_epoch is None else previous_epoch,
                timeout_s=_REGISTRATION_DEADLINE_S,
            )
        except KafkaError as error:
            raise StartError(f"this broker can't become a member of its cluster: {error}") from error

    def _make_services(self, controller: Controller, logs: LogManager, store: Store) -> BrokerServices:
        """Put the parts together that need no open log to be made."""
        handlers.load_all()
        cluster = controller.view
        table = self.settings.table
        peers = Peers(self.node_id, self._inter_broker_endpoint().listener_name)
        self._open.push_async_callback(peers.close)
        peers.follow(cluster.image)
        self._open.callback(cluster.subscribe(lambda old, new: peers.follow(new)))
        session_ms = self.settings.get_int("broker.session.timeout.ms")
        follower = ClusterFollower(
            self.node_id, controller, peers, cluster, max_wait_s=session_ms / _QUESTIONS_PER_SESSION / 1000
        )
        self._open.push_async_callback(follower.close)
        follower.start()
        broker_watch = BrokerWatch(controller, store, self.node_id, silence_max_ms=session_ms)
        self._open.push_async_callback(broker_watch.close)
        broker_watch.start()
        self._open.push_async_callback(self._close_logs, logs)
        replicas = ReplicaManager(
            node_id=self.node_id, logs=logs, settings=self.settings, table=table, clock=self.clock
        )
        self._open.push_async_callback(replicas.close)
        channel = RoutedControllerChannel(lambda: self.services, controller, peers)
        replicas.start_replication(peers, channel)
        registration = Registration(
            channel,
            cluster,
            controller.membership,
            replicas,
            store=store,
            is_in_touch=lambda: follower.is_in_touch(session_ms / 1000),
        )
        creation = TopicCreation(channel, cluster, replicas)
        auto_topic_creation = AutoTopicCreation(creation)
        self._open.push_async_callback(auto_topic_creation.close)
        producer_ids = ProducerIdAllocator(lambda: allocate_block(channel, self.node_id, registration.epoch))
        self._open.push_async_callback(producer_ids.close)
        groups = GroupService(
            settings=self.settings, clock=self.clock, cluster=cluster, creation=creation, replicas=replicas
        )
        self._open.push_async_callback(groups.close)
        markers = ClusterMarkerWriter(replicas, peers)
        self._open.push_async_callback(markers.close)
        transactions = TransactionService(
            settings=self.settings,
            clock=self.clock,
            cluster=cluster,
            creation=creation,
            replicas=replicas,
            producer_ids=producer_ids,
            markers=markers,
        )
        self._open.push_async_callback(transactions.close)
        replicas.transactions.verifier = TransactionCoordinators(transactions, replicas, peers)
        return BrokerServices(
            node_id=self.node_id,
            clock=self.clock,
            settings=self.settings,
            table=table,
            cluster=cluster,
            controller=controller,
            channel=channel,
            forwarder=Forwarder(channel, cluster, replicas),
            broker_watch=broker_watch,
            peers=peers,
            registration=registration,
            logs=logs,
            replicas=replicas,
            producer_ids=producer_ids,
            groups=groups,
            transactions=transactions,
            auto_topic_creation=auto_topic_creation,
            features={
                # Level 1 is the protocol of groups in which the broker assigns (KIP-848).
                "group.version": FeatureRange(0, 1, 1),
                "transaction.version": FeatureRange(0, TRANSACTION_VERSION_2, TRANSACTION_VERSION_2),
            },
        )

    def _start_background_tasks(self, logs: LogManager, controller: Controller) -> None:
        scheduler = Scheduler(self.clock)
        for task in (*logs.background_tasks(), *self.services.replicas.background_tasks()):
            scheduler.every(task.name, task.interval_ms, task.run, first_after_ms=task.first_after_ms)
        if self.settings.get_bool("auto.leader.rebalance.enable"):
            interval_ms = self.settings.get_int("leader.imbalance.check.interval.seconds") * 1000
            scheduler.every("leader balancing", interval_ms, controller.balance_leaders)
        scheduler.start()
        self._open.push_async_callback(scheduler.close)
        # A compaction may take minutes. It is told to stop, so that the scheduler doesn't wait for all of it.
        self._open.callback(logs.cleaner.stop)

    def _make_listeners(
        self, limits: NetworkLimits, sockets: list[tuple[str, socket.socket]], services: BrokerServices
    ) -> None:
        loop = asyncio.get_running_loop()
        dispatcher = self._dispatcher = Dispatcher(services, loop, answer_bytes_max=limits.queued_response_bytes_max)
        connections = self._connections = ConnectionSet(limits, dispatcher, loop)
        self._open.callback(connections.close)
        self._follow_settings(services, connections)
        for listener_name, sock in sockets:
            listener = Listener(sock, listener_name, connections, loop)
            self._open.callback(listener.close)
            self._listeners.append(listener)

    def _listen(self, *, serves_clients: bool) -> None:
        assert self._dispatcher is not None  # it comes with the listeners
        self._dispatcher.serves_clients = serves_clients
        for listener in self._listeners:
            listener.start()

    def _follow_settings(self, services: BrokerServices, connections: ConnectionSet) -> None:
        """Apply settings that are changed while the broker runs."""
        logs, transactions = services.logs, services.replicas.transactions

        def limit_connections(count: int) -> None:
            connections.change_limits(replace(connections.limits, connections_max=count))

        def limit_connections_per_ip(count: int) -> None:
            connections.change_limits(replace(connections.limits, connections_max_per_ip=count))

        def expire_producers_after(expiration_ms: int) -> None:
            logs.producer_expiration_ms = expiration_ms

        def verify_transactions(is_enabled: bool) -> None:
            transactions.is_enabled = is_enabled

        dynamic = DynamicSettings(
            self.settings,
            {
                "max.connections": limit_connections,
                "max.connections.per.ip": limit_connections_per_ip,
                "producer.id.expiration.ms": expire_producers_after,
                "transaction.partition.verification.enable": verify_transactions,
            },
        )
        dynamic.follow(EMPTY_IMAGE, services.cluster.image)
        self._open.callback(services.cluster.subscribe(dynamic.follow))


def _withhold_unreachable(logs: LogManager, image: ClusterImage, node_id: int) -> list[uuid.UUID]:
    """Don't recreate partitions whose data directory is missing; returns the ids of all directories.

    A disk that is not mounted looks like an empty directory. What gives it away is that a directory id of the last
    registration is missing. That id stays registered as long as partitions are missing, across any number of restarts.
    Partitions of which other brokers have in-sync replicas are copied from those again.
    """
    there = [directory.directory_id for directory in logs.directories.online if directory.directory_id is not None]
    registered = image.brokers[node_id].directories if node_id in image.brokers else ()
    missing = [directory_id for directory_id in registered if directory_id not in there]
    if not missing:
        return there
    names = ", ".join(map(uuid_to_text, missing))
    reason = f"its data directory is missing or can't be used (directory.id {names})"
    withheld: Counter[str] = Counter()
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            is_last_copy = not any(member != node_id for member in state.isr)
            if node_id in state.replicas and is_last_copy and not logs.has(topic.name, index):
                logs.withhold(topic.name, index, reason)
                withheld[topic.name] += 1
    if not withheld:
        return there
    logger.error(
        "%d partitions of %d topics are offline because a data directory of this broker is missing or can't be used "
        "(directory.id %s in its meta.properties): bring it back and restart the broker, or delete these topics",
        withheld.total(),
        len(withheld),
        names,
    )
    return there + missing


def _take_out_strangers(logs: LogManager, image: ClusterImage, deleted_topic_ids: Collection[uuid.UUID]) -> None:
    """Handle partitions without a topic: delete those of deleted topics, and refuse or set aside the others."""
    removed: Counter[str] = Counter()
    for log in logs.logs():
        topic = image.topics_by_id.get(log.topic_id) if log.topic_id is not None else image.topics.get(log.topic)
        if topic is not None and topic.name == log.topic and log.partition < len(topic.partitions):
            continue
        if log.topic_id in deleted_topic_ids:
            logs.delete(log.topic, log.partition)
            removed[log.topic] += 1
            continue
        namesake = image.topics.get(log.topic)
        if log.topic_id is not None and namesake is not None and log.partition < len(namesake.partitions):
            # A recreated partition would be empty and assign its offsets again.
            logs.refuse(
                log,
                f"{log.directory / PARTITION_METADATA_FILE} has topic id {uuid_to_text(log.topic_id)}, the cluster's "
                f"topic has {uuid_to_text(namesake.topic_id)}; restore the file, or remove the directory to start the "
                "partition empty",
            )
            continue
        # Either the topic was deleted long ago and its files could not be, or the metadata is older than the partition.
        # Only a person can tell which, so nothing is deleted here.
        path = logs.set_aside(log.topic, log.partition)
        logger.warning("%s-%d belongs to no topic of this cluster; set aside as %s", log.topic, log.partition, path)
    for name, count in removed.items():
        logger.info("removed the files of %d partitions of the deleted topic %s", count, name)
