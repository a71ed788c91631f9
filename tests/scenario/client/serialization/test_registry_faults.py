"""A registry that fails, refuses, is slow or is not there: what the client makes of it."""

from __future__ import annotations

import base64
import pickle
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from local_registry import LocalRegistry
from tidelog.client.errors import ConfigError, is_retriable
from tidelog.serialization import (
    AvroDeserializer,
    AvroSerializer,
    Schema,
    SchemaNotFoundError,
    SchemaRegistry,
    SchemaRegistryError,
    SchemaRegistryUnavailableError,
)

ORDER = Schema('{"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}')


@contextmanager
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def closed_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_failures_that_pass_are_tried_again(local_registry: LocalRegistry, status: int) -> None:
    local_registry.failures = [status] * 3
    assert SchemaRegistry(local_registry.url, retry_backoff_s=0.001).register("orders", ORDER) == 1
    assert len(local_registry.requests) == 4


@pytest.mark.parametrize("status", [400, 405, 422])
def test_refusals_are_not_tried_again(local_registry: LocalRegistry, status: int) -> None:
    local_registry.failures = [status]
    with pytest.raises(SchemaRegistryError) as refused:
        SchemaRegistry(local_registry.url).register("orders", ORDER)
    assert refused.value.status == status
    assert not is_retriable(refused.value)
    assert len(local_registry.requests) == 1


def test_a_call_ends_within_its_time() -> None:
    with silent_server() as url:
        registry = SchemaRegistry(url, timeout_s=0.4, request_timeout_s=0.1, retry_backoff_s=0.001)
        began = time.monotonic()
        with pytest.raises(SchemaRegistryUnavailableError, match="gave up after") as gone:
            registry.subjects()
    assert is_retriable(gone.value)
    assert 0.2 < time.monotonic() - began < 5


def test_the_next_address_is_asked_when_one_is_gone(local_registry: LocalRegistry) -> None:
    registry = SchemaRegistry([closed_address(), local_registry.url, closed_address()])
    for _ in range(5):
        assert registry.subjects() == []
    # Once found, the one that answers is asked first.
    assert len(local_registry.requests) == 5
    assert SchemaRegistry(f"{closed_address()}, {local_registry.url}").subjects() == []


def test_credentials_are_sent_and_never_shown(local_registry: LocalRegistry) -> None:
    local_registry.authorization = "Basic " + base64.b64encode(b"ann:s3cret/").decode()
    assert SchemaRegistry(local_registry.url, basic_auth=("ann", "s3cret/")).subjects() == []
    in_url = SchemaRegistry(local_registry.url.replace("//", "//ann:s3cret%2F@"))
    assert in_url.subjects() == []
    assert "s3cret" not in repr(in_url)
    with pytest.raises(SchemaRegistryError, match="check basic_auth") as refused:
        SchemaRegistry(local_registry.url.replace("//", "//ann:wr0ng@")).subjects()
    assert refused.value.status == 401
    assert "wr0ng" not in str(refused.value)


def test_a_token_may_change_from_call_to_call(local_registry: LocalRegistry) -> None:
    tokens = iter(["one", "two"])
    registry = SchemaRegistry(local_registry.url, bearer_token=lambda: next(tokens))
    for token in ("one", "two"):
        local_registry.authorization = f"Bearer {token}"
        assert registry.subjects() == []
    assert SchemaRegistry(local_registry.url, bearer_token="two").subjects() == []


def test_headers_of_the_users_own_are_sent(local_registry: LocalRegistry) -> None:
    SchemaRegistry(local_registry.url, headers={"X-Team": "shop"}).subjects()
    assert local_registry.requests[-1].headers["x-team"] == "shop"


def test_redirects_are_not_followed(local_registry: LocalRegistry) -> None:
    local_registry.failures = [307]
    with pytest.raises(SchemaRegistryError, match="sends elsewhere"):
        SchemaRegistry(local_registry.url, basic_auth=("ann", "secret")).subjects()


def test_what_is_no_registry_is_told() -> None:
    told = pytest.raises(SchemaRegistryError, match="not JSON; is this a registry")
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello") as url, told:
        SchemaRegistry(url).subjects()
    told = pytest.raises(SchemaRegistryError, match="not a registry's")
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}") as url, told:
        SchemaRegistry(url).register("orders", ORDER)


@pytest.mark.parametrize("length", ["Content-Length: 10\r\n", "Transfer-Encoding: chunked\r\n"])
def test_an_answer_that_is_cut_off_anywhere_is_asked_for_again(length: str) -> None:
    body = '["orders"]' if "Length" in length else 'a\r\n["orders"]\r\n0\r\n\r\n'
    answer = f"HTTP/1.1 200 OK\r\nConnection: close\r\n{length}\r\n{body}".encode()
    with answering(answer) as url:
        assert SchemaRegistry(url).subjects() == ["orders"]
    # Of chunks the last one is only the end, which some leave out.
    for cut in range(len(answer) - (5 if "chunked" in length else 0)):
        with answering(answer[:cut]) as url, pytest.raises(SchemaRegistryUnavailableError):
            SchemaRegistry(url, timeout_s=0.01, retry_backoff_s=0.02).subjects()


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that reads a request and answers with these bytes, whatever was asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    received = b""
                    while b"\r\n\r\n" not in received:
                        received += connection.recv(65536) or b"\r\n\r\n"
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@pytest.mark.parametrize(
    "url", ["", "orders:9092", "ftp://host", "http://", "http://host/?query", "http://host#part", ["http://a", ""]]
)
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        SchemaRegistry(url)


def test_only_one_kind_of_credentials_is_taken() -> None:
    with pytest.raises(ConfigError, match="not both"):
        SchemaRegistry("http://host", basic_auth=("a", "b"), bearer_token="c")
    with pytest.raises(ConfigError, match="needs an address"):
        SchemaRegistry([])


def test_tls_goes_by_the_context(local_registry: LocalRegistry, tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    local_registry.serve_tls(serving)
    trusting = ssl.create_default_context(cafile=str(certificate))
    url = local_registry.url.replace("http:", "https:")
    assert SchemaRegistry(url, ssl_context=trusting).subjects() == []
    with pytest.raises(SchemaRegistryError, match="give an ssl_context that trusts") as refused:
        SchemaRegistry(url).subjects()
    assert not is_retriable(refused.value)


def test_serializers_ask_once_and_tell_where_they_failed(local_registry: LocalRegistry) -> None:
    registry = SchemaRegistry(local_registry.url, timeout_s=0.05)
    serializer = AvroSerializer[dict[str, int]](registry, ORDER)
    local_registry.failures = [503] * 1000
    with pytest.raises(SchemaRegistryUnavailableError, match="topic orders, value: gave up") as failed:
        serializer("orders", {"id": 1})
    assert is_retriable(failed.value)
    local_registry.failures.clear()
    local_registry.requests.clear()
    written = [serializer("orders", {"id": number}) for number in range(100)]
    assert len(local_registry.requests) == 1
    deserializer = AvroDeserializer(SchemaRegistry(local_registry.url))
    assert [deserializer("orders", data) for data in written] == [{"id": number} for number in range(100)]
    assert len(local_registry.requests) == 2
    with pytest.raises(SchemaNotFoundError, match="topic orders, value: can't deserialize 6 bytes"):
        deserializer("orders", b"\x00\x00\x00\x00\x63\x00")


def test_threads_that_need_one_schema_ask_for_it_once(local_registry: LocalRegistry) -> None:
    serializer = AvroSerializer[dict[str, int]](SchemaRegistry(local_registry.url), ORDER)
    start = threading.Barrier(8)
    written: list[bytes | None] = []

    def serialize() -> None:
        start.wait()
        written.append(serializer("orders", {"id": 1}))

    threads = [threading.Thread(target=serialize) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(written) == {b"\x00\x00\x00\x00\x01\x02"}
    assert len(written) == 8
    assert len(local_registry.requests) == 1


def test_the_latest_version_is_asked_for_again_after_its_lifetime(
    local_registry: LocalRegistry, wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    longer = Schema(ORDER.text.replace("}]", '}, {"name": "note", "type": "string", "default": ""}]'))
    writer = SchemaRegistry(local_registry.url)
    writer.register("orders-value", ORDER)
    serializer = AvroSerializer[dict[str, int]](
        SchemaRegistry(local_registry.url, latest_lifetime_s=0.05), use_latest_version=True
    )
    assert serializer("orders", {"id": 1}) == b"\x00\x00\x00\x00\x01\x02"
    writer.register("orders-value", longer)
    wait_until(lambda: serializer("orders", {"id": 1}) == b"\x00\x00\x00\x00\x02\x02\x00", "the new version is used")


def test_errors_survive_a_pickle() -> None:
    error = SchemaNotFoundError("no such schema", status=404, error_code=40403)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.status, copy.error_code) == (SchemaNotFoundError, str(error), 404, 40403)
