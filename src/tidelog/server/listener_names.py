"""Checks that the settings about listeners fit together, before anything is bound.

What always holds after it: each listener's name has a protocol, whatever is advertised belongs to a listener and names
a host, and brokers use a listener among each other that there is. It binds nothing and looks no names up.
"""

from __future__ import annotations

from tidelog.common.endpoint import parse_endpoint
from tidelog.common.settings import SettingError, Settings

_WILDCARD_HOSTS = ("", "0.0.0.0", "::")


def check_listeners(settings: Settings) -> None:
    """Every name has a protocol, and what is advertised or used between brokers is a listener."""
    protocols = {
        item.strip().partition(":")[0].upper() for item in settings["listener.security.protocol.map"].split(",")
    }
    names = [parse_endpoint(text).listener_name for text in settings["listeners"]]
    for name in names:
        if name not in protocols:
            raise SettingError(
                f"listeners: {name} has no protocol yet; add {name}:PLAINTEXT to listener.security.protocol.map"
            )
    for text in settings["advertised.listeners"] or ():
        name, host, _ = parse_endpoint(text)
        if host in _WILDCARD_HOSTS:
            raise SettingError(f"advertised.listeners={text}: clients can't connect to all interfaces; name one host")
        if name not in names:
            raise SettingError(f"advertised.listeners={text}: listeners has none of this name, only {', '.join(names)}")
    between = settings["inter.broker.listener.name"]
    if between is not None and between not in names:
        raise SettingError(f"inter.broker.listener.name={between}: listeners has only {', '.join(names)}")
