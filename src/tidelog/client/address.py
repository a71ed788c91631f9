"""Broker addresses as people write them: `HOST:PORT` or `kafka://HOST:PORT`, comma-separated, IPv6 in brackets."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_PORT = 9092
# Accepted in front of an address: the scheme of connection strings, and the name of Kafka's unencrypted listeners.
_SCHEMES = frozenset({"kafka", "plaintext"})


class Address(NamedTuple):
    """The address a broker listens on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`HOST:PORT`, `HOST` (Kafka's port 9092), `[IPV6]:PORT`, with or without `kafka://` in front.

    Raises ValueError with a message that shows the correct form.
    """
    text = _without_scheme(text.strip())
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not an address; write an IPv6 address as [::1]:9092")
        port_text = rest[1:] if rest else str(DEFAULT_PORT)
    elif text.count(":") > 1:
        raise ValueError(f"{text!r} is not an address; write an IPv6 address as [::1]:9092")
    else:
        host, colon, port_text = text.partition(":")
        port_text = port_text if colon else str(DEFAULT_PORT)
    if not host:
        raise ValueError(f"{text!r} has no host; write HOST:PORT, as in 127.0.0.1:9092")
    if not port_text.isascii() or not port_text.isdigit() or not 0 < int(port_text) < 65536:
        raise ValueError(f"{text!r} has no usable port; write HOST:PORT with a port from 1 to 65535")
    return Address(host, int(port_text))


def _without_scheme(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text
    if scheme.lower() not in _SCHEMES:
        raise ValueError(f"{text!r} starts with {scheme}://; write HOST:PORT or kafka://HOST:PORT")
    return rest.removesuffix("/")


def parse_addresses(text: str) -> list[Address]:
    """One address or several, comma-separated; raises ValueError if there is none or one is malformed."""
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise ValueError("no broker address given; write HOST:PORT, as in 127.0.0.1:9092")
    return [parse_address(part) for part in parts]
