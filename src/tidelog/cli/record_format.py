"""How `tidelog consume` prints records: by a template, or as lines of JSON.

What always holds: bytes that are not UTF-8 come out of a template as they went in; JSON has them as base64 in a field
of its own (`value_base64`), so that no record is lost or changed. A template is checked when it is compiled.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence

from tidelog.cli.text import unescape
from tidelog.records import Record
from tidelog.records.kernel_consume import ConsumerRecord

AnyRecord = Record | ConsumerRecord

RecordWriter = Callable[[str, int, AnyRecord], bytes]
"""Topic, partition and record to the bytes to print, without the line end."""

LinesWriter = Callable[[Sequence[ConsumerRecord]], bytes]
"""Records to the lines to print."""

DEFAULT_TEMPLATE = "%v"
_PLACEHOLDER = re.compile(r"%(.?)", re.DOTALL)
_PLACEHOLDERS = "%k (key), %v (value), %T (topic), %p (partition), %o (offset), %t (timestamp), %h (headers), %%"


def compile_lines(text: str, null_marker: str = "") -> LinesWriter:
    """What prints many records by a `--format`; raises ValueError if there is no such format."""
    write = compile_format(text, null_marker)
    if text == DEFAULT_TEMPLATE:  # what is used most, and where a call for every record would show
        null = null_marker.encode()
        return lambda records: b"\n".join(
            [null if record.value is None else record.value for record in records] + [b""]
        )
    return lambda records: b"".join([write(record.topic, record.partition, record) + b"\n" for record in records])


def compile_format(text: str, null_marker: str = "") -> RecordWriter:
    """What prints one record by a `--format`; raises ValueError that lists the placeholders."""
    if text == "json":
        return _write_json
    null = null_marker.encode()
    fields: dict[str, RecordWriter] = {
        "k": lambda topic, partition, record: null if record.key is None else record.key,
        "v": lambda topic, partition, record: null if record.value is None else record.value,
        "T": lambda topic, partition, record: topic.encode(),
        "p": lambda topic, partition, record: b"%d" % partition,
        "o": lambda topic, partition, record: b"%d" % record.offset,
        "t": lambda topic, partition, record: b"%d" % record.timestamp,
        "h": lambda topic, partition, record: _headers(record, null),
        "%": lambda topic, partition, record: b"%",
    }
    parts: list[RecordWriter | bytes] = []
    position = 0
    for match in _PLACEHOLDER.finditer(text):
        parts.append(unescape(text[position : match.start()]).encode())
        if match[1] not in fields:
            raise ValueError(f"{match[0]} is not a placeholder; there are {_PLACEHOLDERS}")
        parts.append(fields[match[1]])
        position = match.end()
    parts.append(unescape(text[position:]).encode())
    if text == DEFAULT_TEMPLATE:
        return fields["v"]

    def write(topic: str, partition: int, record: AnyRecord) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(topic, partition, record) for part in parts)

    return write


def _headers(record: AnyRecord, null: bytes) -> bytes:
    return b",".join(name.encode() + b"=" + (null if value is None else value) for name, value in record.headers)


def _write_json(topic: str, partition: int, record: AnyRecord) -> bytes:
    document = {"topic": topic, "partition": partition, **record_document(record)}
    return json.dumps(document, ensure_ascii=False).encode()


def record_document(record: AnyRecord) -> dict[str, object]:
    """The record as JSON shows it."""
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_text_or_base64("key", record.key),
        **_text_or_base64("value", record.value),
        "headers": [{"key": name, **_text_or_base64("value", value)} for name, value in record.headers],
    }


def _text_or_base64(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
