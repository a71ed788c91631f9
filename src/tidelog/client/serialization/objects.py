"""Conversion between what formats hold (dicts, lists, plain values) and the user's classes.

What always holds: dataclasses are converted by their fields, including nested ones. Classes with `to_dict` or
`from_dict` are converted by these. Anything else needs the user's own function. Types of plain fields are not checked
here: schemas do that.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, overload

from tidelog.client.errors import SerializationError

T = TypeVar("T")

# A dataclass, a class with `from_dict`, or a function of the decoded value.
Builder = Callable[..., T]

# Converts a value of a topic; the topic is for error messages.
Build = Callable[[str, Any], Any]


def builder_of(into: Builder[Any] | None) -> Build | None:
    """How to create the user's objects; None if the decoded values are returned unchanged."""
    if into is None:
        return None
    from_dict = getattr(into, "from_dict", None)
    if from_dict is not None:
        make = from_dict
    elif dataclasses.is_dataclass(into) and isinstance(into, type):
        make = _maker_of(into)
    else:
        make = into
    name = getattr(into, "__qualname__", repr(into))

    def build(topic: str, value: Any) -> Any:
        try:
            return make(value)
        except Exception as error:
            raise SerializationError(f"topic {topic}: {name} can't be built from the value: {_line(error)}") from error

    return build


class BuildsObjects(Generic[T]):
    """A deserializer that returns the decoded value, or what `into` makes of it."""

    @overload
    def __init__(self: BuildsObjects[Any]) -> None: ...
    @overload
    def __init__(self: BuildsObjects[T], into: Builder[T]) -> None: ...
    def __init__(self, into: Builder[Any] | None = None) -> None:
        self._build = builder_of(into)


def to_plain(value: Any) -> Any:
    """The form of an object that a format can hold: its `to_dict()`, a dataclass's fields, or the object itself.

    A dict is returned unchanged: looking into each would cost more than writing it.
    """
    return value if type(value) is dict else _plain(value)


def _plain(value: Any) -> Any:
    to_dict = getattr(value, "to_dict", None)
    if to_dict is not None:
        return to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


Make = Callable[[Any], Any]


def _maker_of(cls: type, makers: dict[type, Make] | None = None) -> Make:
    """A function that creates the dataclass from a dict, ignoring fields that the class does not have.

    A newer writer may have added fields, which a reader ignores. `makers` holds known functions, so that classes may
    refer to each other and to themselves.
    """
    known = {} if makers is None else makers
    fields: dict[str, Make] = {}

    def make(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise TypeError(f"{cls.__name__} is built from a dict, not from a {type(value).__name__}")
        return cls(**{name: maker(value[name]) for name, maker in fields.items() if name in value})

    known[cls] = make
    hints = typing.get_type_hints(cls)
    fields.update({f.name: _maker_of_hint(hints[f.name], known) for f in dataclasses.fields(cls) if f.init})
    return make


def _maker_of_hint(hint: Any, makers: dict[type, Make]) -> Make:
    """How to convert a field's value: dataclasses in it are built, anything else is kept."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return makers[hint] if hint in makers else _maker_of(hint, makers)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        classes = [argument for argument in arguments if argument is not type(None)]
        if len(classes) == 1:
            make = _maker_of_hint(classes[0], makers)
            return lambda value: None if value is None else make(value)
    if origin is list and arguments:
        make_item = _maker_of_hint(arguments[0], makers)
        return lambda value: [make_item(item) for item in value]
    if origin is dict and len(arguments) == 2:
        make_value = _maker_of_hint(arguments[1], makers)
        return lambda value: {key: make_value(item) for key, item in value.items()}
    return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
