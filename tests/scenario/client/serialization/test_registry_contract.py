"""What the registry's client and a registry owe each other, over the registry in the process and a real one."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tidelog.client.errors import is_retriable
from tidelog.serialization import (
    CompatibilityLevel,
    IncompatibleSchemaError,
    Schema,
    SchemaNotFoundError,
    SchemaReference,
    SchemaRegistry,
    SchemaRegistryError,
    SchemaType,
)

FreshName = Callable[[str], str]


def record(name: str, *fields: str, **defaulted: object) -> Schema:
    """An Avro record of strings, some with a default."""
    plain = [{"name": field, "type": "string"} for field in fields]
    others = [{"name": field, "type": "string", "default": value} for field, value in defaulted.items()]
    return Schema(json.dumps({"type": "record", "name": name.replace("-", "_"), "fields": plain + others}))


def test_a_schema_is_registered_once_and_found_by_id_version_and_text(
    registry: SchemaRegistry, registry_url: str, fresh_name: FreshName
) -> None:
    subject = fresh_name("orders")
    schema = record(subject, "id")
    schema_id = registry.register(subject, schema)
    assert registry.register(subject, schema) == schema_id
    # Another client has nothing in its caches.
    other = SchemaRegistry(registry_url)
    assert other.register(subject, schema) == schema_id
    assert other.schema(schema_id) == schema
    assert other.versions(subject) == [1]
    found = other.lookup(subject, schema)
    assert (found.subject, found.version, found.id) == (subject, 1, schema_id)
    assert other.latest(subject).id == other.version(subject, 1).id == schema_id
    assert subject in other.subjects()


def test_equal_schemas_have_one_id_in_all_subjects(registry: SchemaRegistry, fresh_name: FreshName) -> None:
    schema = record(fresh_name("shared"), "id")
    assert registry.register(fresh_name("a"), schema) == registry.register(fresh_name("b"), schema)


def test_versions_follow_each_other(registry: SchemaRegistry, registry_url: str, fresh_name: FreshName) -> None:
    subject = fresh_name("orders")
    first = registry.register(subject, record(subject, "id"))
    second = registry.register(subject, record(subject, "id", note=""))
    assert first != second
    assert registry.versions(subject) == [1, 2]
    assert registry.latest(subject).version == 2
    assert SchemaRegistry(registry_url).version(subject, 1).id == first


@pytest.mark.parametrize(
    "schema",
    [
        Schema('{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}', SchemaType.JSON),
        Schema('syntax = "proto3"; package shop; message Order { int64 id = 1; }', SchemaType.PROTOBUF),
    ],
    ids=["json", "protobuf"],
)
def test_other_languages_keep_their_type(registry: SchemaRegistry, fresh_name: FreshName, schema: Schema) -> None:
    subject = fresh_name("orders")
    schema_id = registry.register(subject, schema)
    assert registry.schema(schema_id).type is schema.type
    assert registry.latest(subject).schema.type is schema.type


def test_references_are_kept_and_found_backwards(registry: SchemaRegistry, fresh_name: FreshName) -> None:
    address, order = fresh_name("address"), fresh_name("order")
    registry.register(address, record(address, "street"))
    name = address.replace("-", "_")
    text = json.dumps({"type": "record", "name": "o", "fields": [{"name": "to", "type": name}]})
    schema = Schema(text, references=(SchemaReference(name, address, 1),))
    schema_id = registry.register(order, schema)
    assert registry.schema(schema_id).references == schema.references
    assert registry.referenced_by(address, 1) == [schema_id]


def test_what_is_not_there_is_told_as_such(registry: SchemaRegistry, fresh_name: FreshName) -> None:
    subject = fresh_name("none")
    with pytest.raises(SchemaNotFoundError) as unknown:
        registry.latest(subject)
    assert unknown.value.status == 404
    assert unknown.value.error_code == 40401
    assert not is_retriable(unknown.value)
    registry.register(subject, record(subject, "id"))
    with pytest.raises(SchemaNotFoundError, match="40402"):
        registry.version(subject, 9)
    with pytest.raises(SchemaNotFoundError, match="40403"):
        registry.schema(999_999)
    with pytest.raises(SchemaNotFoundError, match="40403"):
        registry.lookup(subject, record(subject, "other"))


def test_a_schema_that_is_none_is_refused(registry: SchemaRegistry, fresh_name: FreshName) -> None:
    with pytest.raises(SchemaRegistryError, match="42201") as refused:
        registry.register(fresh_name("broken"), Schema("no schema"))
    assert refused.value.status == 422


def test_compatibility_is_checked_and_enforced(registry: SchemaRegistry, fresh_name: FreshName) -> None:
    subject = fresh_name("orders")
    registry.register(subject, record(subject, "id"))
    registry.set_compatibility(CompatibilityLevel.BACKWARD, subject)
    assert registry.compatibility(subject) is CompatibilityLevel.BACKWARD
    fits, breaks = record(subject, "id", note=""), record(subject, "id", "note")
    assert registry.check_compatibility(subject, fits).is_compatible
    assert not registry.check_compatibility(subject, breaks, version=1).is_compatible
    with pytest.raises(IncompatibleSchemaError) as error:
        registry.register(subject, breaks)
    assert error.value.status == 409
    registry.register(subject, fits)
    assert registry.versions(subject) == [1, 2]
    registry.reset_compatibility(subject)
    assert registry.compatibility(subject) is registry.compatibility()


def test_deleted_versions_are_out_of_sight_but_readable(
    registry: SchemaRegistry, registry_url: str, fresh_name: FreshName
) -> None:
    subject = fresh_name("orders")
    first = registry.register(subject, record(subject, "id"))
    registry.register(subject, record(subject, "id", note=""))
    assert registry.delete_version(subject, 1) == 1
    assert registry.versions(subject) == [2]
    assert SchemaRegistry(registry_url).schema(first) == record(subject, "id")
    assert 2 in registry.delete_subject(subject)
    assert subject not in registry.subjects()
    with pytest.raises(SchemaNotFoundError):
        registry.latest(subject)


def test_names_may_hold_any_character(registry: SchemaRegistry, fresh_name: FreshName) -> None:
    subject = fresh_name("shop/order v1?#%.proto")
    schema_id = registry.register(subject, record(fresh_name("odd"), "id"))
    assert registry.latest(subject).id == schema_id
    assert subject in registry.subjects()
