"""One HTTP call to a schema registry: several addresses, credentials, TLS, timeouts, retries.

What always holds: a call ends within its timeout. Every request can safely be repeated, so temporary failures are
retried at the next address. Redirects are not followed, because they would carry credentials elsewhere. Errors never
contain credentials. Proxies are taken from the environment, as usual.
"""

from __future__ import annotations

import base64
import http.client
import json
import random
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit, urlunsplit

from tidelog.client.errors import ConfigError
from tidelog.client.network.backoff import Backoff
from tidelog.client.serialization.registry_errors import (
    IncompatibleSchemaError,
    SchemaNotFoundError,
    SchemaRegistryError,
    SchemaRegistryUnavailableError,
)

_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json;q=0.9"

# Temporary: overload, a registry that is starting or changing its leader, a proxy that can't reach it.
_PASSING_STATUSES = frozenset({408, 429, 500, 502, 503, 504})

# No schema is this large; a larger response is not from a registry.
_ANSWER_BYTES_MAX = 64 << 20

Authorization = Callable[[], str]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        """Treat a redirect as the response, which makes it an error."""


class RegistryHttp:
    """Sends requests to one of several addresses of a registry; thread-safe."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        authorization: Authorization | None,
        ssl_context: ssl.SSLContext | None,
        headers: Mapping[str, str],
        timeout_s: float,
        request_timeout_s: float,
        backoff: Backoff,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.addresses = tuple(_address(url) for url in urls)
        self._authorizations = [authorization or _authorization_in(url) for url in urls]
        self._headers = {"Accept": _ACCEPT, **headers}
        self._timeout_s = timeout_s
        self._request_timeout_s = request_timeout_s
        self._backoff = backoff
        self._clock = clock
        self._sleep = sleep
        self._preferred = random.randrange(len(self.addresses))
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        # Reading the system's trusted certificates takes a while, so only clients that need them wait for it.
        if any(address.startswith("https:") for address in self.addresses):
            handlers.append(urllib.request.HTTPSHandler(context=ssl_context or ssl.create_default_context()))
        self._opener = urllib.request.build_opener(*handlers)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The registry's response, retried until there is one or the time is up."""
        deadline = self._clock() + self._timeout_s
        failures = 0
        while True:
            left_s = deadline - self._clock()
            place = self._preferred
            try:
                return self._ask(place, method, path, body, max(min(left_s, self._request_timeout_s), 0.001))
            except SchemaRegistryUnavailableError as error:
                failures += 1
                # Another thread may have moved on already.
                self._preferred = (place + 1) % len(self.addresses)
                # Try all addresses before the first pause.
                pause_s = 0.0
                if failures % len(self.addresses) == 0:
                    pause_s = self._backoff.pause_s(failures // len(self.addresses))
                if self._clock() + pause_s >= deadline:
                    raise error.told_at(f"gave up after {failures} tries in {self._timeout_s:g} s") from error
                self._sleep(pause_s)

    def _ask(self, place: int, method: str, path: str, body: object, timeout_s: float) -> Any:
        address = self.addresses[place]
        headers = dict(self._headers)
        authorization = self._authorizations[place]
        if authorization is not None:
            headers["Authorization"] = authorization()
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = _CONTENT_TYPE
        request = urllib.request.Request(address + path, data=data, headers=headers, method=method)
        what = f"schema registry {address}, {method} {path}"
        try:
            with self._opener.open(request, timeout=timeout_s) as response:
                text = _whole(response)
        except urllib.error.HTTPError as answer:
            with answer:
                _refuse(what, answer.code, answer.read(_ANSWER_BYTES_MAX))
        except (OSError, http.client.HTTPException) as error:
            _fail(what, error)
        try:
            return json.loads(text)
        except ValueError as error:
            raise SchemaRegistryError(f"{what}: the answer is not JSON; is this a registry's address?") from error


def _whole(response: http.client.HTTPResponse) -> bytes:
    """The body; raises if it is truncated, which `read` with a limit does not do by itself."""
    text = response.read(_ANSWER_BYTES_MAX)
    missing = response.length or 0
    if missing and len(text) == _ANSWER_BYTES_MAX:
        raise http.client.HTTPException(f"the answer is larger than {_ANSWER_BYTES_MAX} bytes")
    if missing or not text:
        raise http.client.IncompleteRead(text, missing or None)
    return text


def _refuse(what: str, status: int, text: bytes) -> NoReturn:
    """Raise the error that matches an error response."""
    error_code, message = -1, http.client.responses.get(status, "")
    try:
        answer = json.loads(text)
        error_code, message = int(answer["error_code"]), " ".join(str(answer["message"]).split())
    except (ValueError, TypeError, KeyError):
        # A proxy in between uses its own wording, and its status says enough.
        pass
    cls = SchemaRegistryError
    if status in _PASSING_STATUSES:
        cls = SchemaRegistryUnavailableError
    elif status == 404:
        cls = SchemaNotFoundError
    elif status == 409:
        cls = IncompatibleSchemaError
    elif status in (401, 403):
        message = f"{message}; check basic_auth or bearer_token and what they may do"
    elif 300 <= status < 400:
        message = "it sends elsewhere, which is not followed; give the address itself"
    code = f"HTTP {status}" if error_code in (-1, status) else f"HTTP {status}, error {error_code}"
    raise cls(f"{what}: {message} ({code})", status=status, error_code=error_code)


def _fail(what: str, error: OSError | http.client.HTTPException) -> NoReturn:
    """Raise the error that matches a connection that failed or broke."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    text = " ".join(str(reason).split()) or type(reason).__name__
    if isinstance(reason, ssl.SSLCertVerificationError):
        raise SchemaRegistryError(f"{what}: {text}; give an ssl_context that trusts the registry") from error
    raise SchemaRegistryUnavailableError(f"{what}: {text}") from error


def _address(url: str) -> str:
    """The address without credentials and trailing slash."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("a schema registry's address is http://host:port or https://host:port")
    if parts.query or parts.fragment:
        raise ConfigError(f"the address of a schema registry has no query: {parts.hostname}{parts.path}")
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


def _authorization_in(url: str) -> Authorization | None:
    parts = urlsplit(url)
    if parts.username is None:
        return None
    return basic(unquote(parts.username), unquote(parts.password or ""))


def basic(user: str, password: str) -> Authorization:
    value = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
    return lambda: value


def bearer(token: str | Callable[[], str]) -> Authorization:
    """A token, or a function that gives the current one for each call."""
    return lambda: f"Bearer {token() if callable(token) else token}"
