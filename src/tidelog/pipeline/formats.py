"""How the bytes of a topic's values are read as rows, and how rows are written as bytes: the declared side of it.

What always holds: these are plain values without pyspark, compared by what they say; the same classes serve inputs
and outputs, and each checks what it was given at once. The work is done by `decoding` and `encoding`.
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
        """Refuse what can't be read with; `where` names the input."""

    def check_as_output(self, where: str) -> None:
        """Refuse what can't be written with; `where` names the output."""


@dataclass(frozen=True)
class Json(Format):
    """One JSON object a value.

    schema: columns as Spark's DDL ("order_id long NOT NULL, price decimal(10,2), at timestamp") or a StructType. An
        input needs it, an output takes the columns that it gets. A row that lacks a NOT NULL column can't be parsed.
    options: those of Spark's from_json and to_json, for example {"timestampFormat": "yyyy-MM-dd HH:mm:ss"}.
    """

    name: ClassVar[str] = "json"
    schema: Any = None
    options: Mapping[str, str] = field(default_factory=dict)

    def check_as_input(self, where: str) -> None:
        if self.schema is None:
            raise DeclarationError(f"{where}: Json() needs a schema to read with, as in Json('id long, name string')")


@dataclass(frozen=True)
class Avro(Format):
    """One Avro record a value, with or without a schema registry.

    schema: the schema as JSON text, as the object that the text holds, or as the Path of an .avsc file. Values are read
        with it (the writers' own schemas are resolved to it when there is a registry), or written with it.
    registry: the address of a schema registry, or its settings as a dict with "url"; values then begin with the id of
        their schema. Without `schema` an input reads by the latest schema of the subject at the time it starts.
    subject: where in the registry; by default "<topic>-value".
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
            raise DeclarationError(f"{where}: Avro() needs schema=... or registry='http://...' to read with")

    def check_as_output(self, where: str) -> None:
        if self.schema is None and self.registry is None:
            raise DeclarationError(f"{where}: Avro() needs schema=... or registry='http://...' to write with")


@dataclass(frozen=True)
class Protobuf(Format):
    """One Protobuf message a value, with or without a schema registry.

    message: the generated class; or the message's full name, to be found in `descriptor`.
    descriptor: a file of descriptors (protoc --descriptor_set_out=FILE --include_imports), as Path or bytes.
    registry: the address of a schema registry, or its settings as a dict with "url"; values then begin with the id of
        their schema and the path of the message in it. A reader needs `message` all the same.
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
            raise DeclarationError(f"{where}: Protobuf() needs message=, the generated class or the message's name")
        if isinstance(self.message, str) and self.descriptor is None:
            raise DeclarationError(
                f"{where}: Protobuf(message={self.message!r}) needs descriptor=Path(...) to find the message in; "
                f"protoc --descriptor_set_out=FILE --include_imports writes one"
            )

    def check_as_input(self, where: str) -> None:
        self._check(where)

    def check_as_output(self, where: str) -> None:
        self._check(where)


@dataclass(frozen=True)
class Text(Format):
    """Values as text in UTF-8: one column `value`, of strings. Other bytes can't be parsed."""

    name: ClassVar[str] = "text"


@dataclass(frozen=True)
class Raw(Format):
    """Bytes as they are: columns `key` and `value`, of binary. Every record can be read."""

    name: ClassVar[str] = "raw"
