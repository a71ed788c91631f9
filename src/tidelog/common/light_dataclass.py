"""Data classes that cost little to declare, for what a broker or a client imports at its start.

The standard library compiles six methods for each data class when it is declared: half a millisecond, 50 ms for the
hundred classes of a broker, a quarter of its start. Here `__init__` is compiled for the first instance, and all other
methods are shared code.

What always holds: type checkers see the standard library's `dataclass`; so do `dataclasses.fields`, `replace` and
`asdict`; a class has slots, and the same equality, hash, repr and checks as it would have there. It knows no more of
the standard library's parameters than `dataclass` below names, and neither `InitVar` nor fields of `ClassVar` type.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, slots: bool, frozen: bool = False, eq: bool = True, kw_only: bool = False):
        """Make a data class, as `dataclasses.dataclass` does with the same parameters."""
        if not slots:
            raise TypeError("all data classes of this kind have slots")

        def decorate(cls: type) -> type:
            return _declare(cls, frozen=frozen, eq=eq, kw_only=kw_only)

        return decorate


# How `dataclasses.fields` tells fields from class variables. The only private part of the library that is used.
_FIELD: Final = dataclasses._FIELD  # type: ignore[attr-defined]
_FIELDS: Final = "__dataclass_fields__"
_PARAMS: Final = "__dataclass_params__"


class _Params(NamedTuple):
    """What the standard library wants to know of a class that it derives another one from."""

    frozen: bool


def _declare(cls: type, *, frozen: bool, eq: bool, kw_only: bool) -> type:
    inherited = _inherited_fields(cls, frozen=frozen)
    own = [_own_field(cls, name, annotation, kw_only) for name, annotation in inspect.get_annotations(cls).items()]
    fields = inherited | {field.name: field for field in own}
    namespace = dict(cls.__dict__)
    for name in (*(field.name for field in own), "__dict__", "__weakref__"):
        namespace.pop(name, None)
    namespace["__slots__"] = tuple(field.name for field in own if field.name not in inherited)
    namespace[_FIELDS] = fields
    namespace[_PARAMS] = _Params(frozen)
    in_order = sorted(fields.values(), key=lambda field: bool(field.kw_only))
    namespace.setdefault("__match_args__", tuple(field.name for field in in_order if field.init and not field.kw_only))
    _add_methods(namespace, in_order, frozen=frozen, eq=eq)
    made = type(cls)(cls.__name__, cls.__bases__, namespace)
    if "__init__" not in cls.__dict__:
        made.__init__ = _first_init(made, in_order, frozen=frozen)  # type: ignore[misc]  # the class that it is for
    return made


def _inherited_fields(cls: type, *, frozen: bool) -> dict[str, Field[Any]]:
    fields: dict[str, Field[Any]] = {}
    for base in cls.__mro__[-1:0:-1]:
        if _FIELDS not in base.__dict__:
            continue
        if base.__dict__[_PARAMS].frozen != frozen:
            raise TypeError(f"{cls.__name__} and {base.__name__} must both be frozen, or neither")
        fields |= base.__dict__[_FIELDS]
    return fields


def _own_field(cls: type, name: str, annotation: object, kw_only: bool) -> Field[Any]:
    value = cls.__dict__.get(name, MISSING)
    field: Field[Any] = value if isinstance(value, Field) else dataclasses.field(default=value)
    if field.default.__class__.__hash__ is None:
        raise ValueError(f"the default of {cls.__name__}.{name} would be shared by all instances: use default_factory")
    field.name = name
    field.type = annotation  # the text, as it is with postponed evaluation
    field._field_type = _FIELD  # type: ignore[attr-defined]
    if field.kw_only is MISSING:
        field.kw_only = kw_only
    return field


def _add_methods(namespace: dict[str, Any], fields: Sequence[Field[Any]], *, frozen: bool, eq: bool) -> None:
    if "__repr__" not in namespace:
        namespace["__repr__"] = _repr_of([field.name for field in fields if field.repr])
    if eq:
        has_hash = namespace.get("__hash__") is not None
        compared = _values([field.name for field in fields if field.compare])
        namespace.setdefault("__eq__", _eq_by(compared))
        if not has_hash:
            hashed = (field.name for field in fields if (field.compare if field.hash is None else field.hash))
            namespace["__hash__"] = _hash_by(_values(list(hashed))) if frozen else None
    if frozen:
        namespace["__setattr__"] = _refuse_to_set
        namespace["__delattr__"] = _refuse_to_delete
        namespace.setdefault("__getstate__", _state)
        namespace.setdefault("__setstate__", _set_state)


def _values(names: Sequence[str]) -> Callable[[object], tuple[Any, ...]]:
    """A function that gives these attributes of an object."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda instance: tuple(getattr(instance, name) for name in names)


def _eq_by(values: Callable[[object], tuple[Any, ...]]) -> Callable[[object, object], bool]:
    def __eq__(self: object, other: object) -> bool:  # noqa: N807 - its name in tracebacks
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _hash_by(values: Callable[[object], tuple[Any, ...]]) -> Callable[[object], int]:
    def __hash__(self: object) -> int:  # noqa: N807 - its name in tracebacks
        return hash(values(self))

    return __hash__


def _repr_of(names: Iterable[str]) -> Callable[[object], str]:
    @reprlib.recursive_repr()
    def __repr__(self: object) -> str:  # noqa: N807 - its name in tracebacks
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return __repr__


def _refuse_to_set(self: object, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: Iterable[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


def _first_init(cls: type, fields: Sequence[Field[Any]], *, frozen: bool) -> Callable[..., None]:
    """An `__init__` that puts a compiled one into its own place."""

    def __init__(self: Any, *args: Any, **values: Any) -> None:  # noqa: N807 - its name in tracebacks
        cls.__init__ = _compile_init(cls, fields, frozen=frozen)  # type: ignore[misc]  # replacing it is the point
        cls.__init__(self, *args, **values)  # type: ignore[misc]  # `self` is an instance of it

    return __init__


def _compile_init(cls: type, fields: Sequence[Field[Any]], *, frozen: bool) -> Callable[..., None]:
    namespace: dict[str, Any] = {"_MISSING": MISSING}
    parameters, body = ["self"], []
    for field in fields:
        name, value = field.name, field.name
        if field.default_factory is not MISSING:
            namespace[f"_factory_{name}"] = field.default_factory
            value = f"_factory_{name}() if {name} is _MISSING else {name}" if field.init else f"_factory_{name}()"
        elif field.default is not MISSING:
            namespace[f"_default_{name}"] = field.default
            value = name if field.init else f"_default_{name}"
        elif not field.init:
            continue
        if field.init:
            if field.kw_only and "*" not in parameters:
                parameters.append("*")
            parameters.append(name + _default_of(field))
        if frozen:
            # The slot's own setter: half the time of object.__setattr__.
            namespace[f"_set_{name}"] = getattr(cls, name).__set__
            body.append(f"    _set_{name}(self, {value})")
        else:
            body.append(f"    self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("    self.__post_init__()")
    source = "\n".join([f"def __init__({', '.join(parameters)}):", *(body or ["    pass"])])
    exec(compile(source, f"<tidelog init {cls.__name__}>", "exec"), namespace)
    init: Callable[..., None] = namespace["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _default_of(field: Field[Any]) -> str:
    if field.default_factory is not MISSING:
        return "=_MISSING"
    return "" if field.default is MISSING else f"=_default_{field.name}"
