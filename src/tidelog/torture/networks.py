"""A network of its own for each server, so that one can be cut off from some of the others and from nobody else.

What always holds: each member is in a network namespace that is joined to a bridge by a pair of virtual interfaces;
this machine is on the bridge, too, and reaches them all, so that clients are never cut off; what is on disks they share
as ever. A cut drops packets, so nobody is told of it: they are sent to a hardware address that nobody has. It needs
root (CAP_NET_ADMIN and CAP_SYS_ADMIN), iproute2 and nsenter. `stop` removes everything, however far `start` got.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Hashable, Iterable, Mapping, Sequence
from string import ascii_lowercase
from types import TracebackType
from typing import Final, Generic, NamedTuple, Self, TypeVar

from tidelog.torture import programs
from tidelog.torture.errors import TortureError

MemberT = TypeVar("MemberT", bound=Hashable)

# The 2 marks an address that whoever runs the network has made up; nobody here has this one.
_NOBODY: Final = "02:00:00:00:00:01"
_HOSTS_MAX: Final = 100
# Beside its own address, a member can have a second one, this much above.
_SECOND: Final = 100
_PRIVATE: Final = 10
_SUBNETS_TRIED: Final = 64
_PACKAGES: Final = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}
_MISSING_KIND: Final = "Specified qdisc kind is unknown"

_counter = itertools.count()


class NetworkError(TortureError):
    """Networks can't be made or changed; the text says why."""


class LinkSpeed(NamedTuple):
    """What a slow link does: it lets that much through, and delays and loses packets where the kernel can do that."""

    kbit_per_s: int
    delay_ms: int
    loss_percent: float


class Networks(Generic[MemberT]):
    """The networks of some servers, named by numbers or short words; a context manager that makes and removes them.

    >>> Networks([1, 2, "zk1"]).members
    (1, 2, 'zk1')
    """

    def __init__(self, members: Iterable[MemberT]) -> None:
        self.members = tuple(members)
        if not 1 <= len(self.members) <= _HOSTS_MAX:
            raise ValueError(f"there are networks for 1 to {_HOSTS_MAX} servers, not {len(self.members)}")
        self._number = {member: number for number, member in enumerate(self.members, 1)}
        # Names are short, as interfaces' must be, and others may do the same on this machine.
        self._name = f"tl{os.getpid():x}{ascii_lowercase[next(_counter) % 26]}"
        self._subnet = ""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Make all of them. After an error, `stop` removes what was made so far."""
        self._subnet = _free_subnet()
        bridge = self._name
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{self._subnet}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for member, number in self._number.items():
            namespace, outer = self.name_of(member), self._outer(member)
            _ip("netns", "add", namespace)
            _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _ip("link", "set", outer, "master", bridge, "up")
            for host in (number, number + _SECOND):
                _ip("-n", namespace, "addr", "add", f"{self._subnet}.{host}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")
            _ip("-n", namespace, "link", "set", "lo", "up")

    def stop(self) -> None:
        for member in self.members:
            _ip("netns", "del", self.name_of(member), check=False)
            _ip("link", "del", self._outer(member), check=False)
        _ip("link", "del", self._name, check=False)

    def name_of(self, member: MemberT) -> str:
        return f"{self._name}n{self._number[member]}"

    def _outer(self, member: MemberT) -> str:
        return f"{self._name}v{self._number[member]}"

    def address_of(self, member: MemberT) -> str:
        return f"{self._subnet}.{self._number[member]}"

    def second_address_of(self, member: MemberT) -> str:
        """For a second service of the same server, which can be cut off by itself."""
        return f"{self._subnet}.{self._number[member] + _SECOND}"

    def prefix(self, member: MemberT) -> list[str]:
        """Put before a command, this runs it in a member's network."""
        # Not `ip netns exec`, which also copies all mounts: a disk could not be unmounted while any server runs.
        return [_program("nsenter"), f"--net=/run/netns/{self.name_of(member)}"]

    def cut(self, source: MemberT, *targets: MemberT) -> None:
        """Drop what one member sends to others, which ends all connections between them in the long run."""
        for target in targets:
            self._drop(source, self.address_of(target))
            self._drop(source, self.second_address_of(target))

    def cut_second(self, source: MemberT, *targets: MemberT) -> None:
        """Drop what one member sends to the second addresses of others."""
        for target in targets:
            self._drop(source, self.second_address_of(target))

    def cut_between(self, some: Iterable[MemberT], others: Iterable[MemberT]) -> None:
        """Drop all that these and those send to each other."""
        there = list(others)
        for here in some:
            self.cut(here, *there)
            for other in there:
                self.cut(other, here)

    def cut_off(self, member: MemberT) -> None:
        """Drop all that a member and the other ones send to each other."""
        self.cut_between([member], [other for other in self.members if other != member])

    def _drop(self, source: MemberT, address: str) -> None:
        entry = ("neigh", "replace", address, "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent")
        _ip("-n", self.name_of(source), *entry)

    def mend(self) -> None:
        """End all cuts."""
        for member in self.members:
            _ip("-n", self.name_of(member), "neigh", "flush", "dev", "eth0", "nud", "permanent")

    def cuts_of(self, member: MemberT) -> list[str]:
        """The addresses that a member's packets don't reach."""
        listed = _ip("-n", self.name_of(member), "neigh", "show", "dev", "eth0", "nud", "permanent")
        return [line.split()[0] for line in listed.splitlines()]

    def slow_down(self, member: MemberT, speed: LinkSpeed) -> str:
        """Make the link of a member slow in both directions, until `speed_up`; returns what was done."""
        rate = f"{speed.kbit_per_s}kbit"
        delayed = ("netem", "rate", rate, "delay", f"{speed.delay_ms}ms", "loss", f"{speed.loss_percent}%")
        # The kernel may lack netem, which is a module of its own.
        throttled = ("tbf", "rate", rate, "burst", "16kb", "latency", "400ms")
        for way, described in ((delayed, f"{speed.delay_ms} ms, {speed.loss_percent}% lost"), (throttled, "")):
            refusals = [_tc(namespace, "replace", device, *way) for namespace, device in self._both_ends(member)]
            refused = next(filter(None, refusals), "")
            if not refused:
                return ", ".join(filter(None, (f"{speed.kbit_per_s} kbit/s", described)))
            if _MISSING_KIND not in refused:
                break
        raise NetworkError(f"can't slow down the link of {member}: {refused}")

    def speed_up(self, member: MemberT) -> None:
        for namespace, device in self._both_ends(member):
            _tc(namespace, "del", device)

    def _both_ends(self, member: MemberT) -> Sequence[tuple[str, str]]:
        """The interfaces of a member's link, each with its namespace."""
        return (self.name_of(member), "eth0"), ("", self._outer(member))

    def state(self) -> Mapping[MemberT, Sequence[str]]:
        """Who is cut off from what, for messages; empty when nothing is cut."""
        return {member: cuts for member in self.members if (cuts := self.cuts_of(member))}


def reason_against_networks() -> str | None:
    """Why networks can't be made here, and what to do about it; None if they can."""
    if os.geteuid() != 0:
        return "it gives each server a network of its own, which takes root: run it with sudo"
    return programs.missing(_PACKAGES)


def _program(name: str) -> str:
    found = programs.find(name)
    if found is None:
        raise NetworkError(f"{name} was not found: install {_PACKAGES[name]}")
    return found


def _free_subnet() -> str:
    """The first three bytes of a private network that this machine has no route to, but for the one to everywhere."""
    first = os.getpid() % (1 << 14) + next(_counter)
    for number in range(first, first + _SUBNETS_TRIED):
        subnet = f"{_PRIVATE}.{64 + number % 128}.{number // 128 % 256}"
        if not _ip("-o", "route", "show", "table", "all", "root", f"{subnet}.0/24").strip():
            return subnet
    raise NetworkError(f"none of {_SUBNETS_TRIED} private networks from 10.64.0.0 on is free on this machine")


def _ip(*arguments: str, check: bool = True) -> str:
    done = subprocess.run([_program("ip"), *arguments], capture_output=True, text=True)
    if check and done.returncode != 0:
        raise NetworkError(
            f"ip {' '.join(arguments)}: {done.stderr.strip()}; networks of their own for servers take root "
            "(CAP_NET_ADMIN, CAP_SYS_ADMIN) and a kernel with network namespaces, veth and bridges"
        )
    return done.stdout


def _tc(namespace: str, how: str, device: str, *way: str) -> str:
    """Change how packets wait on an interface; returns why it was refused, or nothing."""
    where = ["-n", namespace] if namespace else []
    command = [_program("tc"), *where, "qdisc", how, "dev", device, "root", *way]
    done = subprocess.run(command, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr.strip() or f"tc exited with {done.returncode}"
