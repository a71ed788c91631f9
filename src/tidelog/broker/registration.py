"""Keeps this broker registered with the controller, under the epoch that all of its requests to the controller carry.

What always holds: a broker whose session was lost, or that the controller has fenced, serves nothing until it is
registered again under a new epoch (KAFKA-2729), unless it is the only one of its cluster. A broker registers after its
logs are open, and says in which epoch it shut down cleanly, if it did (KIP-966).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidelog.common.background import start_background, stop_background
from tidelog.controller import layout
from tidelog.controller.membership import is_same_process
from tidelog.metadata.store import MetadataStoreError
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages.k62_broker_registration import (
    BROKER_REGISTRATION,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from tidelog.protocol.messages.k63_broker_heartbeat import (
    BROKER_HEARTBEAT,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.controller_channel import ControllerChannel
    from tidelog.broker.replica_manager import ReplicaManager
    from tidelog.controller.cluster_view import ClusterView
    from tidelog.controller.image import BrokerInfo, ClusterImage
    from tidelog.controller.membership import Member, Membership
    from tidelog.metadata.store import Store

logger = logging.getLogger(__name__)

REGISTRATION_TIMEOUT_S: Final = 20.0
"""How long one attempt takes at most: the controller may have to write the states of thousands of partitions."""

_RETRY_PAUSE_S: Final = 0.5
_SHUTDOWN_PAUSE_S: Final = 0.1
"""How long to wait before asking again whether all leaderships have moved."""

_FENCED_CHECK_S: Final = 1.0
_STORE_TIMEOUT_S: Final = 2.0

NO_EPOCH: Final = -1

_FINAL_REFUSALS: Final = frozenset(
    {ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REGISTRATION}
)
"""Refusals that no retry will change."""


class Registration:
    """This broker's registration; `epoch` is the newest that it was given."""

    def __init__(
        self,
        channel: ControllerChannel,
        cluster: ClusterView,
        membership: Membership,
        replicas: ReplicaManager,
        *,
        store: Store,
        is_in_touch: Callable[[], bool],
    ) -> None:
        """`is_in_touch` tells whether this broker hears what the controller decides about it."""
        self.epoch = NO_EPOCH
        self._store = store
        self._is_in_touch = is_in_touch
        self._channel = channel
        self._cluster = cluster
        self._membership = membership
        self._replicas = replicas
        self._node_id = replicas.node_id
        self._broker: BrokerInfo | None = None
        # The epoch before, if nothing that was written under it can be lost.
        self._previous_epoch = NO_EPOCH
        self._member: Member | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def register(self, broker: BrokerInfo, *, previous_epoch: int, timeout_s: float) -> None:
        """Register for the first time, and stay registered from then on; raises KafkaError.

        `previous_epoch` is the one that the broker shut down cleanly with, NO_EPOCH if it didn't.
        """
        self._broker = broker
        self._previous_epoch = previous_epoch
        try:
            async with asyncio.timeout(timeout_s):
                await self._register()
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"the controller did not register this broker within {timeout_s:g} s"
            ) from None
        self._keeper = start_background(self._stay_registered(), "registration")

    async def close(self) -> None:
        await stop_background(self._keeper)

    async def shut_down(self, timeout_s: float) -> bool:
        """Have others take over what this broker leads; False when that was not done in time.

        The broker serves what it still leads meanwhile, and must stop afterwards. One that loses its registration leads
        nothing any more, and stops at once: nobody would answer it for as long as the metadata store is away.
        """
        await self.close()
        handing_over = asyncio.ensure_future(self._hand_over(timeout_s))
        lost = asyncio.ensure_future(self._wait_for_loss())
        try:
            await asyncio.wait((handing_over, lost), return_when=asyncio.FIRST_COMPLETED)
            if handing_over.done():
                return handing_over.result()
            logger.info("broker %d is fenced, and has nothing left to hand over", self._node_id)
            return False
        finally:
            for task in (handing_over, lost):
                task.cancel()
            await asyncio.wait((handing_over, lost))

    async def _hand_over(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if await self._may_stop(timeout_s):
                        return True
                    await asyncio.sleep(_SHUTDOWN_PAUSE_S)
        except TimeoutError:
            return False
        except KafkaError as error:
            logger.warning("stopping without the controller's consent: %s", error)
            return False

    async def learn_last_epoch(self) -> None:
        """Take over the epoch of a registration of this process that was carried out, though nobody told it so.

        For a clean stop: its marker would name an older epoch, and the next start would count as one after a crash.
        """
        key = layout.broker_key(self._node_id)
        try:
            async with asyncio.timeout(_STORE_TIMEOUT_S):
                rec = await self._store.get(key)
        except (MetadataStoreError, TimeoutError) as error:
            logger.info("broker %d can't look up its registration: %s", self._node_id, error)
            return
        broker = None if rec is None else layout.parse_broker(key, layout.decode(rec.value))
        if broker is None or self._member is None or broker.epoch <= self.epoch:
            return
        if is_same_process(broker.incarnation, self._member.incarnation):
            self.epoch = broker.epoch

    async def _may_stop(self, timeout_s: float) -> bool:
        request = BrokerHeartbeatRequest(
            broker_id=self._node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self._cluster.image.revision,
            want_shut_down=True,
        )
        response = await self._channel.call(BROKER_HEARTBEAT, request, BrokerHeartbeatResponse, timeout_s=timeout_s)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code))
        return response.should_shut_down

    async def _stay_registered(self) -> None:
        while True:
            await self._wait_for_loss()
            self._set_serving(False)
            self._replicas.fence()
            while True:
                try:
                    await self._register()
                    break
                except KafkaError as error:
                    logger.error("broker %d can't register again: %s", self._node_id, error)
                    await asyncio.sleep(_RETRY_PAUSE_S)
            self._set_serving(True)

    def _set_serving(self, is_serving: bool) -> None:
        # A broker alone in its cluster has nobody who could take over, so it keeps serving without the store.
        others = any(node_id != self._node_id for node_id in self._cluster.image.brokers)
        self._replicas.is_fenced = others and not is_serving

    async def _wait_for_loss(self) -> None:
        """Wait until the session is lost, or this registration is no longer valid, by the image or by the store."""
        assert self._member is not None
        losses = [
            asyncio.ensure_future(self._member.wait_until_lost()),
            asyncio.ensure_future(self._cluster.wait_for(lambda image: not self._is_registered(image))),
            asyncio.ensure_future(self._wait_until_fenced_unheard()),
        ]
        try:
            await asyncio.wait(losses, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for loss in losses:
                loss.cancel()

    async def _wait_until_fenced_unheard(self) -> None:
        """Wait until the store says that this registration is fenced: a broker that is cut off hears it nowhere else.

        What others lead by now it must not serve any longer, though its session goes on.
        """
        key = layout.broker_key(self._node_id)
        while True:
            await asyncio.sleep(_FENCED_CHECK_S)
            if self._is_in_touch():
                continue
            try:
                rec = await self._store.get(key)
            except MetadataStoreError:
                continue  # the session tells how long it may go on
            broker = None if rec is None else layout.parse_broker(key, layout.decode(rec.value))
            # An old answer shows an older epoch.
            if broker is not None and broker.epoch >= self.epoch and (broker.fenced or broker.epoch > self.epoch):
                logger.warning("broker %d can't reach the controller, and is fenced", self._node_id)
                return

    def _is_registered(self, image: ClusterImage) -> bool:
        broker = image.brokers.get(self._node_id)
        return broker is not None and broker.epoch >= self.epoch and not broker.fenced

    async def _register(self) -> None:
        """Register this session of the broker, and wait until the broker knows of it itself."""
        while True:
            member = self._membership.current
            if member is None:
                member = await self._membership.wait_for_next(self._member)
            try:
                response = await self._channel.call(
                    BROKER_REGISTRATION,
                    self._request(member),
                    BrokerRegistrationResponse,
                    timeout_s=REGISTRATION_TIMEOUT_S,
                )
                error = ErrorCode(response.error_code)
            except KafkaError as refusal:
                error = refusal.code
            if error is ErrorCode.NONE:
                break
            if error in _FINAL_REFUSALS:
                raise KafkaError(error, f"the controller refuses this broker: {error.description}")
            logger.warning("broker %d is not registered yet: %s", self._node_id, error.description)
            await asyncio.sleep(_RETRY_PAUSE_S)
        self.epoch = self._previous_epoch = response.broker_epoch
        self._member = member
        self._replicas.session = member.session
        self._replicas.on_registered(self.epoch)
        logger.info("broker %d is registered with epoch %d", self._node_id, self.epoch)
        await self._cluster.wait_for(self._knows_of_registration)

    def _knows_of_registration(self, image: ClusterImage) -> bool:
        broker = image.brokers.get(self._node_id)
        return broker is not None and broker.epoch >= self.epoch

    def _request(self, member: Member) -> BrokerRegistrationRequest:
        assert self._broker is not None  # `register` has set it
        broker = replace(self._broker, incarnation=member.incarnation)
        return BrokerRegistrationRequest(
            broker_id=broker.node_id,
            cluster_id=self._cluster.image.cluster_id,
            incarnation_id=broker.incarnation,
            listeners=[Listener(name=name, host=host, port=port) for name, host, port in broker.endpoints],
            features=[
                Feature(name=name, min_supported_version=first, max_supported_version=last)
                for name, (first, last) in broker.features.items()
            ],
            rack=broker.rack,
            log_dirs=list(broker.directories),
            previous_broker_epoch=self._previous_epoch,
        )
