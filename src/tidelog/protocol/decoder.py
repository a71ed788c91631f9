"""Compiles the decoder of one message in one version: one flat function, with no calls per field and no recursion.

What always holds: a length is never trusted. Before anything is read or allocated, it is compared with the bytes that
are left; for an array, its count times the smallest size of an element is. Reading a fixed-size value or a single byte
past the end raises `struct.error` or IndexError, which `codec.decode` turns into ProtocolError. The arrays of a request
have at most ELEMENTS_MAX elements in total, or as many as the caller allows; a response may have any number.

The same function can be compiled as a generator that yields every few hundred elements (`tidelog.common.steps`), for
requests that are too large to decode without a pause.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from tidelog.common.steps import Steps
from tidelog.protocol import wire
from tidelog.protocol.declare import Message, declaration_of
from tidelog.protocol.schema import Field, element_size_bytes_min, fields_of
from tidelog.protocol.source import Source

Decoder = Callable[[bytes | bytearray | memoryview, int, int, int], tuple[object, int]]
StepDecoder = Callable[[bytes | bytearray | memoryview, int, int, int], Steps[tuple[object, int]]]

# A step of decoding ends after this many elements, about half a millisecond of work.
STEP_ELEMENTS = 256

_SHARED: Final = (
    "elements_refused",
    "length_refused",
    "null_refused",
    "read_string_length",
    "read_uvarint",
    "tag_refused",
    "uuid_from_bytes",
)


def compile_decoder(cls: type[Message], version: int) -> Decoder:
    decoder: Decoder = _DecoderWriter(cls, version, in_steps=False).compile()
    return decoder


def compile_step_decoder(cls: type[Message], version: int) -> StepDecoder:
    decoder: StepDecoder = _DecoderWriter(cls, version, in_steps=True).compile()
    return decoder


class _DecoderWriter:
    def __init__(self, cls: type[Message], version: int, *, in_steps: bool) -> None:
        self._cls = cls
        self._version = version
        self._in_steps = in_steps
        self._flexible = declaration_of(cls).is_flexible(version)
        self._is_bounded = declaration_of(cls).is_request
        self._source = Source()
        self._source.namespace.update({name: getattr(wire, name) for name in _SHARED})
        self._source.namespace["new"] = object.__new__
        self._source.namespace["unpack_from"] = struct.unpack_from
        self._run: list[tuple[str, int, str]] = []  # struct code, size and target of fixed-size values not yet read
        self._after_run: list[str] = []  # code that converts raw values of the run into field values

    def compile(self) -> Any:
        source = self._source
        with source.block("def decode(buf, o, end, elements_max):"):
            if self._is_bounded:
                source.add("left = elements_max")
            if self._in_steps:
                source.add("step = 0")
            self._struct(self._cls, "m", self._cls.__name__)
            self._flush()
            source.add("return m, o")
            if self._in_steps:
                source.add("yield 0")  # never reached; it makes a generator of a message without arrays
        title = f"decode {self._cls.__name__} v{self._version}"
        return source.compile(f"{title} in steps" if self._in_steps else title, "decode")

    def _struct(self, cls: type[Message], variable: str, path: str) -> None:
        tagged = []
        self._source.add(f"{variable} = new({self._source.constant('cls', cls)})")
        for field in fields_of(cls):
            target = f"{variable}.{field.name}"
            if not field.versions.holds(self._version):
                self._set_default(field, target)
            elif field.is_tagged(self._version):
                self._set_default(field, target)
                tagged.append(field)
            else:
                self._field(field, target, f"{path}.{field.name}")
        if self._flexible:
            self._tags(tagged, variable, path)

    def _set_default(self, field: Field, target: str) -> None:
        if field.spec.factory is None:
            self._source.add(f"{target} = {self._source.literal(field.spec.default)}")
        elif field.is_array:
            self._source.add(f"{target} = []")
        else:
            assert field.struct is not None
            variable = self._source.name("m")
            self._source.add(f"{variable} = {target} = new({self._source.constant('cls', field.struct)})")
            for each in fields_of(field.struct):
                self._set_default(each, f"{variable}.{each.name}")

    def _field(self, field: Field, target: str, path: str) -> None:
        if field.is_array:
            self._array(field, target, path)
        elif field.struct is not None:
            self._nested(field, target, path)
        else:
            self._value(field, target, path, field.is_nullable(self._version))

    def _value(self, field: Field, target: str, path: str, nullable: bool) -> None:
        assert field.wire is not None
        kind = field.wire.name
        if kind == "uuid":
            raw = self._source.name("raw")
            self._run.append((field.wire.code, 16, raw))
            self._after_run.append(f"{target} = uuid_from_bytes({raw})")
        elif field.wire.size_bytes:
            self._run.append((field.wire.code, field.wire.size_bytes, target))
        else:
            self._sized(kind, target, path, nullable)

    def _sized(self, kind: str, target: str, path: str, nullable: bool) -> None:
        source = self._source
        count = self._length(is_string=kind == "string")
        null = f"{count} == 0" if self._flexible else f"{count} < 0"
        with source.block(f"if {null}:"):
            source.add(f"{target} = None" if nullable else f"raise null_refused({path!r})")
        with source.block("else:"):
            source.add(f"e = o + {count}" + (" - 1" if self._flexible else ""))
            with source.block("if e > end:"):
                source.add(f"raise length_refused({path!r}, e - o, end - o)")
            if kind == "string":
                source.add(f'{target} = str(buf[o:e], "utf-8")')
            elif kind == "bytes":
                source.add(f"{target} = bytes(buf[o:e])")
            else:
                source.add(f"{target} = memoryview(buf)[o:e]")
            source.add("o = e")

    def _length(self, *, is_string: bool = False) -> str:
        """Read the run and the length at its end. A compact length is nearly always one byte, read with the run."""
        count = self._source.name("n")
        if not self._flexible:
            self._run.append(("h", 2, count) if is_string else ("i", 4, count))
            self._flush()
            return count
        self._first_byte(count)
        with self._source.block(f"if {count} > 127:"):
            reader = "read_string_length" if is_string else "read_uvarint"
            self._source.add(f"{count}, o = {reader}(buf, o - 1)")
        return count

    def _first_byte(self, count: str) -> None:
        if self._run:
            self._run.append(("B", 1, count))
            self._flush()
        else:
            self._source.add(f"{count} = buf[o]")
            self._source.add("o += 1")

    def _array(self, field: Field, target: str, path: str) -> None:
        source = self._source
        count = self._length()
        if self._flexible:
            source.add(f"{count} -= 1")
        smallest = element_size_bytes_min(field, self._version, self._flexible)
        assert smallest, f"{path} has elements of no bytes, so that a length could announce any number of them"
        with source.block(f"if {count} < 0:"):
            nullable = field.is_nullable(self._version)
            source.add(f"{target} = None" if nullable else f"raise null_refused({path!r})")
        with source.block(f"elif {count} * {smallest} > end - o:"):
            source.add(f"raise length_refused({path!r}, {count}, end - o)")
        with source.block("else:"):
            if field.wire is not None and field.wire.size_bytes and field.wire.name != "uuid":
                self._count_elements(f"{count} >> 3", path)  # a number costs a fraction of a struct
                source.add(f'{target} = list(unpack_from(f">{{{count}}}{field.wire.code}", buf, o))')
                source.add(f"o += {count} * {smallest}")
            else:
                self._count_elements(count, path)
                self._elements(field, target, path, count)

    def _count_elements(self, count: str, path: str) -> None:
        if self._is_bounded:
            self._source.add(f"left -= {count}")
            with self._source.block("if left < 0:"):
                self._source.add(f"raise elements_refused({path!r}, elements_max)")

    def _elements(self, field: Field, target: str, path: str, count: str) -> None:
        source = self._source
        item = source.name("m")
        append = source.name("append")
        items = source.name("items")
        source.add(f"{target} = {items} = []")
        source.add(f"{append} = {items}.append")
        with source.block(f"for _ in range({count}):"):
            if field.struct is not None:
                self._struct(field.struct, item, path)
            else:
                self._value(field, item, path, nullable=False)
            self._flush()
            source.add(f"{append}({item})")
            if self._in_steps:
                source.add("step += 1")
                with source.block(f"if step == {STEP_ELEMENTS}:"):
                    source.add("step = 0")
                    source.add("yield 0")

    def _nested(self, field: Field, target: str, path: str) -> None:
        source = self._source
        assert field.struct is not None
        variable = source.name("m")
        if not field.is_nullable(self._version):
            self._struct(field.struct, variable, path)
            # The variable is set before the run that fills the struct is read, so it can be stored right away.
            source.add(f"{target} = {variable}")
            return
        flag = source.name("n")
        self._run.append(("b", 1, flag))
        self._flush()
        # A null struct is a length of zero in a tagged field, and the byte -1 elsewhere.
        with source.block(f"if {flag} <= 0:" if field.is_tagged(self._version) else f"if {flag} < 0:"):
            source.add(f"{target} = None")
        with source.block("else:"):
            self._struct(field.struct, variable, path)
            self._flush()
            source.add(f"{target} = {variable}")

    def _tags(self, tagged: list[Field], variable: str, path: str) -> None:
        """Read the section of tagged fields. It is nearly always empty: one zero byte at the end of the run."""
        source = self._source
        count = source.name("n")
        self._first_byte(count)
        with source.block(f"if {count}:"):
            with source.block(f"if {count} > 127:"):
                source.add(f"{count}, o = read_uvarint(buf, o - 1)")
            self._count_elements(count, f"the tagged fields of {path}")
            with source.block(f"for _ in range({count}):"):
                tag, stop = source.name("tag"), source.name("stop")
                source.add(f"{tag}, o = read_uvarint(buf, o)")
                source.add(f"{stop}, o = read_uvarint(buf, o)")
                source.add(f"{stop} += o")
                with source.block(f"if {stop} > end:"):
                    source.add(f"raise length_refused({f'a tagged field of {path}'!r}, {stop} - o, end - o)")
                for keyword, field in zip(["if", *["elif"] * len(tagged)], tagged, strict=False):
                    with source.block(f"{keyword} {tag} == {field.tag}:"):
                        self._field(field, f"{variable}.{field.name}", f"{path}.{field.name}")
                        self._flush()
                        with source.block(f"if o != {stop}:"):
                            source.add(f"raise tag_refused({f'{path}.{field.name}'!r})")
                source.add(f"o = {stop}")

    def _flush(self) -> None:
        if not self._run:
            return
        codes = "".join(code for code, _, _ in self._run)
        targets = ", ".join(target for _, _, target in self._run)
        size = sum(size for _, size, _ in self._run)
        self._source.add(f"{targets}, = {self._source.unpacker(codes)}(buf, o)")
        self._source.add(f"o += {size}")
        for line in self._after_run:
            self._source.add(line)
        self._run = []
        self._after_run = []
