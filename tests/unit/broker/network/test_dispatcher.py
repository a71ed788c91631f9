"""What the dispatcher does with requests, good and bad, and with handlers that fail."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.broker import registry
from tidelog.broker.dispatch import Dispatcher, Exchange
from tidelog.broker.handlers import k18_api_versions
from tidelog.broker.memory import HeldRequest
from tidelog.broker.registry import CloseConnection, Handler, handles
from tidelog.broker.request_context import ClientSession, RequestContext
from tidelog.broker.services import BrokerServices, FeatureRange
from tidelog.common.steps import Steps
from tidelog.metadata import MetadataStoreError
from tidelog.protocol import (
    ErrorCode,
    KafkaError,
    ProtocolError,
    RequestHeader,
    decode,
    encode,
    encode_request_header,
)
from tidelog.protocol.messages.k12_heartbeat import HEARTBEAT, HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.k18_api_versions import API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.k29_describe_acls import DESCRIBE_ACLS
from tidelog.protocol.messages.k42_delete_groups import (
    DELETE_GROUPS,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from tidelog.server.settings_load import load

Handle = Callable[[Any, RequestContext], Any]


class _Holder:
    """Counts the bytes of requests that wait to be decoded."""

    def __init__(self) -> None:
        self.held_bytes = 0

    def hold_frame(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes

    def release_frame(self) -> None:
        self.held_bytes = 0

    def hold_request(self, size_bytes: int) -> HeldRequest:
        raise NotImplementedError


HOLDER = _Holder()


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[int, Handler]:
    """The registry with nothing but ApiVersions in it."""
    api_versions = Handler(API_VERSIONS, 0, 4, k18_api_versions.handle_api_versions)
    table = {API_VERSIONS.key: api_versions}
    monkeypatch.setattr(registry, "_handlers", table)
    return table


def _dispatcher(loop: asyncio.AbstractEventLoop | None = None, **services: object) -> Dispatcher:
    cluster = SimpleNamespace(image=SimpleNamespace(revision=7))
    parts = SimpleNamespace(cluster=cluster, **({"features": {}, "settings": load(environ={})} | services))
    return Dispatcher(cast(BrokerServices, parts), loop or cast(asyncio.AbstractEventLoop, None))


def _frame(key: int, version: int, body: bytes, client_id: str | None = "me", correlation_id: int = 5) -> memoryview:
    header = encode_request_header(RequestHeader(key, version, correlation_id, client_id))
    return memoryview(bytearray(header + body))


def _answer(exchange: Exchange) -> bytes:
    """The answer behind its size and its header of version 0."""
    assert exchange.answered
    assert exchange.parts is not None
    data = b"".join(cast(list[bytes], exchange.parts))
    size, correlation_id = struct.unpack_from(">ii", data)
    assert size == len(data) - 4
    assert correlation_id == 5
    return data[8:]


def _heartbeat(handlers: dict[int, Handler], handle: Handle) -> memoryview:
    handlers[HEARTBEAT.key] = Handler(HEARTBEAT, 0, 3, handle)
    return _frame(HEARTBEAT.key, 0, encode(HeartbeatRequest(group_id="g"), 0))


@pytest.mark.usefixtures("handlers")
class TestApiVersions:
    @pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
    def test_lists_what_is_served(self, version: int) -> None:
        request = ApiVersionsRequest(client_software_name="a", client_software_version="1.0")
        exchange = _dispatcher().start(_frame(18, version, encode(request, version)), ClientSession(), HOLDER)
        response = decode(ApiVersionsResponse, _answer(exchange), version)
        assert [(row.api_key, row.min_version, row.max_version) for row in response.api_keys] == [(18, 0, 4)]
        assert response.error_code == 0

    @pytest.mark.parametrize("version", [5, 99, -1, 32767])
    def test_an_unknown_version_is_answered_in_version_0(self, version: int) -> None:
        frame = memoryview(bytearray(struct.pack(">hhi", 18, version, 5) + b"whatever such a version may hold"))
        response = decode(ApiVersionsResponse, _answer(_dispatcher().start(frame, ClientSession(), HOLDER)), 0)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(row.api_key, row.min_version, row.max_version) for row in response.api_keys] == [(18, 0, 4)]

    @pytest.mark.parametrize(
        ("name", "version"), [("", "1"), ("a", ""), ("-a", "1"), ("a b", "1"), ("a", "1."), ("ä", "1"), ("a\n", "1")]
    )
    def test_a_client_name_that_breaks_the_rule_is_refused(self, name: str, version: str) -> None:
        request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
        exchange = _dispatcher().start(_frame(18, 3, encode(request, 3)), ClientSession(), HOLDER)
        assert decode(ApiVersionsResponse, _answer(exchange), 3).error_code == ErrorCode.INVALID_REQUEST

    def test_the_client_name_is_remembered(self) -> None:
        session = ClientSession()
        request = ApiVersionsRequest(client_software_name="apache-kafka-java", client_software_version="4.1.0")
        _dispatcher().start(_frame(18, 3, encode(request, 3)), session, HOLDER)
        assert (session.client_software_name, session.client_software_version) == ("apache-kafka-java", "4.1.0")

    def test_features_that_start_at_0_are_kept_from_clients_that_reject_them(self) -> None:
        features = {"old": FeatureRange(1, 3, 2), "new": FeatureRange(0, 1)}
        dispatcher = _dispatcher(features=features)
        request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        seen = {}
        for version in (3, 4):
            exchange = dispatcher.start(_frame(18, version, encode(request, version)), ClientSession(), HOLDER)
            response = decode(ApiVersionsResponse, _answer(exchange), version)
            seen[version] = [row.name for row in response.supported_features]
            assert [(row.name, row.max_version_level) for row in response.finalized_features] == [("old", 2)]
            assert response.finalized_features_epoch == 7
        assert seen == {3: ["old"], 4: ["old", "new"]}


class TestBadRequests:
    def test_an_api_that_is_not_served_closes(self, handlers: dict[int, Handler]) -> None:
        with pytest.raises(CloseConnection, match="API key 29"):
            _dispatcher().start(_frame(DESCRIBE_ACLS.key, 1, b""), ClientSession(), HOLDER)
        with pytest.raises(CloseConnection, match="API key 999"):
            _dispatcher().start(memoryview(struct.pack(">hhi", 999, 0, 5)), ClientSession(), HOLDER)

    def test_a_version_that_is_not_served_closes(self, handlers: dict[int, Handler]) -> None:
        _heartbeat(handlers, lambda request, context: HeartbeatResponse())
        with pytest.raises(CloseConnection, match="version 4; supported are 0 to 3"):
            _dispatcher().start(memoryview(struct.pack(">hhi", HEARTBEAT.key, 4, 5)), ClientSession(), HOLDER)

    def test_an_unstable_version_is_served_where_the_settings_say_so(self, handlers: dict[int, Handler]) -> None:
        handle = cast(Handle, lambda request, context: HeartbeatResponse(error_code=context.version))
        handlers[HEARTBEAT.key] = Handler(HEARTBEAT, 0, 3, handle, unstable_version=4)
        frame = _frame(HEARTBEAT.key, 4, encode(HeartbeatRequest(group_id="g"), 4))
        with pytest.raises(CloseConnection, match="version 4; supported are 0 to 3"):
            _dispatcher().start(frame, ClientSession(), HOLDER)
        unstable = load(environ={}, options={"unstable.api.versions.enable": True})
        dispatcher = _dispatcher(settings=unstable)
        # The header of a flexible answer ends in tagged fields, of which there are none.
        answer = _answer(dispatcher.start(frame, ClientSession(), HOLDER))[1:]
        assert decode(HeartbeatResponse, answer, 4).error_code == 4
        listing = dispatcher.start(_frame(18, 0, encode(ApiVersionsRequest(), 0)), ClientSession(), HOLDER)
        served = {row.api_key: row.max_version for row in decode(ApiVersionsResponse, _answer(listing), 0).api_keys}
        assert served == {HEARTBEAT.key: 4, API_VERSIONS.key: 4}
        with pytest.raises(CloseConnection, match="version 5; supported are 0 to 4"):
            dispatcher.start(memoryview(struct.pack(">hhi", HEARTBEAT.key, 5, 5)), ClientSession(), HOLDER)

    def test_truncated_requests_and_stray_bytes_close(self, handlers: dict[int, Handler]) -> None:
        frame = bytes(_heartbeat(handlers, lambda request, context: HeartbeatResponse()))
        dispatcher = _dispatcher()
        for length in range(8, len(frame)):
            with pytest.raises(CloseConnection, match="malformed"):
                dispatcher.start(memoryview(frame)[:length], ClientSession(), HOLDER)
        with pytest.raises(CloseConnection, match="malformed"):
            dispatcher.start(memoryview(frame + b"x"), ClientSession(), HOLDER)

    def test_null_client_id_and_unknown_tags_are_fine(self, handlers: dict[int, Handler]) -> None:
        seen: list[RequestContext] = []

        def handle(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
            seen.append(context)
            return HeartbeatResponse()

        handlers[HEARTBEAT.key] = Handler(HEARTBEAT, 0, 4, handle)
        body = encode(HeartbeatRequest(group_id="g"), 4)
        tags = b"\x01\x63\x03abc"  # one field, tag 99, three bytes
        header = struct.pack(">hhih", HEARTBEAT.key, 4, 5, -1)
        _dispatcher().start(memoryview(header + tags + body[:-1] + tags), ClientSession(client_host="10.0.0.1"), HOLDER)
        assert seen[0].client_id is None
        assert seen[0].client_host == "10.0.0.1"
        assert seen[0].version == 4


class TestHandlers:
    def test_a_failure_is_logged_with_its_traceback_and_told_in_the_response(
        self, handlers: dict[int, Handler], caplog: pytest.LogCaptureFixture
    ) -> None:
        def handle(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
            raise RuntimeError("lost my way")

        exchange = _dispatcher().start(_heartbeat(handlers, handle), ClientSession(), HOLDER)
        response = decode(HeartbeatResponse, _answer(exchange), 0)
        assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert caplog.records[0].levelno == logging.ERROR
        assert caplog.records[0].exc_info

    def test_a_store_that_is_away_is_an_error_to_retry_after(
        self, handlers: dict[int, Handler], caplog: pytest.LogCaptureFixture
    ) -> None:
        def handle(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
            raise MetadataStoreError("nobody answers")

        exchange = _dispatcher().start(_heartbeat(handlers, handle), ClientSession(), HOLDER)
        response = decode(HeartbeatResponse, _answer(exchange), 0)
        assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert not caplog.records[0].exc_info

    def test_a_kafka_error_is_told_as_it_is(self, handlers: dict[int, Handler]) -> None:
        def handle(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

        exchange = _dispatcher().start(_heartbeat(handlers, handle), ClientSession(), HOLDER)
        response = decode(HeartbeatResponse, _answer(exchange), 0)
        assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    def test_a_failure_that_the_response_has_no_place_for_closes(self, handlers: dict[int, Handler]) -> None:
        def handle(request: DeleteGroupsRequest, context: RequestContext) -> None:
            raise RuntimeError("lost my way")

        handlers[DELETE_GROUPS.key] = Handler(DELETE_GROUPS, 0, 1, handle)
        with pytest.raises(CloseConnection, match="failed"):
            _dispatcher().start(
                _frame(DELETE_GROUPS.key, 0, encode(DeleteGroupsRequest(groups_names=["g"]), 0)),
                ClientSession(),
                HOLDER,
            )

    def test_malformed_bytes_that_a_handler_finds_close(self, handlers: dict[int, Handler]) -> None:
        def handle(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
            raise ProtocolError("nonsense inside")

        with pytest.raises(CloseConnection, match="nonsense inside"):
            _dispatcher().start(_heartbeat(handlers, handle), ClientSession(), HOLDER)

    def test_none_means_no_answer(self, handlers: dict[int, Handler]) -> None:
        exchange = _dispatcher().start(_heartbeat(handlers, lambda request, context: None), ClientSession(), HOLDER)
        assert exchange.answered
        assert exchange.parts is None

    def test_a_response_that_cannot_be_encoded_closes(self, handlers: dict[int, Handler]) -> None:
        frame = _heartbeat(handlers, lambda request, context: HeartbeatResponse(error_code=99_999))
        with pytest.raises(CloseConnection, match="could not be encoded"):
            _dispatcher().start(frame, ClientSession(), HOLDER)

    def test_coroutines_and_futures_are_waited_for(self, handlers: dict[int, Handler]) -> None:
        async def coroutine(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
            await asyncio.sleep(0)
            return HeartbeatResponse(error_code=3)

        def future(request: HeartbeatRequest, context: RequestContext) -> asyncio.Future[HeartbeatResponse]:
            result: asyncio.Future[HeartbeatResponse] = asyncio.get_running_loop().create_future()
            result.set_result(HeartbeatResponse(error_code=4))
            return result

        async def run(handle: Handle) -> int:
            dispatcher = _dispatcher(asyncio.get_running_loop())
            exchange = dispatcher.start(_heartbeat(handlers, handle), ClientSession(), HOLDER)
            assert not exchange.answered
            assert exchange.future is not None
            await exchange.future
            dispatcher.finish(exchange)
            return decode(HeartbeatResponse, _answer(exchange), 0).error_code

        assert asyncio.run(run(coroutine)) == 3
        assert asyncio.run(run(future)) == 4


def test_a_handler_must_stay_within_the_declared_versions() -> None:
    with pytest.raises(ValueError, match="declared for 0-4"):
        handles(HEARTBEAT, "0-5")


@pytest.mark.usefixtures("handlers")
def test_an_api_has_one_handler() -> None:
    def first(request: HeartbeatRequest, context: RequestContext) -> None:
        return None

    def second(request: HeartbeatRequest, context: RequestContext) -> None:
        return None

    handles(HEARTBEAT, "0-4")(first)
    with pytest.raises(ValueError, match="already has the handler"):
        handles(HEARTBEAT, "0-4")(second)


def test_a_mistake_of_ours_in_reading_closes_and_is_logged(
    handlers: dict[int, Handler], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken_decode(*_: object, **__: object) -> None:
        raise OverflowError("too far")

    frame = _heartbeat(handlers, lambda request, context: HeartbeatResponse())
    monkeypatch.setattr("tidelog.broker.dispatch.decode", broken_decode)
    with pytest.raises(CloseConnection, match="could not be read"):
        _dispatcher().start(frame, ClientSession(), HOLDER)
    assert caplog.records[0].exc_info


class TestSteps:
    """Requests with many elements are read and answered in steps."""

    def _start(self, handlers: dict[int, Handler], handle: Handle, groups: int) -> tuple[Dispatcher, Exchange, _Holder]:
        handlers[DELETE_GROUPS.key] = Handler(DELETE_GROUPS, 0, 2, handle)
        dispatcher, holder = _dispatcher(asyncio.get_running_loop()), _Holder()
        request = DeleteGroupsRequest(groups_names=[f"group-{number}" for number in range(groups)])
        frame = _frame(DELETE_GROUPS.key, 0, encode(request, 0))
        return dispatcher, dispatcher.start(frame, ClientSession(), holder), holder

    def test_a_large_request_counts_as_held_until_it_is_decoded(self, handlers: dict[int, Handler]) -> None:
        async def main() -> None:
            asked: list[int] = []

            def handle(request: DeleteGroupsRequest, context: RequestContext) -> DeleteGroupsResponse:
                asked.append(len(request.groups_names))
                results = [DeletableGroupResult(group_id=name) for name in request.groups_names]
                return DeleteGroupsResponse(results=results)

            dispatcher, exchange, holder = self._start(handlers, handle, 19_000)
            assert not asked
            assert exchange.is_in_steps
            assert holder.held_bytes > 19_000
            while exchange.future is not None:
                await asyncio.wait([exchange.future])
                dispatcher.finish(exchange)
            assert asked == [19_000]
            assert holder.held_bytes == 0
            assert not exchange.is_in_steps
            assert exchange.parts is not None
            assert len(exchange.parts) > 2, "the answer was encoded in steps, too"
            answer = decode(DeleteGroupsResponse, b"".join(exchange.parts)[8:], 0)
            assert len(answer.results) == 19_000

        asyncio.run(main())

    def test_a_handler_that_is_a_generator_may_give_a_coroutine(self, handlers: dict[int, Handler]) -> None:
        async def later() -> DeleteGroupsResponse:
            return DeleteGroupsResponse(results=[DeletableGroupResult(group_id="later")])

        def handle(request: DeleteGroupsRequest, context: RequestContext) -> Steps[object]:
            yield 0
            return later()

        async def main() -> None:
            dispatcher, exchange, _ = self._start(handlers, handle, 1)
            while exchange.future is not None:
                await asyncio.wait([exchange.future])
                dispatcher.finish(exchange)
            assert decode(DeleteGroupsResponse, _answer(exchange), 0).results[0].group_id == "later"

        asyncio.run(main())

    def test_a_failure_between_steps_is_answered_or_closes(self, handlers: dict[int, Handler]) -> None:
        def handle(request: DeleteGroupsRequest, context: RequestContext) -> Steps[object]:
            yield 0
            raise ProtocolError("nonsense inside")

        async def main() -> None:
            with pytest.raises(CloseConnection, match="nonsense inside"):
                self._start(handlers, handle, 1)

        asyncio.run(main())

    def test_an_answer_above_the_bound_closes(self, handlers: dict[int, Handler]) -> None:
        def handle(request: DeleteGroupsRequest, context: RequestContext) -> Steps[object]:
            yield 200 << 20
            return DeleteGroupsResponse()

        async def main() -> None:
            with pytest.raises(CloseConnection, match="too much by DeleteGroups: the answer has more than"):
                self._start(handlers, handle, 1)

        asyncio.run(main())
