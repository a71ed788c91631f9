"""How the parts of a broker send requests to the cluster's controller, wherever it runs.

What always holds: a request is handled by the handler of its API, as if a client had sent it, so what the controller
decides does not depend on who is asked; the answer is that of an active controller; where there is none, the channel
waits for one to be elected until the time is up, and then raises KafkaError. A request may be carried out twice when
its first answer is lost, so it must not matter: requests to the controller carry epochs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidelog.broker.registry import find_handler
from tidelog.broker.request_context import RequestContext
from tidelog.common.steps import run_with_pauses
from tidelog.protocol import Api, ErrorCode, KafkaError

if TYPE_CHECKING:
    from tidelog.broker.services import BrokerServices

ResponseT = TypeVar("ResponseT")


class ControllerChannel(Protocol):
    """Requests to the controller."""

    async def call(self, api: Api, request: object, response_class: type[ResponseT], *, timeout_s: float) -> ResponseT:
        """The controller's answer.

        Raises KafkaError: NOT_CONTROLLER when no controller was found in time, REQUEST_TIMED_OUT when it did not answer
        in time. Errors that the controller answers are in the response.
        """
        ...


class LocalControllerChannel:
    """The channel of a broker whose own process has the only controller."""

    def __init__(self, services: Callable[[], BrokerServices]) -> None:
        """`services` is called with each request: they are put together after the parts that use the channel."""
        self._services = services

    async def call(self, api: Api, request: object, response_class: type[ResponseT], *, timeout_s: float) -> ResponseT:
        try:
            async with asyncio.timeout(timeout_s):
                response = await handle_locally(api, request, self._services())
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"The controller did not answer {api.name} within {timeout_s:g} s."
            ) from None
        if not isinstance(response, response_class):
            raise TypeError(f"{api.name} is answered by {type(response).__name__}, not by {response_class.__name__}")
        return response


async def handle_locally(api: Api, request: object, services: BrokerServices) -> object:
    """Have this broker's own handler answer, in the newest version it serves; raises what the handler raises."""
    handler = find_handler(api.key)
    if handler is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"This broker does not serve {api.name}.")
    result: Any = handler.handle(request, RequestContext(api, handler.version_max, services))
    while isinstance(result, (GeneratorType, CoroutineType, asyncio.Future)):
        result = await (run_with_pauses(result) if isinstance(result, GeneratorType) else result)
    return result
