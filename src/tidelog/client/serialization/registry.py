"""A client for schema registries with Confluent's REST interface: Confluent's own, Karapace, Apicurio.

What always holds: values that never change (a schema by its id, a version of a subject, the id of a registered schema)
are requested once and cached, within a bound. Values that may change (the latest version, settings) are requested
again. It is thread-safe, keeps no connection open, and has nothing to close. Calls block, but serializers make them
only for the first record of a schema.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from tidelog.client.errors import ConfigError
from tidelog.client.network.backoff import Backoff
from tidelog.client.serialization.bounded_cache import BoundedCache
from tidelog.client.serialization.registry_errors import SchemaRegistryError
from tidelog.client.serialization.registry_http import RegistryHttp, basic, bearer
from tidelog.client.serialization.schema import (
    CompatibilityCheck,
    CompatibilityLevel,
    RegisteredSchema,
    Schema,
    SchemaReference,
    SchemaType,
)

T = TypeVar("T")


class SchemaRegistry:
    """Registers and fetches schemas, at the first of the addresses that answers."""

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        basic_auth: tuple[str, str] | None = None,
        bearer_token: str | Callable[[], str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        request_timeout_s: float = 10.0,
        retry_backoff_s: float = 0.1,
        retry_backoff_max_s: float = 2.0,
        cache_size: int = 1000,
        latest_lifetime_s: float = 60.0,
    ) -> None:
        """`timeout_s` bounds a call with all its retries; `request_timeout_s` bounds each wait for the registry.

        `latest_lifetime_s` is how long the latest version of a subject is cached.
        """
        urls = [part.strip() for part in url.split(",")] if isinstance(url, str) else list(url)
        if not urls:
            raise ConfigError("a schema registry needs an address")
        if basic_auth is not None and bearer_token is not None:
            raise ConfigError("a schema registry takes basic_auth or bearer_token, not both")
        authorization = None
        if basic_auth is not None:
            authorization = basic(*basic_auth)
        elif bearer_token is not None:
            authorization = bearer(bearer_token)
        self._http = RegistryHttp(
            urls,
            authorization=authorization,
            ssl_context=ssl_context,
            headers=headers or {},
            timeout_s=timeout_s,
            request_timeout_s=request_timeout_s,
            backoff=Backoff(retry_backoff_s, retry_backoff_max_s),
        )
        self._by_id: BoundedCache[tuple[int, bool], Schema] = BoundedCache(cache_size)
        self._versions: BoundedCache[tuple[str, int, bool], RegisteredSchema] = BoundedCache(cache_size)
        self._ids: BoundedCache[tuple[str, Schema, bool], int] = BoundedCache(cache_size)
        self._lookups: BoundedCache[tuple[str, Schema, bool], RegisteredSchema] = BoundedCache(cache_size)
        self._latest: BoundedCache[tuple[str, bool], RegisteredSchema] = BoundedCache(
            cache_size, lifetime_s=latest_lifetime_s
        )

    def __repr__(self) -> str:
        return f"SchemaRegistry({', '.join(self._http.addresses)})"

    # Schemas

    def register(self, subject: str, schema: Schema, *, normalize: bool = False) -> int:
        """Register the schema as the subject's next version, unless it already is a version; returns its id."""

        def ask() -> int:
            path = ["subjects", subject, "versions"]
            return self._call("POST", path, lambda answer: int(answer["id"]), _body(schema), normalize=normalize)

        return self._ids.get_or_load((subject, schema, normalize), ask)

    def lookup(self, subject: str, schema: Schema, *, normalize: bool = False) -> RegisteredSchema:
        """The subject's version that is this schema; SchemaNotFoundError if there is none."""

        def read(answer: Any) -> RegisteredSchema:
            return RegisteredSchema(subject, int(answer["version"]), int(answer["id"]), schema)

        def ask() -> RegisteredSchema:
            return self._call("POST", ["subjects", subject], read, _body(schema), normalize=normalize)

        return self._lookups.get_or_load((subject, schema, normalize), ask)

    def schema(self, schema_id: int, *, serialized: bool = False) -> Schema:
        """The schema with an id; `serialized` asks for Protobuf as an encoded descriptor."""

        def ask() -> Schema:
            return self._call("GET", ["schemas", "ids", str(schema_id)], _schema, format=_format(serialized))

        return self._by_id.get_or_load((schema_id, serialized), ask)

    def version(self, subject: str, version: int, *, serialized: bool = False) -> RegisteredSchema:
        """One version of a subject, including deleted ones, since records and references may still need them."""

        def ask() -> RegisteredSchema:
            path = ["subjects", subject, "versions", str(version)]
            return self._call("GET", path, _registered, format=_format(serialized), deleted=True)

        return self._versions.get_or_load((subject, version, serialized), ask)

    def latest(self, subject: str, *, serialized: bool = False) -> RegisteredSchema:
        """The latest version of a subject, at most `latest_lifetime_s` old."""

        def ask() -> RegisteredSchema:
            return self._call(
                "GET", ["subjects", subject, "versions", "latest"], _registered, format=_format(serialized)
            )

        return self._latest.get_or_load((subject, serialized), ask)

    def versions(self, subject: str) -> list[int]:
        """The version numbers of a subject."""
        return self._call("GET", ["subjects", subject, "versions"], _numbers)

    def subjects(self) -> list[str]:
        """All subjects that have a version."""
        return self._call("GET", ["subjects"], lambda answer: [str(subject) for subject in answer])

    def referenced_by(self, subject: str, version: int) -> list[int]:
        """The ids of the schemas that refer to this version."""
        return self._call("GET", ["subjects", subject, "versions", str(version), "referencedby"], _numbers)

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete all versions; call it again with `permanent` to remove deleted ones for good."""
        deleted = self._call("DELETE", ["subjects", subject], _numbers, permanent=permanent)
        self._forget()
        return deleted

    def delete_version(self, subject: str, version: int, *, permanent: bool = False) -> int:
        """Delete one version, like `delete_subject` does for all."""
        deleted = self._call("DELETE", ["subjects", subject, "versions", str(version)], int, permanent=permanent)
        self._forget()
        return deleted

    # Compatibility

    def check_compatibility(self, subject: str, schema: Schema, *, version: int | None = None) -> CompatibilityCheck:
        """Whether the schema is compatible with a version of the subject, by default the latest, by its level."""
        path = ["compatibility", "subjects", subject, "versions", "latest" if version is None else str(version)]
        return self._call("POST", path, _check, _body(schema), verbose=True)

    def compatibility(self, subject: str | None = None) -> CompatibilityLevel:
        """The compatibility level of a subject, or the default one."""
        path = ["config"] if subject is None else ["config", subject]
        return self._call("GET", path, _level, defaultToGlobal=subject is not None)

    def set_compatibility(self, level: CompatibilityLevel | str, subject: str | None = None) -> None:
        """Set the compatibility level of a subject, or the default one."""
        path = ["config"] if subject is None else ["config", subject]
        self._call("PUT", path, _ignored, {"compatibility": CompatibilityLevel(level).value})

    def reset_compatibility(self, subject: str) -> None:
        """Remove a subject's own compatibility level."""
        self._call("DELETE", ["config", subject], _ignored)

    def _call(
        self, method: str, path: Sequence[str], read: Callable[[Any], T], body: object = None, **query: object
    ) -> T:
        """Build a path, whose parts may contain any character; query items that are False or None are left out."""
        given = {name: _text(value) for name, value in query.items() if value not in (None, False)}
        where = "/" + "/".join(quote(part, safe="") for part in path)
        answer = self._http.call(method, f"{where}?{urlencode(given)}" if given else where, body)
        try:
            return read(answer)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SchemaRegistryError(f"{self!r}, {method} {where}: the answer is not a registry's: {error}") from error

    def _forget(self) -> None:
        """Schemas may be registered with other versions and ids after a deletion; schemas by id stay."""
        for cache in (self._versions, self._ids, self._lookups, self._latest):
            cache.clear()


def _format(serialized: bool) -> str | None:
    return "serialized" if serialized else None


def _text(value: object) -> str:
    return "true" if value is True else str(value)


def _body(schema: Schema) -> dict[str, object]:
    """A schema in a request; if the type is left out it is Avro, as all registries have it."""
    body: dict[str, object] = {"schema": schema.text}
    if schema.type is not SchemaType.AVRO:
        body["schemaType"] = schema.type.value
    if schema.references:
        body["references"] = [
            {"name": reference.name, "subject": reference.subject, "version": reference.version}
            for reference in schema.references
        ]
    return body


def _schema(answer: Mapping[str, Any]) -> Schema:
    references = tuple(
        SchemaReference(str(reference["name"]), str(reference["subject"]), int(reference["version"]))
        for reference in answer.get("references") or ()
    )
    return Schema(str(answer["schema"]), SchemaType(answer.get("schemaType") or "AVRO"), references)


def _registered(answer: Mapping[str, Any]) -> RegisteredSchema:
    return RegisteredSchema(str(answer["subject"]), int(answer["version"]), int(answer["id"]), _schema(answer))


def _check(answer: Mapping[str, Any]) -> CompatibilityCheck:
    return CompatibilityCheck(bool(answer["is_compatible"]), tuple(map(str, answer.get("messages") or ())))


def _level(answer: Mapping[str, Any]) -> CompatibilityLevel:
    return CompatibilityLevel(answer.get("compatibilityLevel") or answer["compatibility"])


def _numbers(answer: Sequence[Any]) -> list[int]:
    return [int(number) for number in answer]


def _ignored(answer: object) -> None:
    """An answer that repeats what was asked."""
