"""Compiles the encoder of one message in one version: one flat function, with no calls per field.

Adjacent fields of fixed size, the length of whatever follows them, and empty sections of tagged fields are fused into
one `struct` call. A Records field is a part of its own: its value goes into the list of parts and is never copied.

The same function can be compiled as a generator that yields every few thousand pieces (`tidelog.common.steps`), for
responses that are too large to encode without a pause.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from tidelog.common.steps import Steps
from tidelog.protocol import wire
from tidelog.protocol.declare import Message, declaration_of
from tidelog.protocol.schema import Field, fields_of
from tidelog.protocol.source import Source
from tidelog.protocol.types import Part

Encoder = Callable[[object], list[Part]]
StepEncoder = Callable[[object], Steps[list[Part]]]

# A step of encoding ends after this many pieces, about half a millisecond of work, or this many bytes.
STEP_PIECES = 1024
STEP_BYTES = 256 * 1024

_SHARED: Final = (
    "ONE_BYTE",
    "error_text",
    "field_refused",
    "records_size_bytes",
    "write_string_length",
    "write_uvarint",
)


def compile_encoder(cls: type[Message], version: int) -> Encoder:
    encoder: Encoder = _EncoderWriter(cls, version, in_steps=False).compile()
    return encoder


def compile_step_encoder(cls: type[Message], version: int) -> StepEncoder:
    encoder: StepEncoder = _EncoderWriter(cls, version, in_steps=True).compile()
    return encoder


class _EncoderWriter:
    def __init__(self, cls: type[Message], version: int, *, in_steps: bool) -> None:
        self._cls = cls
        self._version = version
        self._in_steps = in_steps
        self._tag_depth = 0
        self._flexible = declaration_of(cls).is_flexible(version)
        self._source = Source()
        self._source.namespace.update({name: getattr(wire, name) for name in _SHARED})
        self._source.namespace["pack"] = struct.pack
        self._run: list[tuple[str, str]] = []  # struct code and expression of the fixed-size values not yet written

    def compile(self) -> Any:
        source = self._source
        with source.block("def encode(m):"):
            source.add("parts = []")
            source.add("out = []")
            source.add("add = out.append")
            if self._in_steps:
                source.add("size = 0")
            self._struct(self._cls, "m", self._cls.__name__)
            self._flush()
            with source.block("if out:"):
                source.add('parts.append(b"".join(out))')
            source.add("return parts")
            if self._in_steps:
                source.add("yield 0")  # never reached; it makes a generator of a message without arrays
        title = f"encode {self._cls.__name__} v{self._version}"
        return source.compile(f"{title} in steps" if self._in_steps else title, "encode")

    def _struct(self, cls: type[Message], variable: str, path: str) -> None:
        tagged = []
        for field in fields_of(cls):
            value = f"{variable}.{field.name}"
            if not field.versions.holds(self._version):
                if not field.ignorable:
                    with self._source.block(f"if not ({self._is_default(field, value)}):"):
                        self._source.add(f"raise field_refused({f'{path}.{field.name}'!r}, {self._version})")
            elif field.is_tagged(self._version):
                tagged.append(field)
            else:
                self._field(field, value, f"{path}.{field.name}")
        if self._flexible:
            self._tags(tagged, variable, path)

    def _field(self, field: Field, value: str, path: str) -> None:
        if field.is_array:
            self._array(field, value, path)
        elif field.struct is not None:
            self._nested(field, value, path)
        else:
            self._value(field, value, field.is_nullable(self._version))

    def _value(self, field: Field, value: str, nullable: bool) -> None:
        assert field.wire is not None
        if field.wire.name == "uuid":
            self._run.append((field.wire.code, f"{value}.int.to_bytes(16)"))
        elif field.wire.size_bytes:
            self._run.append((field.wire.code, value))
        elif field.wire.name == "string":
            # An error message may quote what a client sent, so it may be too long for a string.
            is_message = field.name.endswith("error_message")
            raw = f"error_text({value})" if is_message else f"{value}.encode()"
            self._sized(value, raw, nullable, is_string=True)
        elif field.wire.name == "bytes":
            self._sized(value, value, nullable, is_string=False)
        else:
            self._records(value, nullable)

    def _sized(self, value: str, data: str, nullable: bool, *, is_string: bool) -> None:
        """Write data with its length. Both are computed first, so that the length joins the current run."""
        source = self._source
        raw = source.name("b")
        count = source.name("n")
        length = f"len({raw})" + (" + 1" if self._flexible else "")
        if nullable:
            with source.block(f"if {value} is None:"):
                source.add(f'{raw} = b""')
                source.add(f"{count} = {0 if self._flexible else -1}")
            with source.block("else:"):
                source.add(f"{raw} = {data}")
                source.add(f"{count} = {length}")
        else:
            source.add(f"{raw} = {data}")
            source.add(f"{count} = {length}")
        self._length(count, is_string=is_string)
        source.add(f"add({raw})")
        if self._in_steps:
            source.add(f"size += {count}")

    def _records(self, value: str, nullable: bool) -> None:
        """End the current part, then add the records as a part of their own."""
        source = self._source
        length = f"records_size_bytes({value})" + (" + 1" if self._flexible else "")
        if nullable:
            length = f"{0 if self._flexible else -1} if {value} is None else {length}"
        count = source.name("n")
        source.add(f"{count} = {length}")
        self._length(count)
        with source.block(f"if {count} > {1 if self._flexible else 0}:"):
            source.add('parts.append(b"".join(out))')
            source.add(f"parts.append({value})")
            source.add("out.clear()")

    def _length(self, count: str, *, is_string: bool = False) -> None:
        """Write the run with the length at its end. A compact length is nearly always one byte, which joins the run."""
        if not self._flexible:
            self._run.append(("h" if is_string else "i", count))
            self._flush()
            return
        long_form = f"write_{'string_length' if is_string else 'uvarint'}({count})"
        if not self._run:
            self._source.add(f"add(ONE_BYTE[{count}] if {count} < 128 else {long_form})")
            return
        before = list(self._run)
        with self._source.block(f"if {count} < 128:"):
            self._run.append(("B", count))
            self._flush()
        with self._source.block("else:"):
            self._run = before
            self._flush()
            self._source.add(f"add({long_form})")

    def _array(self, field: Field, value: str, path: str) -> None:
        source = self._source
        items = source.name("items")
        count = source.name("n")
        nullable = field.is_nullable(self._version)
        source.add(f"{items} = {value}")
        length = f"len({items})" + (" + 1" if self._flexible else "")
        if nullable:
            length = f"{0 if self._flexible else -1} if {items} is None else {length}"
        source.add(f"{count} = {length}")
        self._length(count)
        if field.wire is not None and field.wire.size_bytes and field.wire.name != "uuid":
            with source.block(f"if {items}:"):
                source.add(f'add(pack(f">{{len({items})}}{field.wire.code}", *{items}))')
            return
        item = source.name("m")
        with source.block(f"for {item} in {items}{' or ()' if nullable else ''}:"):
            if field.struct is not None:
                self._struct(field.struct, item, path)
            else:
                self._value(field, item, nullable=False)
            self._flush()
            self._end_step()

    def _end_step(self) -> None:
        """After an array element: end the step if there is enough for one."""
        if not self._in_steps:
            return
        source = self._source
        with source.block(f"if len(out) > {STEP_PIECES} or size > {STEP_BYTES}:"):
            if self._tag_depth:
                # A tagged field starts with its size, so its pieces are kept until it is complete.
                source.add("yield size")
            else:
                source.add('parts.append(b"".join(out))')
                source.add("out.clear()")
                source.add("yield len(parts[-1])")
            source.add("size = 0")

    def _nested(self, field: Field, value: str, path: str) -> None:
        assert field.struct is not None
        variable = self._source.name("m")
        self._source.add(f"{variable} = {value}")
        if not field.is_nullable(self._version):
            self._struct(field.struct, variable, path)
            return
        self._flush()
        with self._source.block(f"if {variable} is None:"):
            # A null struct is a length of zero in a tagged field, and the byte -1 elsewhere.
            self._source.add(r'add(b"\x00")' if field.is_tagged(self._version) else r'add(b"\xff")')
        with self._source.block("else:"):
            self._run.append(("b", "1"))
            self._struct(field.struct, variable, path)
            self._flush()

    def _tags(self, tagged: list[Field], variable: str, path: str) -> None:
        """Write the section of tagged fields. It is nearly always empty: one zero byte at the end of the run."""
        if not tagged:
            self._run.append(("x", ""))
            return
        source = self._source
        before = list(self._run)
        none_set = " and ".join(self._is_default(field, f"{variable}.{field.name}") for field in tagged)
        with source.block(f"if {none_set}:"):
            self._run.append(("x", ""))
            self._flush()
        with source.block("else:"):
            self._run = before
            self._flush()
            count, outer = source.name("n"), source.name("out")
            source.add(f"{count} = 0")
            source.add(f"{outer} = out")
            source.add("tags = []")
            for field in sorted(tagged, key=lambda each: each.tag or 0):
                self._tag(field, f"{variable}.{field.name}", f"{path}.{field.name}", count)
            source.add(f"out = {outer}")
            source.add("add = out.append")
            source.add(f"add(write_uvarint({count}))")
            source.add("out += tags")

    def _tag(self, field: Field, value: str, path: str, count: str) -> None:
        """Write a tagged field. Its bytes are collected separately, because its size comes before them."""
        source = self._source
        with source.block(f"if not ({self._is_default(field, value)}):"):
            kept, body = source.name("tags"), source.name("b")
            source.add(f"{kept} = tags")
            source.add("out = []")
            source.add("add = out.append")
            self._tag_depth += 1
            self._field(field, value, path)
            self._flush()
            self._tag_depth -= 1
            source.add(f'{body} = b"".join(out)')
            source.add(f"tags = {kept}")
            source.add(f"tags += (write_uvarint({field.tag}), write_uvarint(len({body})), {body})")
            source.add(f"{count} += 1")

    def _is_default(self, field: Field, value: str) -> str:
        """The condition that a field has its default. Structs are compared field by field, which saves a call."""
        if field.spec.factory is None:
            if field.spec.default is None:
                return f"{value} is None"
            default = self._source.literal(field.spec.default)
            if isinstance(field.spec.default, UUID):
                # UUIDs compare slowly, in Python code. An unset one is nearly always the ZERO_UUID object itself.
                return f"({value} is {default} or {value} == {default})"
            return f"{value} == {default}"
        if field.is_array:
            return f"{value} == []"
        assert field.struct is not None
        conditions = [self._is_default(each, f"{value}.{each.name}") for each in fields_of(field.struct)]
        if field.is_nullable(self._version):
            conditions.insert(0, f"{value} is not None")
        return " and ".join(conditions)

    def _flush(self) -> None:
        if not self._run:
            return
        codes = "".join(code for code, _ in self._run)
        values = ", ".join(value for _, value in self._run if value)
        # A run of nothing but empty tag sections has no values, so its bytes are known here.
        self._source.add(f"add({self._source.packer(codes)}({values}))" if values else f"add({bytes(len(codes))!r})")
        self._run = []
