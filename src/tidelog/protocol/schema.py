"""The fields of a declared message with their wire types, resolved from the annotations on first use.

Annotations take few forms (a wire type, a struct or `list[...]` of either, each with an optional `| None`), so they are
parsed as text. That costs a fraction of `typing.get_type_hints` and yields the declared struct classes themselves.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from tidelog.protocol.declare import FieldSpec, Message, Versions, declaration_of
from tidelog.protocol.types import Wire

NO_VERSIONS = Versions(0, -1)


class Field(NamedTuple):
    """A field of a message. Either `wire` or `struct` is set: the type of the field, or of the elements if an array."""

    name: str
    wire: Wire | None
    struct: type[Message] | None
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    ignorable: bool
    spec: FieldSpec

    def default(self) -> object:
        return self.spec.default if self.spec.factory is None else self.spec.factory()

    def is_nullable(self, version: int) -> bool:
        return self.nullable.holds(version)

    def is_tagged(self, version: int) -> bool:
        return self.tagged.holds(version)


_fields: dict[type, tuple[Field, ...]] = {}


def fields_of(cls: type) -> tuple[Field, ...]:
    """The fields in wire order."""
    resolved = _fields.get(cls)
    if resolved is None:
        declaration = declaration_of(cls)
        resolved = tuple(
            _resolve(cls, name, annotation, declaration.fields[name])
            for name, annotation in declaration.annotations.items()
        )
        _fields[cls] = resolved
    return resolved


def _resolve(cls: type, name: str, annotation: str, spec: FieldSpec) -> Field:
    text = annotation.removesuffix(" | None")
    nullable = NO_VERSIONS
    if text != annotation:
        nullable = spec.versions if spec.nullable is None else spec.nullable
    is_array = text.startswith("list[")
    if is_array:
        text = text[len("list[") : -1]
    named = getattr(sys.modules[cls.__module__], text)
    metadata: tuple[Wire, ...] | None = getattr(named, "__metadata__", None)
    tagged = NO_VERSIONS
    if spec.tag is not None:
        tagged = spec.versions if spec.tagged is None else spec.tagged
    return Field(
        name=name,
        wire=None if metadata is None else metadata[0],
        struct=named if metadata is None else None,
        is_array=is_array,
        versions=spec.versions,
        nullable=nullable,
        tag=spec.tag,
        tagged=tagged,
        ignorable=spec.ignorable,
        spec=spec,
    )


def size_bytes_min(field: Field, version: int, flexible: bool) -> int:
    """The fewest bytes that a value of this field takes; an array that claims more elements than fit is rejected."""
    if field.is_array:
        return 1 if flexible else 4
    return element_size_bytes_min(field, version, flexible)


def element_size_bytes_min(field: Field, version: int, flexible: bool) -> int:
    """The fewest bytes that one element of an array field takes."""
    if field.struct is not None:
        if field.is_nullable(version) and not field.is_array:
            return 1
        return struct_size_bytes_min(field.struct, version, flexible)
    assert field.wire is not None
    if field.wire.size_bytes:
        return field.wire.size_bytes
    if flexible:
        return 1
    return 2 if field.wire.name == "string" else 4


def struct_size_bytes_min(cls: type[Message], version: int, flexible: bool) -> int:
    present = (field for field in fields_of(cls) if field.versions.holds(version) and not field.is_tagged(version))
    return sum(size_bytes_min(field, version, flexible) for field in present) + flexible
