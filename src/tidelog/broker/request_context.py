"""What a handler knows about a request besides its body: the client, the version, and the services it may use.

What always holds: a context belongs to one request; the session belongs to the connection and outlives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.common.light_dataclass import dataclass

if TYPE_CHECKING:
    from tidelog.broker.memory import HeldRequest
    from tidelog.broker.services import BrokerServices
    from tidelog.protocol import Api

ANONYMOUS = "User:ANONYMOUS"

BROKER_SOFTWARE_NAME: Final = "tidelog-broker"
"""What a broker calls itself in ApiVersions; the requests that only brokers send are listed for this name alone."""


@dataclass(slots=True)
class ClientSession:
    """What is known about the client of one connection."""

    client_host: str = ""
    listener_name: str = "PLAINTEXT"
    principal: str = ANONYMOUS
    # As the client identifies itself in ApiVersions (KIP-511); "unknown" until then.
    client_software_name: str = "unknown"
    client_software_version: str = "unknown"
    # Set by a handler that waits: called when another request has arrived, which has to wait for its answer.
    on_next_request: Callable[[], None] | None = None


class RequestHolder(Protocol):
    """The connection that a request came over: it counts the memory that its requests take."""

    def hold_request(self, size_bytes: int) -> HeldRequest: ...


@dataclass(slots=True)
class RequestContext:
    """The context of one request."""

    api: Api
    version: int
    services: BrokerServices
    correlation_id: int = 0
    client_id: str | None = None
    session: ClientSession = field(default_factory=ClientSession)
    holder: RequestHolder | None = None
    request_bytes: int = 0
    _held: HeldRequest | None = None

    def hold_request(self) -> None:
        """Count the request's bytes as memory in use, as its handler needs them after it has returned."""
        if self._held is None and self.holder is not None:
            self._held = self.holder.hold_request(self.request_bytes)

    def release_request(self) -> None:
        """The request's bytes are not needed any more, and nothing refers to them; may be called again."""
        if self._held is not None:
            self._held.release()

    @property
    def client_host(self) -> str:
        return self.session.client_host

    @property
    def principal(self) -> str:
        return self.session.principal

    @property
    def listener_name(self) -> str:
        return self.session.listener_name
