"""A network of its own for each broker, so that one can be cut off from some of the others and from nobody else.

What always holds: each broker is in a network namespace that is joined to a bridge by a pair of virtual interfaces; the
test is on the bridge, too, and reaches them all; what is on disks they share as ever. A cut drops packets, so nobody is
told of it. It needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN) and iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_NEEDED = "these tests give each broker a network of its own: they need root (CAP_NET_ADMIN) and network namespaces"


class NetworkNamespaces:
    """The networks of brokers 1 to `count`."""

    def __init__(self, count: int) -> None:
        self.node_ids = range(1, count + 1)
        # Names are short, and others may run the same test on this machine.
        self._name = f"tl{os.getpid() % 0xFFFFFF:x}"
        self._subnet = f"10.{64 + os.getpid() % 64}.{os.getpid() // 64 % 256}"

    def start(self) -> None:
        bridge = self._name
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{self._subnet}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for node_id in self.node_ids:
            namespace, outer = self.name_of(node_id), f"{bridge}v{node_id}"
            _ip("netns", "add", namespace)
            _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _ip("link", "set", outer, "master", bridge, "up")
            _ip("-n", namespace, "addr", "add", f"{self.address_of(node_id)}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")
            _ip("-n", namespace, "link", "set", "lo", "up")

    def stop(self) -> None:
        for node_id in self.node_ids:
            _ip("netns", "del", self.name_of(node_id), check=False)
            _ip("link", "del", f"{self._name}v{node_id}", check=False)
        _ip("link", "del", self._name, check=False)

    def name_of(self, node_id: int) -> str:
        return f"{self._name}n{node_id}"

    def address_of(self, node_id: int) -> str:
        return f"{self._subnet}.{node_id}"

    def cut(self, source: int, *targets: int) -> None:
        """Drop what one broker sends to others, which ends all connections between them in the long run."""
        for target in targets:
            _ip("-n", self.name_of(source), "route", "add", "blackhole", f"{self.address_of(target)}/32")

    def cut_off(self, node_id: int) -> None:
        """Drop all that a broker and the other ones send to each other."""
        others = [other for other in self.node_ids if other != node_id]
        self.cut(node_id, *others)
        for other in others:
            self.cut(other, node_id)

    def mend(self) -> None:
        """End all cuts."""
        for node_id in self.node_ids:
            _ip("-n", self.name_of(node_id), "route", "flush", "type", "blackhole")

    def command(self, node_id: int, command: Iterable[str]) -> list[str]:
        """The command that runs another one in a broker's network."""
        return [_program(), "netns", "exec", self.name_of(node_id), *command]


def _program() -> str:
    found = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    assert found is not None, "ip was not found: install iproute2"
    return found


def _ip(*arguments: str, check: bool = True) -> None:
    done = subprocess.run([_program(), *arguments], capture_output=True, text=True)
    assert not check or done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr.strip()}; {_NEEDED}"


@contextmanager
def network_namespaces(count: int) -> Iterator[NetworkNamespaces]:
    networks = NetworkNamespaces(count)
    try:
        networks.start()
        yield networks
    finally:
        networks.stop()
