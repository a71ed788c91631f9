"""A broker that clients reach only through a proxy, which can break their connections."""

from __future__ import annotations

from dataclasses import dataclass

from tcp_proxy import TcpProxy
from tidelog.bench.brokers import BrokerProcess


@dataclass(frozen=True, slots=True)
class ProxiedCluster:
    """The broker advertises the proxy's address, so that clients stay behind it."""

    broker: BrokerProcess
    proxy: TcpProxy

    @property
    def bootstrap(self) -> str:
        return self.proxy.address

    def cut_off(self) -> None:
        """No client reaches the broker any more, until the proxy is reset; quicker than to kill it and start it."""
        self.proxy.refusing = True
        self.proxy.cut_all()
