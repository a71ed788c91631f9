"""Addresses that a broker listens on or tells clients: `HOST:PORT` or `NAME://HOST:PORT`, with a listener's name.

What always holds: a listener's name is in capitals, and PLAINTEXT where none is given; an Endpoint's port is 0 (any
free one) to 65535, and an IPv6 host stands without its brackets. Names are not looked up here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PLAINTEXT = "PLAINTEXT"
_OTHER_PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
_ENDPOINT = re.compile(
    r"(?:(?P<listener>[A-Za-z0-9_.-]+)://)?(?P<host>\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^\[\]:/\s]*):(?P<port>\d{1,5})"
)


class Endpoint(NamedTuple):
    listener_name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener_name}://{host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """Raises ValueError that says what would be right."""
    match = _ENDPOINT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not an address; expected HOST:PORT or PLAINTEXT://HOST:PORT")
    listener_name = (match["listener"] or PLAINTEXT).upper()
    if listener_name in _OTHER_PROTOCOLS:
        raise ValueError(f"{text!r}: only PLAINTEXT listeners are served, not {listener_name}")
    port = int(match["port"])
    if port > 65535:
        raise ValueError(f"{text!r}: a port is at most 65535")
    return Endpoint(listener_name, match["host"].strip("[]"), port)
