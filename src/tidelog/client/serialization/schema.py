"""Schemas as a registry stores them: plain values without HTTP, and without interpreting their text."""

from __future__ import annotations

from enum import StrEnum

from tidelog.common.light_dataclass import dataclass


class SchemaType(StrEnum):
    """The language that a schema is written in, by the registry's names."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


class CompatibilityLevel(StrEnum):
    """Which schemas a registry accepts as the next version of a subject."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A schema that another one uses: the name it is used by, and where the registry stores it.

    The name is the full name of a type for Avro, the path of an import for Protobuf, and a `$ref`'s URI for JSON.
    """

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema's text, the language it is in, and the schemas it refers to."""

    text: str
    type: SchemaType = SchemaType.AVRO
    references: tuple[SchemaReference, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as a version of a subject; equal schemas have the same id in all subjects."""

    subject: str
    version: int
    id: int
    schema: Schema


@dataclass(frozen=True, slots=True)
class CompatibilityCheck:
    """The registry's verdict on a schema as the next version of a subject."""

    is_compatible: bool
    messages: tuple[str, ...] = ()
