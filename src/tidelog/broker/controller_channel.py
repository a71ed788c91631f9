"""How the parts of a broker send requests to the cluster's controller, wherever it runs.

What always holds: a request is handled by the handler of its API, as if a client had sent it, so what the controller
decides does not depend on who is asked; the answer is that of an active controller; where there is none, the channel
waits for one to be elected, and then raises KafkaError; a controller that was replaced is not waited for. A request may
be carried out twice when its first answer is lost, so it must not matter: requests to the controller carry epochs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from tidelog.broker.registry import Handler, find_handler
from tidelog.broker.request_context import RequestContext
from tidelog.client.address import Address
from tidelog.client.errors import ClientError, ConnectError, RequestTimeoutError, UnsupportedVersionError
from tidelog.common.steps import run_with_pauses
from tidelog.metadata import MetadataStoreError
from tidelog.protocol import Api, ErrorCode, KafkaError, response_class

if TYPE_CHECKING:
    from tidelog.broker.peers import Peers
    from tidelog.broker.services import BrokerServices
    from tidelog.controller import Controller
    from tidelog.controller.layout import ControllerLocation

logger = logging.getLogger(__name__)

ELECTION_WAIT_S: Final = 10.0
"""How long to wait for a controller to be elected and reached: longer than a session lasts that nobody closed."""

_RETRY_PAUSE_S: Final = 0.1
"""Before the same controller is asked again that has just said that it is not the controller: the store's watch is late
by that much."""

REPLACED_GRACE_S: Final = 1.0
"""How much longer a controller that was replaced may take to answer: it answers at once, what it did or that it is none
any more, unless it is dead or cut off, which a connection may not notice for minutes."""

ResponseT = TypeVar("ResponseT")


class ControllerChannel(Protocol):
    """Requests to the controller."""

    async def call(self, api: Api, request: object, response_class: type[ResponseT], *, timeout_s: float) -> ResponseT:
        """The controller's answer.

        Raises KafkaError: NOT_CONTROLLER when no controller was found in time, REQUEST_TIMED_OUT when it did not answer
        in time. Errors that the controller answers are in the response.
        """
        ...


class RoutedControllerChannel:
    """The channel of a broker: to its own controller without the network, to another one over it."""

    def __init__(self, services: Callable[[], BrokerServices], controller: Controller, peers: Peers) -> None:
        """`services` is called with each request: they are put together after the parts that use the channel."""
        self._services = services
        self._controller = controller
        self._peers = peers

    async def call(self, api: Api, request: object, response_class: type[ResponseT], *, timeout_s: float) -> ResponseT:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        found_by_s = loop.time() + min(timeout_s, ELECTION_WAIT_S)
        while True:
            location = await self._locate(found_by_s)
            try:
                async with asyncio.timeout_at(deadline_s):
                    if self._controller.is_active:
                        response = await handle_locally(api, request, self._services())
                    else:
                        response = await self._ask(location, api, request, response_class, deadline_s - loop.time())
            except TimeoutError:
                raise _timed_out(api, timeout_s) from None
            if response is not None:
                if not isinstance(response, response_class):
                    raise TypeError(f"{api.name} is answered by {type(response).__name__}")
                if getattr(response, "error_code", ErrorCode.NONE) != ErrorCode.NOT_CONTROLLER:
                    return response
            if self._controller.location.value != location:
                found_by_s = max(found_by_s, min(deadline_s, loop.time() + ELECTION_WAIT_S))
            await self._wait_for_news(location, min(found_by_s, loop.time() + _RETRY_PAUSE_S))

    async def _ask(
        self,
        location: ControllerLocation,
        api: Api,
        request: object,
        response_class: type[ResponseT],
        timeout_s: float,
    ) -> ResponseT | None:
        """The answer, None if the broker could not be asked, or has not answered and is no longer the controller."""
        sending = asyncio.ensure_future(self._send(location, api, request, response_class, timeout_s))
        replaced = asyncio.ensure_future(self._controller.location.wait_for(lambda now: now != location))
        try:
            await asyncio.wait((sending, replaced), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                await asyncio.wait((sending,), timeout=REPLACED_GRACE_S)
            if sending.done():
                return sending.result()
            logger.info("broker %d was the controller and does not answer %s", location.node_id, api.name)
            return None
        finally:
            for task in (sending, replaced):
                task.cancel()
            await asyncio.wait((sending, replaced))

    async def _send(
        self,
        location: ControllerLocation,
        api: Api,
        request: object,
        response_class: type[ResponseT],
        timeout_s: float,
    ) -> ResponseT | None:
        """The answer, None if this broker could not be asked or has gone away."""
        self._peers.learn(location.node_id, Address(location.host, location.port))
        try:
            return await self._peers.call(location.node_id, api, request, response_class, timeout_s=timeout_s)
        except RequestTimeoutError:
            raise _timed_out(api, timeout_s) from None
        except UnsupportedVersionError as error:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error
        except ClientError as error:
            level = logging.DEBUG if isinstance(error, ConnectError) else logging.INFO
            logger.log(level, "asking the controller for %s again: %s", api.name, error)
            return None

    async def _locate(self, until_s: float) -> ControllerLocation:
        try:
            async with asyncio.timeout_at(until_s):
                location = await self._controller.location.wait_for(lambda location: location is not None)
        except TimeoutError:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "No controller was elected in time.") from None
        assert location is not None  # that is what was waited for
        return location

    async def _wait_for_news(self, last: ControllerLocation, until_s: float) -> None:
        """Wait for another controller, or for the time to ask the same one again; raises KafkaError at the end."""
        if asyncio.get_running_loop().time() >= until_s:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "No controller was found in time.")
        try:
            async with asyncio.timeout_at(until_s):
                await self._controller.location.wait_for(lambda location: location != last)
        except TimeoutError:
            return


async def handle_locally(api: Api, request: object, services: BrokerServices) -> object:
    """Have this broker's own handler answer, in the newest version it serves."""
    handler = find_handler(api.key)
    if handler is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"This broker does not serve {api.name}.")
    context = RequestContext(api, handler.version_max, services)
    try:
        return await run_handler(handler, request, context)
    except (KafkaError, MetadataStoreError) as failure:
        error = as_kafka_error(failure)
        response = failure_response(handler, error.code, error.message)
        if response is None:
            raise error from failure
        return response


def as_kafka_error(error: KafkaError | MetadataStoreError) -> KafkaError:
    """What clients and brokers are told. A store that is away may be back soon, so it is an error to retry after."""
    return error if isinstance(error, KafkaError) else KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))


async def run_handler(handler: Handler, request: object, context: RequestContext) -> object:
    """The handler's answer, in whichever way it comes to it."""
    result: Any = handler.handle(request, context)
    while isinstance(result, (GeneratorType, CoroutineType, asyncio.Future)):
        result = await (run_with_pauses(result) if isinstance(result, GeneratorType) else result)
    return result


def failure_response(handler: Handler, code: ErrorCode, message: str | None) -> object | None:
    """The response that tells of a failure of the whole request; None if responses of this API have no such field."""
    response: object = response_class(handler.api)()
    if not hasattr(response, "error_code"):
        return None
    setattr(response, "error_code", int(code))  # noqa: B010 - responses of all APIs come by here
    if hasattr(response, "error_message"):
        setattr(response, "error_message", message)  # noqa: B010
    return response


def _timed_out(api: Api, timeout_s: float) -> KafkaError:
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"The controller did not answer {api.name} within {timeout_s:g} s.")
