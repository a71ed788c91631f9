"""Every declared field, version, null, tag and default against the definitions inside of Kafka's own client library.

The library is named by COMPAT_KAFKA_CLIENTS_JAR; a newer one there shows at once what changed in the protocol.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from functools import cache
from typing import Any

import pytest

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import Api, all_apis, request_class, response_class
from tidelog.protocol.declare import VERSION_MAX, Message, Versions, declaration_of
from tidelog.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tidelog.protocol.messages.rebalance_history import HISTORY_TAG
from tidelog.protocol.schema import NO_VERSIONS, Field, fields_of

pytestmark = pytest.mark.compat

_ZERO_VALUES: dict[str, object] = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": ZERO_UUID,
    "float64": 0.0,
}
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)


@cache
def _definition(name: str) -> dict[str, Any]:
    jar = os.environ.get("COMPAT_KAFKA_CLIENTS_JAR")
    if not jar:
        pytest.fail("COMPAT_KAFKA_CLIENTS_JAR is not set: run these tests with `make compat`, which sets it")
    with zipfile.ZipFile(jar) as archive:
        text = archive.read(f"common/message/{name}.json").decode()
    definition: dict[str, Any] = json.loads(_COMMENT.sub("", text))
    return definition


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _intersection(one: Versions, other: Versions) -> Versions:
    first, last = max(one.first, other.first), min(one.last, other.last)
    return Versions(first, last) if first <= last else NO_VERSIONS


def _default(definition: dict[str, Any], field: Field) -> object:
    text = definition.get("default")
    kind = definition["type"]
    if text == "null":
        return None
    if kind.startswith("[]"):
        return []
    if field.struct is not None:
        return field.struct()
    if text in (None, "") and kind != "string":
        nullable_records = kind == "records" and "nullableVersions" in definition
        return None if nullable_records else _ZERO_VALUES.get(kind, 0)
    if kind == "string":
        return text or ""
    if kind == "bool":
        return str(text).lower() == "true"
    return int(str(text), 0)


def _differences(cls: type[Message], definitions: list[dict[str, Any]], common: dict[str, Any], path: str) -> list[str]:
    # What only Tidelog has travels under tags that Kafka never comes near.
    fields = [field for field in fields_of(cls) if field.tag is None or field.tag < HISTORY_TAG]
    ours = [field.name for field in fields]
    theirs = [_snake_case(definition["name"]) for definition in definitions]
    if ours != theirs:
        return [f"{path}: the fields are {ours}, Kafka's are {theirs}"]
    found: list[str] = []
    for field, definition in zip(fields, definitions, strict=True):
        where = f"{path}.{field.name}"
        versions = Versions.parse(definition["versions"])
        expected = {
            "versions": versions,
            "nullable": _intersection(versions, Versions.parse(definition.get("nullableVersions", "none"))),
            "tag": definition.get("tag"),
            "tagged": Versions.parse(definition.get("taggedVersions", "none")),
            "ignorable": definition.get("ignorable", False),
            "is_array": definition["type"].startswith("[]"),
        }
        found += [
            f"{where}: {name} is {getattr(field, name)}, Kafka's is {value}"
            for name, value in expected.items()
            if getattr(field, name) != value
        ]
        kind = definition["type"].removeprefix("[]")
        nested = definition.get("fields") or common.get(kind)
        if nested:
            assert field.struct is not None, f"{where} is a struct"
            if not field.struct.__name__.endswith(kind):
                found.append(f"{where}: the struct is named {field.struct.__name__}, Kafka's {kind}")
            found += _differences(field.struct, nested, common, where)
        elif field.wire is None or field.wire.name != kind:
            found.append(f"{where}: the type is {field.wire}, Kafka's is {kind}")
        default = _default(definition, field)
        if field.default() != default or type(field.default()) is not type(default):
            found.append(f"{where}: the default is {field.default()!r}, Kafka's is {default!r}")
    return found


def _check(cls: type[Message], name: str) -> None:
    definition = _definition(name)
    declaration = declaration_of(cls)
    assert declaration.versions == Versions.parse(definition["validVersions"])
    flexible = Versions.parse(definition["flexibleVersions"])
    expected = None if flexible == NO_VERSIONS else flexible
    assert declaration.flexible_from == (expected.first if expected else None)
    assert expected is None or expected.last == VERSION_MAX
    common = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", [])}
    assert _differences(cls, definition["fields"], common, name) == []


@pytest.mark.parametrize("api", [api for api in all_apis() if not api.is_own], ids=lambda api: api.name)
def test_requests_and_responses(api: Api) -> None:
    for cls in (request_class(api), response_class(api)):
        assert _definition(cls.__name__)["apiKey"] == api.key
        _check(cls, cls.__name__)


@pytest.mark.parametrize("cls", [ConsumerProtocolSubscription, ConsumerProtocolAssignment])
def test_consumer_protocol(cls: type[Message]) -> None:
    _check(cls, cls.__name__)
