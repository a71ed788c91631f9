"""A schema registry in the test's own process, with Confluent's REST interface as far as clients use it.

It keeps schemas in memory, gives equal schemas one id in all subjects, refuses what a registry refuses with its codes,
and knows of compatibility what shows that a client asks for it: an Avro record's new field needs a default. The suite
that checks it also runs against a real registry.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit


class RefusedError(Exception):
    """An answer that is an error: status, the registry's code, a message."""

    def __init__(self, code: int, message: str) -> None:
        self.status = code if code < 1000 else code // 100
        self.code = code
        self.message = message
        super().__init__(message)


@dataclass
class Version:
    number: int
    schema_id: int
    deleted: bool = False


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Contents:
    """What the registry holds, and what it answers."""

    schemas: list[dict[str, Any]] = field(default_factory=list)
    subjects: dict[str, list[Version]] = field(default_factory=dict)
    levels: dict[str, str] = field(default_factory=dict)
    level: str = "NONE"

    def answer(self, method: str, parts: list[str], query: dict[str, str], body: dict[str, Any]) -> Any:
        match method, parts:
            case "GET", ["subjects"]:
                return [name for name, versions in self.subjects.items() if any(not v.deleted for v in versions)]
            case "POST", ["subjects", subject, "versions"]:
                return {"id": self._register(subject, _schema(body))}
            case "POST", ["subjects", subject]:
                return self._lookup(subject, _schema(body))
            case "GET", ["subjects", subject, "versions"]:
                return [version.number for version in self._there(subject)]
            case "GET", ["subjects", subject, "versions", number]:
                return self._shown(subject, self._version(subject, number, deleted="deleted" in query))
            case "GET", ["subjects", subject, "versions", number, "referencedby"]:
                return self._referring(subject, self._version(subject, number).number)
            case "DELETE", ["subjects", subject]:
                return self._delete(subject, self._all(subject), permanent="permanent" in query)
            case "DELETE", ["subjects", subject, "versions", number]:
                version = self._version(subject, number, deleted=True)
                return self._delete(subject, [version], permanent="permanent" in query)[0]
            case "GET", ["schemas", "ids", number]:
                return self._by_id(int(number))
            case "POST", ["compatibility", "subjects", subject, "versions", number]:
                older = self._by_id(self._version(subject, number).schema_id)
                reasons = _reasons_against(self._level(subject), older, _schema(body))
                return {"is_compatible": not reasons, "messages": reasons}
            case "GET", ["config", *of]:
                if of and of[0] not in self.levels and "defaultToGlobal" not in query:
                    raise RefusedError(40408, f"Subject '{of[0]}' does not have its own level")
                return {"compatibilityLevel": self._level(of[0] if of else "")}
            case "PUT", ["config", *of]:
                if of:
                    self.levels[of[0]] = body["compatibility"]
                else:
                    self.level = body["compatibility"]
                return body
            case "DELETE", ["config", subject]:
                return {"compatibility": self.levels.pop(subject, self.level)}
        raise RefusedError(404, f"HTTP 404 Not Found: {method} /{'/'.join(parts)}")

    def _register(self, subject: str, schema: dict[str, Any]) -> int:
        _check(schema)
        versions = self.subjects.setdefault(subject, [])
        for version in versions:
            if not version.deleted and self._by_id(version.schema_id) == schema:
                return version.schema_id
        there = [version for version in versions if not version.deleted]
        if there:
            reasons = _reasons_against(self._level(subject), self._by_id(there[-1].schema_id), schema)
            if reasons:
                raise RefusedError(409, f"Schema being registered is incompatible with an earlier schema: {reasons}")
        if schema not in self.schemas:
            self.schemas.append(schema)
        schema_id = self.schemas.index(schema) + 1
        versions.append(Version(versions[-1].number + 1 if versions else 1, schema_id))
        return schema_id

    def _lookup(self, subject: str, schema: dict[str, Any]) -> dict[str, Any]:
        for version in self._there(subject):
            if self._by_id(version.schema_id) == schema:
                return self._shown(subject, version)
        raise RefusedError(40403, "Schema not found")

    def _by_id(self, number: int) -> dict[str, Any]:
        if not 0 < number <= len(self.schemas):
            raise RefusedError(40403, f"Schema {number} not found")
        return self.schemas[number - 1]

    def _all(self, subject: str) -> list[Version]:
        if subject not in self.subjects:
            raise RefusedError(40401, f"Subject '{subject}' not found.")
        return self.subjects[subject]

    def _there(self, subject: str) -> list[Version]:
        there = [version for version in self._all(subject) if not version.deleted]
        if not there:
            raise RefusedError(40401, f"Subject '{subject}' not found.")
        return there

    def _version(self, subject: str, number: str, *, deleted: bool = False) -> Version:
        versions = self._all(subject) if deleted else self._there(subject)
        if number == "latest":
            return versions[-1]
        for version in versions:
            if version.number == int(number):
                return version
        raise RefusedError(40402, f"Version {number} not found.")

    def _shown(self, subject: str, version: Version) -> dict[str, Any]:
        known = {"subject": subject, "version": version.number, "id": version.schema_id}
        return known | self._by_id(version.schema_id)

    def _referring(self, subject: str, number: int) -> list[int]:
        return [
            place
            for place, schema in enumerate(self.schemas, 1)
            if any(ref["subject"] == subject and ref["version"] == number for ref in schema.get("references", ()))
        ]

    def _delete(self, subject: str, versions: list[Version], *, permanent: bool) -> list[int]:
        numbers = [version.number for version in versions]
        if permanent:
            if any(not version.deleted for version in versions):
                raise RefusedError(40405, f"Subject '{subject}' was not deleted first before being permanently deleted")
            self.subjects[subject] = [version for version in self._all(subject) if version.number not in numbers]
            if not self.subjects[subject]:
                del self.subjects[subject]
        for version in versions:
            version.deleted = True
        return numbers

    def _level(self, subject: str) -> str:
        return self.levels.get(subject, self.level)


def _schema(body: dict[str, Any]) -> dict[str, Any]:
    """The part of a request that makes a schema what it is."""
    schema = {"schema": body["schema"]}
    if body.get("schemaType", "AVRO") != "AVRO":
        schema["schemaType"] = body["schemaType"]
    if body.get("references"):
        schema["references"] = [{key: ref[key] for key in ("name", "subject", "version")} for ref in body["references"]]
    return schema


def _check(schema: dict[str, Any]) -> None:
    if schema.get("schemaType", "AVRO") in ("AVRO", "JSON"):
        try:
            json.loads(schema["schema"])
        except ValueError as error:
            raise RefusedError(42201, f"Invalid schema: {error}") from error


def _reasons_against(level: str, older: dict[str, Any], newer: dict[str, Any]) -> list[str]:
    if level == "NONE" or "schemaType" in newer:
        return []
    had = {field["name"] for field in json.loads(older["schema"])["fields"]}
    fields = json.loads(newer["schema"])["fields"]
    return [f"{new['name']} has no default" for new in fields if new["name"] not in had and "default" not in new]


class LocalRegistry:
    """Serves on a free port of the loopback from `with` to its end."""

    def __init__(self) -> None:
        self.contents = Contents()
        self.requests: list[Request] = []
        # Statuses that the next requests are answered with, whatever they ask for.
        self.failures: list[int] = []
        # What a request's Authorization has to be, if anything.
        self.authorization: str | None = None
        self._guard = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="registry", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def serve_tls(self, context: ssl.SSLContext) -> None:
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: Request, body: bytes) -> tuple[int, Any]:
        with self._guard:
            self.requests.append(request)
            try:
                if self.failures:
                    raise RefusedError(self.failures.pop(0), "told to fail")
                if self.authorization not in (None, request.headers.get("authorization")):
                    raise RefusedError(401, "Unauthorized")
                parts = urlsplit(request.path)
                path = [unquote(part) for part in parts.path.strip("/").split("/")]
                query = {name: values[0] for name, values in parse_qs(parts.query).items() if values[0] != "false"}
                return 200, self.contents.answer(request.method, path, query, json.loads(body or b"{}"))
            except RefusedError as refusal:
                return refusal.status, {"error_code": refusal.code, "message": refusal.message}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer: Callable[[Request, bytes], tuple[int, Any]] = self.answer

        class Handler(BaseHTTPRequestHandler):
            def respond(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, content = answer(Request(self.command, self.path, headers), body)
                text = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(text)))
                if status in (301, 307):
                    self.send_header("Location", "http://127.0.0.1:1/")
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                """A test's output is no place for an access log."""

        for method in ("GET", "POST", "PUT", "DELETE"):
            setattr(Handler, f"do_{method}", Handler.respond)
        return Handler
