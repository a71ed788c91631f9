"""Client settings: those that all clients share, and how settings are read.

What always holds: a setting has Kafka's name and default where Kafka has it. It can be given by that name in a mapping,
or as a keyword argument with underscores. An unknown name or a bad value raises ConfigError, which names the closest
known name or the accepted values. Settings are read once, when the client is created, and do not change afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from tidelog.client.address import parse_addresses
from tidelog.client.errors import ConfigError
from tidelog.client.serialization.pickle_refused import refusal_of_pickle
from tidelog.common.light_dataclass import dataclass
from tidelog.common.settings import Setting, SettingError, SettingType, at_least, nearest_name, one_of


@dataclass(frozen=True, slots=True)
class ObjectSetting(Setting):
    """A setting whose value is a Python object, such as a serializer or a list of interceptors."""

    def parse(self, raw: object) -> Any:
        problem = self.check(raw) if self.check is not None and raw is not None else None
        if problem is not None:
            raise SettingError(f"{self.name}={raw!r}: {problem}")
        return raw


@dataclass(frozen=True, slots=True)
class AddressesSetting(Setting):
    """Broker addresses: one string, or several."""

    def parse(self, raw: object) -> Any:
        items = raw if isinstance(raw, (list, tuple)) else [raw]
        if raw is not None and not all(isinstance(item, str) for item in items):
            raise SettingError(
                f"{self.name}={raw!r}: expected a string of HOST:PORT, as '127.0.0.1:9092', or a list of such strings"
            )
        return Setting.parse(self, raw)


def object_setting(
    name: str, help_text: str, *, default: object = None, check: Callable[[Any], str | None] | None = None
) -> ObjectSetting:
    return ObjectSetting(name, SettingType.CLASS, default, help_text, check=check)


def is_serializer(value: object) -> str | None:
    """Describes the problem with a serializer or deserializer; None if it is fine."""
    if not callable(value):
        return "expected something that can be called, as serializer(topic, value, headers)"
    return refusal_of_pickle(value) or _refusal_of_arguments(value)


def _refusal_of_arguments(serializer: Callable[..., object]) -> str | None:
    """Functions of the value alone, such as json.dumps, would fail at the first record: better to fail now."""
    import inspect

    try:
        signature = inspect.signature(serializer)
    except (TypeError, ValueError):
        return None  # some functions written in C have no signature
    try:
        signature.bind("topic", b"value", ())
    except TypeError:
        name = getattr(serializer, "__name__", type(serializer).__name__)
        wrapped = name if name.isidentifier() else "your_function"
        return (
            "it is called with three arguments, (topic, value, headers), which it does not take; wrap it: "
            f"lambda topic, value, headers: {wrapped}(value)"
        )
    return None


class ClientOptions(TypedDict, total=False):
    """The settings that every client has, as keyword arguments."""

    bootstrap_servers: str | Sequence[str]
    client_id: str
    request_timeout_ms: int
    default_api_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    connections_max_idle_ms: int
    metadata_max_age_ms: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    security_protocol: str


def _addresses(value: list[str]) -> str | None:
    try:
        parse_addresses(",".join(value))
    except ValueError as error:
        return str(error)
    return None


CLIENT_SETTINGS: tuple[Setting, ...] = (
    AddressesSetting(
        "bootstrap.servers",
        SettingType.LIST,
        ["127.0.0.1:9092"],
        "Bootstrap servers, comma-separated: HOST:PORT or kafka://HOST:PORT. They lead to the rest of the cluster.",
        check=_addresses,
    ),
    Setting(
        "client.id", SettingType.STRING, "tidelog", "The name that identifies this client in broker logs and metrics."
    ),
    Setting(
        "request.timeout.ms",
        SettingType.INT,
        30_000,
        "How long to wait for a response before the connection is dropped.",
        check=at_least(1),
    ),
    Setting(
        "default.api.timeout.ms",
        SettingType.INT,
        60_000,
        "The time limit, including retries, for calls without a timeout of their own.",
        check=at_least(0),
    ),
    Setting("retry.backoff.ms", SettingType.LONG, 100, "The pause before the first retry.", check=at_least(0)),
    Setting(
        "retry.backoff.max.ms",
        SettingType.LONG,
        1_000,
        "The longest pause between retries. Pauses double up to this, varied at random by up to a fifth.",
        check=at_least(0),
    ),
    Setting(
        "reconnect.backoff.ms",
        SettingType.LONG,
        50,
        "The pause before reconnecting to a broker that could not be reached.",
        check=at_least(0),
    ),
    Setting(
        "reconnect.backoff.max.ms",
        SettingType.LONG,
        1_000,
        "The longest pause before reconnecting. Pauses double with each failure up to this.",
        check=at_least(0),
    ),
    Setting(
        "socket.connection.setup.timeout.ms",
        SettingType.LONG,
        10_000,
        "The time limit for establishing a connection.",
        check=at_least(1),
    ),
    Setting(
        "connections.max.idle.ms",
        SettingType.LONG,
        540_000,
        "Close connections that have been idle for this long; -1: never.",
        check=at_least(-1),
    ),
    Setting(
        "metadata.max.age.ms",
        SettingType.LONG,
        300_000,
        "How old the metadata about topics and leaders may get before it is refreshed.",
        check=at_least(1),
    ),
    Setting(
        "send.buffer.bytes",
        SettingType.INT,
        -1,
        "The socket's send buffer (SO_SNDBUF); -1: the system's default.",
        check=at_least(-1),
    ),
    Setting(
        "receive.buffer.bytes",
        SettingType.INT,
        -1,
        "The socket's receive buffer (SO_RCVBUF); -1: the system's default.",
        check=at_least(-1),
    ),
    Setting(
        "security.protocol",
        SettingType.STRING,
        "PLAINTEXT",
        "The protocol to use with brokers; only PLAINTEXT is supported so far.",
        check=one_of("PLAINTEXT"),
    ),
)


class ClientSettingsTable:
    """The settings of one kind of client."""

    def __init__(self, owner: str, rows: Iterable[Setting]) -> None:
        self.owner = owner
        self.rows: dict[str, Setting] = {}
        for row in rows:
            if row.name in self.rows:
                raise ValueError(f"setting {row.name} appears twice in the table of {owner}")
            self.rows[row.name] = row

    def read(self, given: Mapping[str, object] | None, options: Mapping[str, object]) -> ClientSettings:
        """The settings from a mapping with dotted names and from keyword arguments; the latter win."""
        values: dict[str, Any] = {}
        for name, raw in (given or {}).items():
            self._set(values, name, raw)
        for option, raw in options.items():
            self._set(values, option, raw, separator="_")
        return ClientSettings(self, values)

    def _set(self, values: dict[str, Any], name: str, raw: object, separator: str = ".") -> None:
        dotted = name.replace("_", ".")
        row = self.rows.get(dotted)
        if row is None:
            near = nearest_name(dotted, self.rows)
            hint = f"; did you mean {near.replace('.', separator)!r}?" if near else ""
            raise ConfigError(f"{self.owner} has no setting {name!r}{hint}")
        try:
            values[row.name] = row.parse(raw)
        except SettingError as error:
            raise ConfigError(str(error)) from None


class ClientSettings:
    """The effective settings of a client: the defaults, overridden by what the user set."""

    def __init__(self, table: ClientSettingsTable, values: dict[str, Any]) -> None:
        self.table = table
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name] if name in self._values else self.table.rows[name].default

    def is_set(self, name: str) -> bool:
        return name in self._values

    def get_int(self, name: str) -> int:
        value = self[name]
        if not isinstance(value, int):
            raise TypeError(f"setting {name} holds {value!r}, not an integer")
        return value

    def get_str(self, name: str) -> str:
        return str(self[name])

    def get_bool(self, name: str) -> bool:
        return bool(self[name])

    def get_seconds(self, name: str) -> float:
        """A setting in milliseconds, converted to the seconds that event loops use."""
        return float(self[name]) / 1000
