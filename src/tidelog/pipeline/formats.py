"""Declarations of how values are parsed into rows, and how rows are written as values.

What always holds: these are plain values that don't need pyspark and compare by their contents; inputs and outputs use
the same classes, and each checks its arguments immediately. `decoding` and `encoding` do the work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tidelog.pipeline.errors import DeclarationError


@dataclass(frozen=True)
class Format:
    """What all formats share. Use one of Json, Avro, Protobuf, Text and Raw."""

    name: ClassVar[str] = ""

    def check_as_input(self, where: str) -> None:
        """Raise DeclarationError if it can't be used for reading; `where` names the input."""

    def check_as_output(self, where: str) -> None:
        """Raise DeclarationError if it can't be used for writing; `where` names the output."""


@dataclass(frozen=True)
class Json(Format):
    """Each value is a JSON object.

    schema: the columns as Spark DDL ("order_id long NOT NULL, price decimal(10,2), at timestamp") or a StructType.
        Required for inputs; outputs write the columns they get. A row that lacks a NOT NULL column can't be parsed.
    options: those of Spark's from_json and to_json, for example {"timestampFormat": "yyyy-MM-dd HH:mm:ss"}.
    """

    name: ClassVar[str] = "json"
    schema: Any = None
    options: Mapping[str, str] = field(default_factory=dict)

    def check_as_input(self, where: str) -> None:
        if self.schema is None:
            raise DeclarationError(f"{where}: Json() needs a schema for reading, such as Json('id long, name string')")


@dataclass(frozen=True)
class Avro(Format):
    """Each value is an Avro record, with or without a schema registry.

    schema: the schema as JSON text, as a parsed JSON object, or as the Path of an .avsc file. It is used to read values
        (with a registry, the writer's schema is resolved to it) or to write them.
    registry: the URL of a schema registry, or its settings as a dict with "url"; values then start with the id of their
        schema. Without `schema`, an input uses the latest schema of the subject at the time it starts.
    subject: the subject in the registry; by default "<topic>-value".
    """

    name: ClassVar[str] = "avro"
    schema: Any = None
    registry: str | Mapping[str, Any] | None = None
    subject: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.schema, Path):
            object.__setattr__(self, "schema", self.schema.read_text(encoding="utf-8"))
        if isinstance(self.schema, str):
            try:
                json.loads(self.schema)
            except ValueError as error:
                raise DeclarationError(
                    f"Avro(schema=...) is not JSON: {error}; give the text of a schema, a dict, or Path('file.avsc')"
                ) from None

    def check_as_input(self, where: str) -> None:
        if self.schema is None and self.registry is None:
            raise DeclarationError(f"{where}: Avro() needs schema=... or registry='http://...' for reading")

    def check_as_output(self, where: str) -> None:
        if self.schema is None and self.registry is None:
            raise DeclarationError(f"{where}: Avro() needs schema=... or registry='http://...' for writing")


@dataclass(frozen=True)
class Protobuf(Format):
    """Each value is a Protobuf message, with or without a schema registry.

    message: the generated class, or the full name of a message in `descriptor`.
    descriptor: a descriptor set (protoc --descriptor_set_out=FILE --include_imports), as a Path or bytes.
    registry: the URL of a schema registry, or its settings as a dict with "url"; values then start with the id of their
        schema and the path of the message in it. Reading still needs `message`.
    """

    name: ClassVar[str] = "protobuf"
    message: Any = None
    descriptor: bytes | Path | None = None
    registry: str | Mapping[str, Any] | None = None
    subject: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.descriptor, Path):
            object.__setattr__(self, "descriptor", self.descriptor.read_bytes())

    def _check(self, where: str) -> None:
        if self.message is None:
            raise DeclarationError(f"{where}: Protobuf() needs message=, a generated class or the name of a message")
        if isinstance(self.message, str) and self.descriptor is None:
            raise DeclarationError(
                f"{where}: Protobuf(message={self.message!r}) needs descriptor=Path(...), which defines the message; "
                f"protoc --descriptor_set_out=FILE --include_imports writes one"
            )

    def check_as_input(self, where: str) -> None:
        self._check(where)

    def check_as_output(self, where: str) -> None:
        self._check(where)


@dataclass(frozen=True)
class Text(Format):
    """Values are UTF-8 text, in a string column `value`. Invalid UTF-8 can't be parsed."""

    name: ClassVar[str] = "text"


@dataclass(frozen=True)
class Raw(Format):
    """Plain bytes, in binary columns `key` and `value`. Every record can be read."""

    name: ClassVar[str] = "raw"
