"""What a handler knows about the request besides its body: who asked, in which version, and what may be used to answer.

What always holds: a context belongs to one request; the session belongs to the connection and outlives it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.broker.services import BrokerServices
    from tidelog.protocol import Api

ANONYMOUS = "User:ANONYMOUS"


@dataclass(slots=True)
class ClientSession:
    """What is known of the client at the other end of one connection."""

    client_host: str = ""
    listener_name: str = "PLAINTEXT"
    principal: str = ANONYMOUS
    # As the client names itself in ApiVersions (KIP-511); "unknown" until it did.
    client_software_name: str = "unknown"
    client_software_version: str = "unknown"


@dataclass(slots=True)
class RequestContext:
    """One request's surroundings."""

    api: Api
    version: int
    services: BrokerServices
    correlation_id: int = 0
    client_id: str | None = None
    session: ClientSession = field(default_factory=ClientSession)

    @property
    def client_host(self) -> str:
        return self.session.client_host

    @property
    def principal(self) -> str:
        return self.session.principal

    @property
    def listener_name(self) -> str:
        return self.session.listener_name
