"""How messages are declared: once, in typed Python, with the versions beside each field that only some versions have.

    HEARTBEAT = Api(12, versions="0-4", flexible="4+")

    @request(HEARTBEAT)
    class HeartbeatRequest:
        group_id: String = ""
        group_instance_id: String | None = v("3+", default=None)

The decorators turn such a class into a slotted one with keyword arguments, `==` and `repr`. Every field has Kafka's own
default, because decoding a version that lacks the field sets that default.

What always holds: declaring a message costs no more than its class. Annotations are not evaluated, `__init__` is
compiled for the first instance and a codec for the first message, because a process uses few of all the versions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar, cast, dataclass_transform, overload

from tidelog.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")

VERSION_MAX: Final = 0x7FFF  # versions are int16 on the wire; the end of an open range such as "3+"
_NO_DEFAULT: Final = object()


class Versions(NamedTuple):
    """A range of versions, both ends included; empty when `first > last`."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Self:
        if text == "none":
            return cls(0, -1)
        first, dash, last = text.partition("-")
        if dash:
            return cls(int(first), int(last))
        if text.endswith("+"):
            return cls(int(text[:-1]), VERSION_MAX)
        return cls(int(text), int(text))

    def holds(self, version: int) -> bool:
        return self.first <= version <= self.last


ALL_VERSIONS: Final = Versions(0, VERSION_MAX)


_OWN_KEYS_FROM = 10_000


class Api:
    """A request and its response: the API key, its versions, and the first flexible version."""

    __slots__ = ("flexible_from", "key", "name", "request_class", "response_class", "versions")

    def __init__(self, key: int, *, versions: str, flexible: str = "none") -> None:
        self.key = key
        self.name = ""  # taken from the request's class, so that it is written only once
        self.versions = Versions.parse(versions)
        self.flexible_from = _flexible_from(flexible)
        self.request_class: type[Message] | None = None
        self.response_class: type[Message] | None = None

    @property
    def is_own(self) -> bool:
        """Whether it is one of Tidelog's own, for its brokers among themselves, and unknown to Kafka."""
        return self.key >= _OWN_KEYS_FROM

    def supports(self, version: int) -> bool:
        return self.versions.first <= version <= self.versions.last

    def is_flexible(self, version: int) -> bool:
        """Whether this version has compact lengths and tagged fields."""
        return self.flexible_from is not None and version >= self.flexible_from

    def __repr__(self) -> str:
        return f"Api({self.key}, {self.name} {self.versions.first}-{self.versions.last})"


def _flexible_from(text: str) -> int | None:
    flexible = Versions.parse(text)
    return flexible.first if flexible.first <= flexible.last else None


class FieldSpec:
    """What `v(...)` says about one field."""

    __slots__ = ("default", "factory", "ignorable", "nullable", "tag", "tagged", "versions")

    def __init__(
        self,
        versions: Versions = ALL_VERSIONS,
        *,
        default: object = _NO_DEFAULT,
        factory: Callable[[], object] | None = None,
        nullable: str | None = None,
        tag: int | None = None,
        tagged: str | None = None,
        ignorable: bool = False,
    ) -> None:
        self.versions = versions
        self.default = default
        self.factory = factory
        self.nullable = None if nullable is None else Versions.parse(nullable)
        self.tag = tag
        self.tagged = None if tagged is None else Versions.parse(tagged)
        self.ignorable = ignorable


@overload
def v(
    versions: str = "0+",
    *,
    default: T,
    nullable: str | None = None,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> T: ...


@overload
def v(
    versions: str = "0+",
    *,
    factory: Callable[[], T],
    nullable: str | None = None,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> T: ...


def v(
    versions: str = "0+",
    *,
    default: object = _NO_DEFAULT,
    factory: Callable[[], object] | None = None,
    nullable: str | None = None,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:  # the specifier stands in for the field's value, so it must pass for any type
    """Declare a field: the versions that have it, its default, and anything else that is not the plain case.

    Give `nullable` only if null is allowed in fewer versions than have the field, and `tagged` only if the field is
    tagged in fewer versions. Encoding a version that lacks an `ignorable` field drops its value silently.
    """
    return FieldSpec(
        Versions.parse(versions),
        default=default,
        factory=factory,
        nullable=nullable,
        tag=tag,
        tagged=tagged,
        ignorable=ignorable,
    )


class Declaration(NamedTuple):
    """What a decorator knows about its class. A struct takes versions and flexibility from the enclosing message."""

    fields: dict[str, FieldSpec]
    annotations: dict[str, str]
    versions: Versions
    flexible_from: int | None
    is_request: bool = False

    def is_flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from


class Message:
    """The base class that the decorators give every declared class."""

    __slots__ = ()
    __declaration__: ClassVar[Declaration]
    __hash__ = None  # type: ignore[assignment]  # mutable and compared by value, so not hashable

    def __init__(self, **values: Any) -> None:
        # The first instance gives the class a compiled __init__ of its own; this one never runs again for that class.
        cls = type(self)
        cls.__init__ = _compile_init(cls)  # type: ignore[method-assign]  # replacing the method is the point
        self.__init__(**values)  # type: ignore[misc]  # calls the compiled one

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__declaration__.fields)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__declaration__.fields)
        return f"{type(self).__name__}({values})"


def _compile_init(cls: type[Message]) -> Callable[..., None]:
    """Compile an `__init__` with keyword-only arguments; each instance gets new lists and structs."""
    namespace: dict[str, Any] = {"_unset": _NO_DEFAULT}
    arguments = []
    body = []
    for name, spec in cls.__declaration__.fields.items():
        if spec.factory is None:
            namespace[f"_default_{name}"] = spec.default
            arguments.append(f"{name}=_default_{name}")
            body.append(f"    self.{name} = {name}")
        else:
            namespace[f"_factory_{name}"] = spec.factory
            arguments.append(f"{name}=_unset")
            new = "[]" if spec.factory is list else f"_factory_{name}()"
            body.append(f"    self.{name} = {new} if {name} is _unset else {name}")
    signature = ", ".join(["self", "*", *arguments]) if arguments else "self"
    source = "\n".join([f"def __init__({signature}):", *(body or ["    pass"])])
    exec(compile(source, f"<tidelog init {cls.__name__}>", "exec"), namespace)
    init: Callable[..., None] = namespace["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _declare(cls: type, versions: Versions, flexible_from: int | None, *, is_request: bool = False) -> type[Message]:
    """Make the slotted class that replaces the declared one; type checkers still see the declared one."""
    annotations: dict[str, str] = getattr(cls, "__annotations__", {})  # there are no base classes to inherit them from
    fields: dict[str, FieldSpec] = {}
    for name in annotations:
        value = cls.__dict__.get(name, _NO_DEFAULT)
        spec = value if isinstance(value, FieldSpec) else FieldSpec(default=value)
        if spec.default is _NO_DEFAULT and spec.factory is None:
            raise TypeError(f"{cls.__name__}.{name} has no default")
        fields[name] = spec
    namespace = {
        "__slots__": tuple(fields),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__annotations__": annotations,
        "__declaration__": Declaration(fields, annotations, versions, flexible_from, is_request),
    }
    return type(cls.__name__, (Message,), namespace)


@dataclass_transform(kw_only_default=True, field_specifiers=(v,))
def request(api: Api) -> Callable[[type[T]], type[T]]:
    def decorate(cls: type[T]) -> type[T]:
        api.name = cls.__name__.removesuffix("Request")
        api.request_class = _declare(cls, api.versions, api.flexible_from, is_request=True)
        return cast("type[T]", api.request_class)

    return decorate


@dataclass_transform(kw_only_default=True, field_specifiers=(v,))
def response(api: Api) -> Callable[[type[T]], type[T]]:
    def decorate(cls: type[T]) -> type[T]:
        api.response_class = _declare(cls, api.versions, api.flexible_from)
        return cast("type[T]", api.response_class)

    return decorate


@dataclass_transform(kw_only_default=True, field_specifiers=(v,))
def message(*, versions: str, flexible: str = "none") -> Callable[[type[T]], type[T]]:
    """Declare a message that is neither request nor response, such as the bytes that group members send one another."""

    def decorate(cls: type[T]) -> type[T]:
        return cast("type[T]", _declare(cls, Versions.parse(versions), _flexible_from(flexible)))

    return decorate


@dataclass_transform(kw_only_default=True, field_specifiers=(v,))
def struct(cls: type[T]) -> type[T]:
    """Declare a part of messages; it has the versions of the message that contains it."""
    return cast("type[T]", _declare(cls, ALL_VERSIONS, None))


def declaration_of(cls: type) -> Declaration:
    declared: Declaration | None = getattr(cls, "__declaration__", None)
    if declared is None:
        raise ProtocolError(f"{cls.__name__} is not a declared message")
    return declared
